"""What an experiment is: its file, and every check of it."""
