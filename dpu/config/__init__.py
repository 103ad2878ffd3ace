"""How a daemon is set: its options, who gave them, and what follows from them."""
