"""The chip's codec: a numpy reference of the format, and the measured ratios."""
