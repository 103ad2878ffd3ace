"""The parts of every page: plot primitives, markup, numbers, and files."""
