"""The chip's codec: a numpy reference of the format, lossy modes, and the measured ratios."""
