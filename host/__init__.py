"""The host side: KV geometry, HBM pool, selection, paged attention, driver and agent."""
