"""The comparison of a measured DPU with device models on the same decisions, and its page."""
