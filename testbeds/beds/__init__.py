"""Testbeds: where a daemon runs and how a host reaches it."""
