"""A pod: several DPU daemons that are one tier.

What a daemon, its hosts and the laboratory must agree on: who is a member and under which epoch
(`map`), where a segment lives (`placement`), when a daemon may still serve (`fence`), and where the
map is kept (`membership`). All but the last are pure functions: who calls them brings the time.
"""
