"""A decode step: requests, sessions, the pool, a layer of a batch, and where the time went."""
