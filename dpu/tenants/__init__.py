"""Whose blocks: tenants, their secrets and bounds, and the hosts that are logged in as them."""
