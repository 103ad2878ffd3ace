"""Models by name and by file: each becomes a folder in Hugging Face's format."""
