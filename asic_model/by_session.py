"""Per-session results of a run: tokens, reads, and the counts of the chip's arbiter.

Model: fetches and reads come from the account, kept in Python during the run; grants and waits are
counters of the arbiter, one entry per session of its table, as software would read them from the
chip. Nothing here can fail.
"""

from collections import Counter
from collections.abc import Iterator

import msgspec
import numpy as np

from offstage.asic_model.account import PS, Account
from offstage.asic_model.result import SessionRun
from offstage.bindings.chip import NO_NUMBER, Chip
from offstage.bindings.ledger import share

__all__ = ["by_session"]

ARBITER = "qos"


def by_session(account: Account, chip: Chip, block_bytes: int) -> list[SessionRun]:
    """A row for each session that fetched or had reads, by number; the last, None, for work done
    for no session, if any."""
    found: dict[int | None, SessionRun] = {one.session: one for one in _fetched(account)}
    waited_ps: Counter[int | None] = Counter()

    def add(session: int | None, **more: int | float) -> None:
        own = found.get(session, SessionRun(session=session, tenant=0))
        found[session] = msgspec.structs.replace(own, **more)

    for number, count in account.readers.items():
        add(None if number == NO_NUMBER else number, reads=count, bytes_read=count * block_bytes)
    # By entry of the arbiter's table; the last ones, one per tenant, are for sessions without an
    # entry. A DPU has no arbiter.
    arbited = ARBITER in [unit.name for unit in chip.network.units]
    for row in chip.session_stats(ARBITER) if arbited else ():
        session, counts = row["session"], {name: value or 0 for name, value in row.items()}
        own = found.get(session, SessionRun(session=session, tenant=0))
        waited_ps[session] += counts["wait_ps_sum"]
        add(
            session,
            tenant=own.tenant if session is None else counts["tenant"],
            granted=own.granted + counts["taken"],
            granted_bytes=own.granted_bytes + counts["taken_bytes"],
            refused=own.refused + counts["refused"],
            waiting_max=max(own.waiting_max, counts["waiting_max"]),
            wait_ns_max=max(own.wait_ns_max, counts["wait_ps_max"] / PS),
        )
    for session, wait_ps in waited_ps.items():
        add(session, wait_ns_mean=share(wait_ps / PS, found[session].granted))
    return [found[one] for one in sorted(found, key=lambda one: NO_NUMBER if one is None else one)]


def _fetched(account: Account) -> Iterator[SessionRun]:
    token = np.array([one.token for one in account.fetches], np.int64)
    spans = np.array([one.end_ps - one.begin_ps for one in account.fetches], np.int64)
    waited = np.array([one.waited for one in account.fetches], bool)
    missed = account.missed(token)
    of_token = np.array(account.sessions, np.int64)
    of_fetch = of_token[token]
    for session, tenant in account.tenants.items():
        own, mine = of_fetch == session, of_token == session
        yield SessionRun(
            session=session,
            tenant=tenant,
            tokens=int(mine.sum()),
            deadlines_missed=int(missed[mine].sum()),
            fetches=int(own.sum()),
            fetch_ns_mean=float(spans[own].mean()) / PS if own.any() else 0.0,
            stall_ns=int(spans[own & waited].sum()) / PS,
        )
