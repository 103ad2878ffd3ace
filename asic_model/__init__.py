"""The cycle-approximate model of the KV ASIC behind the same memory map as the firmware.

`engine/` is its event engine in C. The engine knows units and routes, not KV; Python drives it
through `offstage.bindings.chip`.
"""
