"""Configuration of a daemon: its options, the source of each value, and the values derived."""
