"""The hardware units of chip and DPU: one file each, from parameters to units of the engine.

Every file opens with what the hardware does, its pipeline, how often it can begin (initiation
interval), what state it has, and what happens when it is full. Its functions turn a preset's
numbers into `Unit`s of `bindings.chip` and into the `Stage`s by which routes pass through them;
`asic_model/chip.py` puts these together. Nothing here decides anything.
"""
