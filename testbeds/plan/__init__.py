"""The cost of a tier, its bottleneck and when it pays: `offstage plan`."""
