"""What each session of a run got: its tokens, its reads, and what the chip's arbiter counted of it.

Model: fetches and reads are the account's, made in Python as the run went on; grants and waits are
counters of the arbiter, one entry for each session of its table, as software would read them off
the chip. Nothing here can fail.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from offstage.asic_model.account import PS, Account
from offstage.asic_model.result import SessionRun
from offstage.bindings.chip import NOBODY, Chip

__all__ = ["by_session"]

ARBITER = "qos"


def by_session(account: Account, chip: Chip, block_bytes: int) -> list[SessionRun]:
    """A row for each session that fetched or had anything read, by number; None, the last, for
    what was done for none of them, if anything was."""
    found: dict[int | None, dict[str, Any]] = {}
    for session, row in _fetched(account):
        found[session] = row
    for number, count in account.readers.items():
        row = found.setdefault(None if number == NOBODY else number, {"tenant": 0})
        row["reads"], row["bytes_read"] = count, count * block_bytes
    for entry, counted in _granted(chip):
        into = found.setdefault(entry, {"tenant": 0})
        if entry is not None:
            into["tenant"] = counted["tenant"]
        _add(into, counted)
    order = sorted(found, key=lambda one: NOBODY if one is None else one)
    return [_closed(session, found[session]) for session in order]


def _fetched(account: Account) -> Iterator[tuple[int, dict[str, Any]]]:
    token = np.array([one.token for one in account.fetches], np.int64)
    spans = np.array([one.end_ps - one.begin_ps for one in account.fetches], np.int64)
    waited = np.array([one.waited for one in account.fetches], bool)
    missed = account.missed(token)
    of_token = np.array(account.sessions, np.int64)
    of_fetch = of_token[token]
    for session, tenant in account.tenants.items():
        own, mine = of_fetch == session, of_token == session
        yield (
            session,
            {
                "tenant": tenant,
                "tokens": int(mine.sum()),
                "deadlines_missed": int(missed[mine].sum()),
                "fetches": int(own.sum()),
                "fetch_ns_mean": float(spans[own].mean()) / PS if own.any() else 0.0,
                "stall_ns": int(spans[own & waited].sum()) / PS,
            },
        )


def _granted(chip: Chip) -> Iterator[tuple[int | None, dict[str, Any]]]:
    """By entry of the arbiter's table; the last, for a tenant each, are those of sessions without
    one. A DPU has no arbiter."""
    if ARBITER not in [unit.name for unit in chip.network.units]:
        return
    for row in chip.session_stats(ARBITER):
        assert row["tenant"] is not None
        yield (
            row["session"],
            {
                "tenant": row["tenant"],
                "granted": row["taken"],
                "granted_bytes": row["taken_bytes"],
                "refused": row["refused"],
                "waiting_max": row["waiting_max"],
                "wait_ns_max": (row["wait_ps_max"] or 0) / PS,
                "_wait_ps": row["wait_ps_sum"],
            },
        )


def _add(into: dict[str, Any], row: dict[str, Any]) -> None:
    for name in ("granted", "granted_bytes", "refused", "_wait_ps"):
        into[name] = into.get(name, 0) + row[name]
    for name in ("waiting_max", "wait_ns_max"):
        into[name] = max(into.get(name, 0), row[name])


def _closed(session: int | None, row: dict[str, Any]) -> SessionRun:
    wait_ps = row.pop("_wait_ps", 0)
    mean_ns = wait_ps / PS / row["granted"] if row.get("granted") else 0.0
    return SessionRun(session=session, wait_ns_mean=mean_ns, **row)
