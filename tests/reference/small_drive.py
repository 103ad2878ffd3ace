"""A drive so small that a handful of reads reach its limits: parameters of the NVMe model."""

DRIVE = {
    "channel_count": 2,
    "dies_per_channel": 2,
    "planes_per_die": 1,
    "page_size_bytes": 4096,
    "queue_depth_max": 64,
    "read_ps": 50_000_000,
    "program_ps": 500_000_000,
    "firmware_ps": 5_000_000,
    "command_interval_ps": 1_000_000,
    "channel_bytes_per_s": 1_000_000_000,
    "link_bytes_per_s": 4_000_000_000,
    "write_buffer_bytes": 1 << 20,
    "retry_per_million": 10_000,
    "retry_factor": 4,
}
