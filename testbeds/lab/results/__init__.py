"""What an experiment found: ledger rows, sums, and the figures with their intervals."""
