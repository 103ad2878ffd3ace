"""Rivals of a DPU with flash, at equal cost: `offstage rivals`."""
