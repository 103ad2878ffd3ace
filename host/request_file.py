"""`requests.parquet`: a row for every request of every run, the same bytes for the same records.

A column is a field of `RequestRecord`; `run` numbers the runs, which `RUNS_KEY` of the schema
describes. Parquet is an extra: `Missing` names it.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from offstage.bindings.durable import replacing
from offstage.bindings.errors import BadInput, needs
from offstage.bindings.outside import decode_json
from offstage.host.request_record import RequestRecord, ServedRun

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["REQUESTS_NAME", "Recorded", "read_requests", "write_requests"]

REQUESTS_NAME = "requests.parquet"
RUNS_KEY = b"offstage.requests"
FIX = "give a run that recorded its requests, or record it again"
Recorded = tuple[ServedRun, Sequence[RequestRecord]]


def write_requests(path: Path, runs: Sequence[Recorded]) -> None:
    """Write the records of these runs. RunFailed, BadInput: the file cannot be written."""
    needs("pyarrow", "parquet", str(path))
    import pyarrow as pa
    import pyarrow.parquet as pq

    about = msgspec.json.encode([run for run, _ in runs], order="deterministic")
    schema = _schema().with_metadata({RUNS_KEY: about})
    with replacing(path) as temporary, pq.ParquetWriter(temporary, schema) as writer:
        for number, (_, records) in enumerate(runs):
            rows = [{"run": number, **_row(one)} for one in records]
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))


def read_requests(path: Path) -> list[Recorded]:
    """The runs of a file, in order. BadInput: it is none, or was cut."""
    needs("pyarrow", "parquet", str(path))
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
        said = (table.schema.metadata or {}).get(RUNS_KEY)
        if said is None:
            raise BadInput("has no records of requests", str(path), FIX)
        runs = decode_json(said, str(path), FIX, list[ServedRun])
        own: list[list[RequestRecord]] = [[] for _ in runs]
        for row in table.to_pylist():
            own[row.pop("run")].append(msgspec.convert(row, RequestRecord))
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else "is not a Parquet file, or was cut"
        raise BadInput(reason, str(path), FIX) from None
    except (pa.ArrowException, msgspec.MsgspecError, LookupError) as error:
        line = " ".join(str(error).split()).rstrip(".")
        raise BadInput(f"cannot be read: {line}", str(path), FIX) from None
    return list(zip(runs, own, strict=True))


def _row(one: RequestRecord) -> dict[str, Any]:
    row = msgspec.structs.asdict(one)
    if one.found is not None:
        row["found"] = [msgspec.structs.asdict(each) for each in one.found]
    row["gaps_ns"] = [list(each) for each in one.gaps_ns]
    return row


def _schema() -> "pa.Schema":
    import pyarrow as pa

    found = pa.struct([("tier", pa.string()), ("tokens", pa.int64()), ("group", pa.string())])
    kinds = {
        "host": pa.int32(),
        "found": pa.list_(found),
        "gaps_ns": pa.list_(pa.list_(pa.int64(), 2)),
        "refused": pa.bool_(),
    }
    names = RequestRecord.__struct_fields__
    return pa.schema(
        [("run", pa.uint32()), *((name, kinds.get(name, pa.int64())) for name in names)]
    )
