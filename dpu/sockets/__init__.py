"""The daemon's sockets, and who may come in by them."""
