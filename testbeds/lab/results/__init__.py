"""The results of an experiment: ledger rows, sums, and figures with their intervals."""
