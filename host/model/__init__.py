"""The KV of a model: its shape, its identity, and what is drawn in its place."""
