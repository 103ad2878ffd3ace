"""The daemon's sockets, and the access checks on them."""
