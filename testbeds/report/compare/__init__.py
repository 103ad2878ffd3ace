"""The comparison: a measured DPU beside models of devices on the same decisions, and its page."""
