"""Records of vLLM's requests, as its scheduler sees them, in a file when the engine ends.

Moments are of the scheduler's process, from the connector's start on; a token is there when the
scheduler learns that its step has ended. Owned by the scheduler's thread. A request that is aborted
before its first token leaves no record, nor do the oldest beyond `RECORDS_MAX`.
"""

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from offstage.bindings.durable import writable
from offstage.bindings.errors import BadInput, needs
from offstage.host.connectors.vllm.steps import There
from offstage.host.request_file import write_requests
from offstage.host.request_record import Found, RequestRecord, ServedRun, Used

__all__ = ["RequestLog", "log_of"]

RECORDS_MAX = 1 << 18
BY_COUNTER = "the scheduler learns that a load failed, and not why: see the connector's counters"
ENGINE = "the engine's own, which the connector does not see"
RUN = ServedRun(
    label="vLLM",
    provenance="measured",
    used=Used(absent=dict.fromkeys(("gpu", "link", "dpu_cores", "drive", "hbm_pool"), ENGINE)),
    absent=dict.fromkeys(("unreadable_blocks", "late_blocks"), BY_COUNTER),
)


def log_of(path: object) -> "RequestLog | None":
    """The log of the setting `requests`; None without it. BadInput, Missing: no path that can be
    written, or no library for it."""
    if path is None:
        return None
    if not isinstance(path, str) or not path:
        raise BadInput(f"requests is {path!r}", "OffstageConnector", "write the path of a file")
    needs("pyarrow", "parquet", "OffstageConnector")
    return RequestLog(writable(Path(path)) or Path(path))


class RequestLog:
    """`now_ns`: the clock of its moments."""

    def __init__(self, path: Path, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._path, self._now, self._begun_ns = path, now_ns, now_ns()
        self._numbers = 0
        self._open: dict[str, tuple[Any, RequestRecord]] = {}
        self._ended: deque[RequestRecord] = deque(maxlen=RECORDS_MAX)
        self._loading: list[RequestRecord] = []
        self._steps: dict[int, tuple[list[RequestRecord], list[RequestRecord]]] = {}
        """By step: the requests that it gives a token, and those that it loads for."""

    def arrive(self, request: Any) -> None:
        """A request has arrived."""
        record = RequestRecord(
            request=self._numbers, input_tokens=request.num_tokens, arrival_ns=self._at()
        )
        self._numbers += 1
        self._open[request.request_id] = request, record

    def asked(self, request_id: str) -> None:
        """Its prefix is looked up; later lookups are for what was not there yet."""
        record = self._record(request_id)
        if record is not None and record.asked_ns is None:
            record.asked_ns = self._at()

    def matched(self, request_id: str, engine: int, tier: int, absent: int, wasted: int) -> None:
        """Tokens that vLLM and behind them the tier had; blocks of the prompt that neither had, and
        those of the tier that are computed all the same."""
        record = self._record(request_id)
        if record is not None and record.scheduled_ns is None:
            record.found = [Found("engine", engine), Found("tier", tier)]
            record.absent_blocks, record.wasted_blocks = absent, wasted

    def loads(self, request_id: str) -> None:
        """The next step loads for it."""
        record = self._record(request_id)
        if record is not None:
            self._loading.append(record)

    def landed(self, request_id: str, there: There) -> None:
        """A piece of an asynchronous load has ended."""
        record = self._record(request_id)
        if record is not None:
            self._there(record, there)

    def step(self, number: int, computed: dict[str, int]) -> None:
        """A step begins; `computed`: tokens of each of its requests after it. One that has all of
        its tokens computed gets the next one."""
        tokens = []
        for request_id, count in computed.items():
            if request_id not in self._open:
                continue
            request, record = self._open[request_id]
            if record.scheduled_ns is None:
                record.host, record.scheduled_ns = 0, self._at()
            if count >= request.num_tokens:
                tokens.append(record)
        self._steps[number] = tokens, self._loading
        self._loading = []

    def step_ended(self, number: int, there: There) -> None:
        """The scheduler learns that a step has ended, and when its loads were there."""
        tokens, loading = self._steps.pop(number, ([], []))
        for record in loading:
            self._there(record, there)
        for record in tokens:
            if record.first_token_ns is None:
                record.prefilled_ns = self._at()
            record.token_at(self._at())

    def finish(self, request_id: str) -> None:
        """A request has ended; vLLM says so before it says that the step of its last token has."""
        _, record = self._open.pop(request_id, (None, None))
        if record is not None:
            self._ended.append(record)

    def write(self) -> None:
        """Write all that have ended. RunFailed: the disk refuses."""
        ended = [one for one in self._ended if one.end_ns is not None]
        for record in ended:
            record.output_tokens = 1 + sum(count for _, count in record.gaps_ns)
        write_requests(self._path, [(RUN, ended)])

    def _there(self, record: RequestRecord, there: There) -> None:
        """Blocks of a load were there, the first of them and the last."""
        now_ns, asked_ns = self._at(), record.asked_ns or 0
        if there.first_s is not None and record.first_block_ns is None:
            record.first_block_ns = max(asked_ns, now_ns - int(there.first_s * 1e9))
        if there.last_s is not None:
            last_ns = max(asked_ns, now_ns - int(there.last_s * 1e9))
            record.last_block_ns = max(record.last_block_ns or 0, last_ns)

    def _record(self, request_id: str) -> RequestRecord | None:
        found = self._open.get(request_id)
        return None if found is None else found[1]

    def _at(self) -> int:
        return self._now() - self._begun_ns
