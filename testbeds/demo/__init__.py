"""The demo: daemon, host agent and report on one machine."""
