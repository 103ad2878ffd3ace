"""The DPU side: the daemon (control plane, Python) over the firmware (data plane, C).

`daemon` is the loop. A control call arrives through `sockets` as a message of `protocol` and is
answered in `control`; `tenants` identifies the caller. Blocks are written to the device of
`storage`, and copied to the `archive`, within the limits of `economics`. `config` holds the
settings, `watch` exports metrics and recordings, and `pod` contains what several daemons and their
hosts agree on. `firmware` moves every block.
"""
