"""Two virtual machines on this one: an x86 GPU node and an aarch64 DPU, built from Debian packages.

`images` builds a guest's boot files once, into the user's cache; `guest` runs one guest and
commands in it; `wheel` builds Offstage for a guest; `pair` links two guests; `session`
implements `offstage testbed`. QEMU emulates both processors: the bed shows that the software
works on an Arm DPU behind a network, never how fast.
"""
