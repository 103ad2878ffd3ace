"""A run again in virtual time with one thing changed: a recorded one, or a point of the lab."""
