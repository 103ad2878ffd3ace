"""What every page is made of: plot primitives, markup, numbers, and files."""
