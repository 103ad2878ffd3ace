"""The host side: the code that runs next to the GPU.

`model` gives a block its shape, `selection` selects it, and a `decode` step reads it: from a daemon
through one of the `fabrics` over its `link`, or from several daemons through `pod`. `transfers`
copy it into the `arrays` of the pool, where a kernel of `attention` or `gpu` reads it. `agent`
decodes synthetic sessions, `transformer` a real model; `connectors` store an engine's objects.
`endpoint` names the daemon; `baselines` are hosts without one.
"""
