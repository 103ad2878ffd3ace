"""Tenants, their secrets and bounds, and the hosts that are logged in for them."""
