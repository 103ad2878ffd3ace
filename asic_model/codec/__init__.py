"""The chip's codec: a numpy reference of the format, lossy modes, and what was measured of them."""
