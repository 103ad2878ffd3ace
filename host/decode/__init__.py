"""A decode step: requests, sessions, the HBM pool, the layers of a batch, and the time spent."""
