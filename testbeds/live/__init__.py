"""Driving a workload against a daemon: what the demo and `offstage host run` have in common."""
