"""Sweeps over the chip model."""
