"""A pod: several DPU daemons that are one tier.

What a daemon, its hosts and the laboratory must agree on: the members and the epoch (`map`), where
a shard lives (`placement`), when a daemon may still serve (`fence`), and where the map is kept
(`membership`). All but the last are pure functions: the caller passes the time.
"""
