"""A live pod under load while something of it fails: what it costs, and whether all was right.

`asks` says what is asked and when, `host` asks it and checks every byte, `faults` does something to
the pod, `judge` makes figures and verdicts of what was seen; `run` and `hour` are the two ways to
run it.
"""
