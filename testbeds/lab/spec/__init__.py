"""The spec of an experiment: its file, and every check of it."""
