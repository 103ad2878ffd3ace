"""Observability of a daemon: metrics, the ledger and decision log of its core, and their replay."""
