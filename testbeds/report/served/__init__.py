"""What served requests took: where a run keeps their records, their table, and their metrics."""
