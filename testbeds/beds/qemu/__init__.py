"""Two virtual machines on this one: an x86 GPU node and an aarch64 DPU, made of Debian packages.

`images` builds what a guest boots, once, into the user's cache; `guest` runs one guest and commands
in it; `wheel` builds Offstage for a guest; `pair` links two guests and `session` is what
`offstage testbed` does with them. QEMU emulates both processors: what it shows is that the software
works on an Arm DPU behind a network, never how fast.
"""
