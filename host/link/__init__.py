"""The way to one daemon: connection, control calls, sessions."""
