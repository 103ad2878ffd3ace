"""The hardware units of chip and DPU: one file each, from parameters to units of the engine.

Every file starts with what the hardware does, its pipeline, its initiation interval, its state, and
what happens when it is full. Its functions turn a preset's numbers into `Unit`s of `bindings.chip`
and into the `Stage`s of routes through them; `asic_model/chip.py` combines these. Nothing here
decides anything.
"""
