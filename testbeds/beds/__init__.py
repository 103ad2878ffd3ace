"""Where a run finds its daemon: for now, a process on this machine."""
