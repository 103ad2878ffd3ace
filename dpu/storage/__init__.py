"""Where blocks are stored: drives, the store's file, and the device opened on them."""
