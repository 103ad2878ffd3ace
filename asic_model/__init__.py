"""The cycle-approximate model of the KV ASIC behind the same memory map as the firmware.

`engine/` is its event engine in C, which knows units and routes and nothing of KV: Python drives it
through `offstage.bindings.chip`.
"""
