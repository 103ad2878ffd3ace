"""Block selections and scores, step by step: drawn, captured or recorded."""
