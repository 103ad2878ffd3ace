"""The KV of a model: its shape, its identity, and synthetic KV."""
