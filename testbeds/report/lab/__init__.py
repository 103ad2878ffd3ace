"""The report of a lab run: points, bounds and prefix caches as a page and tables."""
