"""Connectors of engines to the tier: one module per engine, over one client of whole objects.

Every engine's module uses `objects`; `mover` is the thread below it. Engines are not installed with
Offstage, and importing a module here imports nothing of theirs: an engine loads its connector by
the name in its configuration.
"""
