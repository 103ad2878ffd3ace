"""The chip's command set, mapped to today's ring operations and core events.

Model: the interface is semantic. A command names KV by session, prefix, layer and head, and says
what the host will do with it: an intent, a priority, a lease; never an address. Every operation of
today's submission ring and every event of the decision core is part of one command, so that one
host driver can drive both; a test compares the table with the enums of the headers.
"""

from dataclasses import dataclass

__all__ = ["COMMANDS", "FIELDS", "Command", "rows"]

FIELDS: dict[str, str] = {
    "session": "one decode stream; the tenant is implied by the port, never a field",
    "prefix": "tokens from the front of the session, as a chain of keyed hashes",
    "layer": "of the model; a range where one command serves several",
    "head": "KV heads, as a bit mask; today's block holds all of them",
    "intent": "decode, prefill, archive or discard: what comes next, not what is stored",
    "priority": "within the tenant: demand, guess, background; with a deadline in time",
    "lease": "how long the answered blocks stay in place without a renewal",
}
"""The fields of a command, besides its name."""


@dataclass(frozen=True)
class Command:
    """One command. `ring`: of `enum ofs_op`; `calls`: of `enum ofs_event_type`, in lower case;
    `route`: its path through the chip."""

    name: str
    fields: tuple[str, ...]
    does: str
    ring: tuple[str, ...]
    calls: tuple[str, ...]
    adds: str
    route: str


COMMANDS = (
    Command(
        "OPEN",
        ("session", "intent", "lease"),
        "a session begins, resumes or is archived",
        ("values",),
        ("session_open", "generating"),
        "one descriptor instead of control messages; the intent says which sessions are the "
        "last victims",
        "command",
    ),
    Command(
        "EXTEND",
        ("session", "prefix"),
        "tokens are appended; find the known part of the prefix",
        (),
        ("append", "restore"),
        "the engine chains and looks up the hashes, and takes references in the same pass",
        "command",
    ),
    Command(
        "FETCH",
        ("session", "layer", "head", "priority", "lease"),
        "the blocks of a selection: those on the die immediately, the rest as they land",
        ("step",),
        ("step", "io_done", "slot_free"),
        "hits are sent by the chip, so the host needs no directory and no second read; heads "
        "that a kernel does not read are left out",
        "command, hit, read",
    ),
    Command(
        "HINT",
        ("session", "layer", "intent", "priority"),
        "scores and guesses: which blocks will be fetched, when, with what probability",
        ("hint",),
        ("hint", "tick"),
        "scores stream into the candidate table in hardware; it is bounded, and what "
        "comes while it is full is dropped and counted",
        "command",
    ),
    Command(
        "PUT",
        ("session", "prefix", "layer", "head", "priority"),
        "blocks to keep: hashed, deduplicated, compressed, written",
        ("put",),
        ("stage", "stored", "clean"),
        "hash, reference count and codec at the rate of the link; an equal prefix is not "
        "written twice",
        "write",
    ),
    Command(
        "RELEASE",
        ("session", "layer", "lease"),
        "pins end now, not at the next fetch",
        ("release",),
        ("release",),
        "leases end by themselves on the chip's clock",
        "command",
    ),
    Command(
        "CLOSE",
        ("session", "intent"),
        "references are dropped; if archived, the prefix stays reusable",
        (),
        ("close", "drop"),
        "counts are decremented in the background, in rate-limited scans",
        "command",
    ),
    Command(
        "FORGET",
        ("prefix", "layer"),
        "an expired or failed block is removed from the table",
        (),
        ("lost", "forget"),
        "a failed check in the codec or DMA raises it without software",
        "command",
    ),
    Command(
        "CONFIGURE",
        ("priority",),
        "tenants with their weights, the policy, a cold start",
        (),
        ("open", "tenant", "policy", "reset"),
        "weights and buckets are registers of the arbiter; telemetry counters are read from "
        "the same page",
        "command",
    ),
    Command(
        "FENCE",
        (),
        "completes when all earlier commands have",
        ("nop",),
        (),
        "ordering across engines, which a single thread got for free",
        "command",
    ),
)


def rows() -> list[dict[str, str]]:
    """The table, as shown by the docs page and `offstage asic commands`."""
    return [
        {
            "command": one.name,
            "fields": ", ".join(one.fields),
            "does": one.does,
            "today": ", ".join([*(f"ring {name}" for name in one.ring), *one.calls]),
            "hardware adds": one.adds,
            "route": one.route,
        }
        for one in COMMANDS
    ]
