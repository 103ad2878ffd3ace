"""Where blocks lie: drives, the store's file, and the device that is opened on them."""
