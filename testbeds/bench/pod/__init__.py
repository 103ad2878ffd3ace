"""A live pod under load with faults: what each fault costs, and whether all results were right.

`asks` generates the requests and their times, `host` sends them and checks every byte, `faults`
injects faults into the pod, `judge` computes figures and verdicts from the observations; `run`
and `hour` are the two modes.
"""
