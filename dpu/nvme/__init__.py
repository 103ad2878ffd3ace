"""Values as namespaces of NVMe over TCP."""
