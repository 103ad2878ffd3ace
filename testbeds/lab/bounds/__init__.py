"""What any policy, or any cache of prefixes, could reach on a workload."""
