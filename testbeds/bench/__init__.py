"""Benches: each against its reference in the same run."""
