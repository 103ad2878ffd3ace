"""Runs a workload against a daemon: the parts shared by the demo and `offstage host run`."""
