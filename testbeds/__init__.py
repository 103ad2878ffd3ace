"""Testbeds, workloads, experiments, reports and the command line."""
