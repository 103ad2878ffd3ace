"""How the tables are made: the points, the request lists, and what is kept of a run's answers.

The simulators stand outside the project. What decides a table stands here: which points are run,
when which piece arrives and where it lies, and what is computed from the times at which the
simulator said each piece ended. A run is the same on every machine.
"""
