"""The ledger of a lab run: one row for every (session, step, layer), and what is computed from it.

The C engine writes the rows; `ledger.parquet` keeps them with the seed and the point beside them.
Every figure of a report is computed from these rows and the core's counters of the run.
"""

from offstage.bindings.engine import ROW

__all__ = ["ROW"]
