"""The host side: what runs beside the GPU.

A block is shaped by `model`, chosen by `selection`, and read in a `decode` step: from a daemon by
one of the `fabrics` over its `link`, or from several by `pod`. `transfers` bring it into the
`arrays` of the pool, and a kernel of `attention` or `gpu` reads it there. `agent` decodes sessions
that are drawn, `transformer` a real model; `connectors` serve the objects of an engine. `endpoint`
says which daemon, `baselines` are what a host has without one.
"""
