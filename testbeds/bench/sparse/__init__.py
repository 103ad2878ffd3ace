"""Sparse decode from drives: stall per token, and the sessions that drives and cores carry."""
