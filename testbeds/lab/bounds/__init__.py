"""Upper bounds for any policy, or any cache of prefixes, on a workload."""
