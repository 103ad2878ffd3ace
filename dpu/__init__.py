"""The DPU side: the daemon (control plane, Python) over the firmware (data plane, C).

`daemon` is the loop. A control call comes in by `sockets`, is a message of `protocol`, and is
answered in `control`; `tenants` knows whose it is. What it writes goes to the device of `storage`,
and on to the `archive`, within what `economics` allows. `config` says how a daemon is set, `watch`
what is seen of it, `pod` what several daemons and their hosts agree on. `firmware` moves every
block.
"""
