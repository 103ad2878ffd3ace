"""The cost of writing to the drive, and the decisions that depend on it."""
