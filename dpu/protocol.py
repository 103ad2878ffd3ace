"""What a host and the daemon say to each other: msgpack messages over ZMQ, no pickle.

Control (DEALER to the daemon's ROUTER): a request is two frames, `[ticket][message]`, and a reply
is one, `[message]`. The ticket is empty until `Welcome` gives one; from then on it names the host,
so a reconnect or a second socket needs no new login. A reply has the `id` of its request.

    host                            daemon
    Hello(versions, ..., nonce)     Challenge(version, nonce, proof)   proof = prove_daemon(...)
    Prove(proof)                    Welcome(ticket, geometry, limits)   proof = prove(secret, ...)
    Attach(fabric)                  Attached(where, token)              now the blocks can flow
    Connect(blob)                   Ok                                  ... of verbs, from here on
    SessionOpen, Append, ...        Opened, Appended, ...
    Heartbeat                       Ok                                  or the host counts as dead

What fails comes back as `Error(code, what, where, mend)`. The ZMQ fabric's own socket
(`Attached.endpoint`) has the same shape plus one payload frame: see `FabricFetch`. Integers in
packed byte fields are little-endian; a key is 16 bytes, `lo` then `hi`.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from offstage.dpu.login import (
    OPERATOR,
    OPERATOR_SOCKET,
    VERSIONS,
    default_runtime_dir,
    prove,
    prove_daemon,
    prove_member,
)
from offstage.dpu.message import (
    Changes,
    Count,
    ErrorCode,
    FabricName,
    Geometry,
    Key,
    Limits,
    Name,
    Session,
    Time,
    Wait,
    decode,
)
from offstage.dpu.pod.exceptions import Answer, Hot, News, PerSecond, Tally

__all__ = [
    "FABRIC_REQUESTS_MAX",
    "OPERATOR",
    "OPERATOR_SOCKET",
    "VERSIONS",
    "Append",
    "Appended",
    "Attach",
    "Attached",
    "Challenge",
    "Connect",
    "Detach",
    "Drain",
    "Drained",
    "Error",
    "ErrorCode",
    "FabricFetch",
    "FabricFetchReply",
    "FabricHint",
    "FabricName",
    "FabricOpen",
    "FabricPut",
    "FabricPutReply",
    "FabricRelease",
    "FabricReply",
    "FabricRequest",
    "FabricShut",
    "Geometry",
    "Heartbeat",
    "Held",
    "Hello",
    "Hold",
    "Ledger",
    "LedgerReply",
    "Limits",
    "Ok",
    "Opened",
    "PolicyGet",
    "PolicyReply",
    "PolicySet",
    "Prove",
    "Purge",
    "Purged",
    "Reply",
    "Request",
    "Reset",
    "Segments",
    "SegmentsReply",
    "SessionClose",
    "SessionOpen",
    "SessionsOpen",
    "SessionsOpened",
    "SetGenerating",
    "Status",
    "StatusReply",
    "StorageMove",
    "Undrain",
    "Welcome",
    "decode_fabric_reply",
    "decode_fabric_request",
    "decode_reply",
    "decode_request",
    "default_runtime_dir",
    "encode",
    "prove",
    "prove_daemon",
    "prove_member",
]


class Message(msgspec.Struct, tag=True, kw_only=True, forbid_unknown_fields=True):
    """`id` pairs a reply with its request; 0 where there is nothing to pair."""

    id: Count = 0


# ---- requests ----


class Hello(Message, kw_only=True):
    """Opens a login: versions, name and tenant (or `operator`); the daemon proves the `nonce`."""

    versions: Annotated[list[Count], Meta(min_length=1, max_length=16)]
    name: Name
    tenant: Name
    nonce: Key


class Prove(Message, kw_only=True, omit_defaults=True):
    """Answers the challenge: `prove(secret, nonce, tenant, name)`. A host of a pod also says which
    life of the daemon it means, by the map of which epoch; all on this connection is for that."""

    nonce: Annotated[bytes, Meta(min_length=16, max_length=16)]
    proof: Annotated[bytes, Meta(min_length=32, max_length=32)]
    incarnation: Time = 0
    epoch: Time = 0


class Attach(Message, kw_only=True):
    """Asks for a port: `shm` on one machine, `verbs` over RDMA, `nixl` where both have it, `zmq`
    anywhere. `again`: the connection of its port was lost; its sessions go on over another."""

    fabric: FabricName = "shm"
    again: bool = False


class Connect(Message, kw_only=True):
    """What the host's end answers to the blob of its attach, where its fabric has an answer
    (verbs): blocks flow once the daemon has said Ok."""

    blob: Annotated[bytes, Meta(max_length=8192)]


class SessionOpen(Message, kw_only=True):
    """One decode stream. Counts are in blocks, `step_ns` is the expected time per token."""

    sink_blocks: Count = 1
    window_blocks: Count = 1
    select_blocks: Annotated[int, Meta(ge=1, le=0xFFFFFFFF)]
    step_ns: Wait = 0


class Append(Message, kw_only=True):
    """Adds chunks to a session, each named by the 128-bit hash of its own tokens."""

    session: Session
    contents: list[Key]


class SetGenerating(Message, kw_only=True):
    """A generating session is the last to lose its blocks."""

    session: Session
    generating: bool


class SessionClose(Message, kw_only=True):
    """`archive`: keep its blocks in the store for the next session with this prefix."""

    session: Session
    archive: bool = True


class SessionsOpen(Message, kw_only=True):
    """One session for each of `contents`, 16-byte hashes in a row, whose first guesses are needed
    in `due_ns`, after those of `closing` and `deleting` were closed, the latter without archive."""

    closing: list[Session] = []
    deleting: list[Session] = []
    select_blocks: Annotated[int, Meta(ge=1, le=0xFFFFFFFF)] = 1
    contents: list[bytes] = []
    keep: bool = True  # else closed again at once
    due_ns: Wait = 0


class Hold(Message, kw_only=True):
    """A member of a pod whom etcd does not answer asks another not to be taken out of the map; no
    login. `to`, `life`: whom it asks; `proof`: `prove_member`."""

    name: Name
    incarnation: Time
    to: Name
    life: Time
    nonce: Annotated[bytes, Meta(min_length=16, max_length=16)]
    proof: Annotated[bytes, Meta(min_length=32, max_length=32)]


class PolicySet(Message, kw_only=True):
    """Operator. Changes keys of the `[policy]` section, in the text form of the configuration."""

    changes: Changes


class PolicyGet(Message, kw_only=True):
    """Asks for the policy in force."""


class Status(Message, kw_only=True):
    """Asks how the daemon is; an operator sees all of it."""


class Ledger(Message, kw_only=True):
    """Asks for the counters of one tenant; "" is the host's own, or all of them for an operator."""

    tenant: Annotated[str, Meta(max_length=64)] = ""


class Segments(Message, kw_only=True, omit_defaults=True):
    """A host of a pod tells a member what it demanded there since it told last, in all (`served`)
    and of segments whose home that is (`news`), and asks what is kept of them. `hot_per_s`: also
    for those of that rate, and the pinned (0: not)."""

    served: Count = 0
    tally: Tally = Tally()
    news: Annotated[list[News], Meta(max_length=4096)] = []
    hot_per_s: PerSecond = 0.0


class Reset(Message, kw_only=True):
    """Operator. Drops what is staged, clean and not pinned, and zeroes the ledger."""


class Purge(Message, kw_only=True):
    """Archived chunks go, the coldest first, until so many blocks are left; `again`: goes on so."""

    tenant: Name
    keep_blocks: Time = 0
    again: bool = False


class Drain(Message, kw_only=True):
    """Operator. Refuse new work, flush write-back, and answer when all is on the store."""

    timeout_ns: Wait = 30_000_000_000


class Undrain(Message, kw_only=True):
    """Operator. Take new work again; a drain that still waits is answered as not done."""


class StorageMove(Message, kw_only=True):
    """Operator. Begin to move all blocks to another storage: `changes` of `[storage]`, as text."""

    changes: Changes


class FabricOpen(Message, kw_only=True):
    """Operator. Hosts may attach over this fabric from now on; zmq: listening at `endpoint`, or
    where the configuration says."""

    fabric: FabricName
    endpoint: Annotated[str, Meta(max_length=256)] = ""


class FabricShut(Message, kw_only=True):
    """Operator. No more hosts attach over this fabric; those that have go on."""

    fabric: FabricName


class Heartbeat(Message, kw_only=True):
    """A host that is silent for `Limits.host_timeout_ns` counts as dead."""


class Detach(Message, kw_only=True):
    """The host leaves: its sessions are closed and its ticket is void."""


# ---- replies ----


class Challenge(Message, kw_only=True):
    """What `prove_daemon` covers: `user` as the kernel names it, `fabric_key` in Z85 (or none)."""

    version: int
    nonce: bytes
    user: Count
    fabric_key: Annotated[bytes, Meta(max_length=40)]
    proof: bytes


class Welcome(Message, kw_only=True, omit_defaults=True):
    """The host is known. `epoch` differs at every start of the daemon. `lease_ns`: of the daemon's
    lease in its pod; 0: it has none."""

    ticket: bytes
    version: int
    epoch: int
    geometry: Geometry
    limits: Limits
    storage: str
    lease_ns: Time = 0


class Attached(Message, kw_only=True):
    """Where the blocks flow.

    `blob` is what the DPU's end of the fabric says to the host's end, opaque to all between. shm:
    connect to the Unix socket `socket_path`, send `token` and a newline, receive the descriptors
    that go with it. verbs: the blob is all, and is answered by `Connect`. nixl: the blob is all.
    zmq: `endpoint` is the fabric's ROUTER and `token` (hex) the ticket of every frame sent to it.
    Either token is for this host alone; shm's works once. The host sets `user` from its login.
    """

    fabric: FabricName
    token: str
    socket_path: str = ""
    endpoint: str = ""
    blob: bytes = b""
    payload_size_bytes: int
    demand_max: int
    user: int = -1


class Opened(Message, kw_only=True, omit_defaults=True):
    """`hints`: of a layer's scores the best so many are taken in (0: all), of one step in so many,
    and so many bits of each. None: all."""

    session: int
    hints: tuple[Count, Count, Count] | None = None


class Appended(Message, kw_only=True):
    """Per chunk: its directory key, and how many of its layers the store already has."""

    keys: list[Key]
    store_keys: list[Key]
    stored_layers: list[int]


class SessionsOpened(Message, kw_only=True, omit_defaults=True):
    """Per session number or -errno; keys, 16 B each; layers, u32 each. Do deletes last?"""

    sessions: list[int]
    keys: list[bytes]
    stored_layers: list[bytes]
    deleted: bool = True


class PolicyReply(Message, kw_only=True):
    policy: dict[str, Any]


class StatusReply(Message, kw_only=True):
    status: dict[str, Any]


class LedgerReply(Message, kw_only=True):
    """Counters by the field names of `struct ofs_ledger`; arrays are lists."""

    tenant: str
    ledger: dict[str, Any]


class SegmentsReply(Message, kw_only=True, omit_defaults=True):
    """`load`: demands per second of all hosts of the tenant there; an answer for each of `news`."""

    load: float
    answers: list[Answer] = []
    hot: list[Hot] = []


class Purged(Message, kw_only=True):
    """`struct ofs_purged`, of this message alone: asked again while there is `more`."""

    chunks: int
    blocks: int
    bytes: int
    more: int
    marking: int


class Drained(Message, kw_only=True):
    """`drained` false: the timeout came first, `dirty_blocks` are still only in memory; -1 where
    the reactor does not answer."""

    drained: bool
    dirty_blocks: int


class Held(Message, kw_only=True):
    """Promised, for a whole lease; `proof` covers the nonce of the question."""

    proof: bytes


class Ok(Message, kw_only=True):
    """Done."""


class Error(Message, kw_only=True):
    """`code` for programs, the rest for people: what happened, where, and the mend."""

    code: ErrorCode
    what: str
    where: str = ""
    mend: str = ""
    errno: int = 0


# ---- the ZMQ fabric ----

FABRIC_REQUESTS_MAX = 16  # of one host, unanswered at once; more are answered `busy`


class FabricFetch(Message, kw_only=True, omit_defaults=True):
    """Frames `[ticket][FabricFetch]`; the demands of one layer of one step.

    `ordinals` u32[n], `keys` 16 bytes each [n] (block keys), `scores` u16[] (empty: no hint), or
    `packed` (scores.h): flags, count and how many best of them, as in a command. The reply is
    `[FabricFetchReply][payload]`: n rows of `payload_size_bytes`, in demand order; the row of a
    block that failed is zeros.
    """

    session: Session
    step: Count
    layer: Count
    selected_count: Count
    ordinals: bytes
    keys: bytes
    scores: bytes = b""
    packed: tuple[Count, Count, Count] | None = None
    timeout_ns: Wait


class FabricPut(Message, kw_only=True):
    """Frames `[ticket][FabricPut][payload]`: n rows of `length_bytes` of one layer.

    `ordinals` u32[n]; `checksums` u64[n], XXH3-64 of each row: a row that was damaged on the way
    is answered -EBADMSG and not stored. At most `Limits.put_slot_count` rows fit in a message.
    """

    session: Session
    layer: Count
    length_bytes: Count
    ordinals: bytes
    checksums: bytes
    timeout_ns: Wait


class FabricHint(Message, kw_only=True):
    """Guesses for layers to come: `struct ofs_guess` [n], of 16 bytes each."""

    session: Session
    guesses: bytes


class FabricRelease(Message, kw_only=True):
    """Ends the session's pins now instead of at its next step."""

    session: Session


class FabricFetchReply(Message, kw_only=True):
    """Per demand: `ends` u8[n] (255 unknown), `rcs` i32[n], `lengths` u32[n], `checksums` u64[n].

    The checksum is the one that the driver beside the daemon verified; the host checks its row
    against it. `stall_ns` and `copy_ns` were measured beside the daemon, without the network.
    """

    ends: bytes
    rcs: bytes
    lengths: bytes
    checksums: bytes
    hit_count: int
    failed_count: int
    retry_count: int
    torn_count: int
    stall_ns: int
    copy_ns: int


class FabricPutReply(Message, kw_only=True):
    """`rcs` i32[n]: 0 or -errno of each block."""

    rcs: bytes


Request = (
    Hello
    | Prove
    | Attach
    | Connect
    | SessionOpen
    | Append
    | SetGenerating
    | SessionClose
    | PolicySet
    | PolicyGet
    | Status
    | Ledger
    | Reset
    | Drain
    | Undrain
    | StorageMove
    | FabricOpen
    | FabricShut
    | Heartbeat
    | Detach
    | SessionsOpen
    | Purge
    | Segments
    | Hold
)
Reply = (
    Challenge
    | Welcome
    | Attached
    | Opened
    | Appended
    | PolicyReply
    | StatusReply
    | LedgerReply
    | Drained
    | Ok
    | Error
    | SessionsOpened
    | Purged
    | SegmentsReply
    | Held
)
FabricRequest = FabricFetch | FabricPut | FabricHint | FabricRelease
FabricReply = FabricFetchReply | FabricPutReply | Ok | Error

_encoder = msgspec.msgpack.Encoder()
_request: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_reply: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
_fabric_request: msgspec.msgpack.Decoder[FabricRequest] = msgspec.msgpack.Decoder(FabricRequest)
_fabric_reply: msgspec.msgpack.Decoder[FabricReply] = msgspec.msgpack.Decoder(FabricReply)


def encode(message: Message) -> bytes:
    """The msgpack bytes of one message."""
    return _encoder.encode(message)


def decode_request(data: bytes) -> Request:
    """A request of the control socket. Raises BadInput, and nothing else, for any bytes."""
    return decode(_request, data)


def decode_reply(data: bytes) -> Reply:
    """A reply of the control socket. Raises BadInput, and nothing else, for any bytes."""
    return decode(_reply, data)


def decode_fabric_request(data: bytes) -> FabricRequest:
    """A request of the ZMQ fabric. Raises BadInput, and nothing else, for any bytes."""
    return decode(_fabric_request, data)


def decode_fabric_reply(data: bytes) -> FabricReply:
    """A reply of the ZMQ fabric. Raises BadInput, and nothing else, for any bytes."""
    return decode(_fabric_reply, data)
