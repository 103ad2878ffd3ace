"""Makes the tables: the points, the request lists, and the rows kept of each run.

The simulators are not part of the project. Everything that determines a table is here: which points
are run, when each piece arrives and where it lies, and what is computed from the completion times
that the simulator reports. A run is the same on every machine.
"""
