"""The DPU side: the daemon (control plane, Python) over the firmware (data plane, C)."""
