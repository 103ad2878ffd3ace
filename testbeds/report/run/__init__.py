"""The report of a run: figures of `summary.json` as a page and a table."""
