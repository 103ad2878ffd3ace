"""The control calls that a host makes of the daemon: msgpack messages over ZMQ, no pickle.

Control (DEALER to the daemon's ROUTER): a call is two frames, `[ticket][message]`, and a reply is
one, `[message]`. The ticket is empty until `Welcome` gives one; from then on it names the host, so
a second socket, or one that connects again, needs no new login. A reply has the `id` of its call.

    host                            daemon
    Hello(versions, ..., nonce)     Challenge(version, nonce, proof)   proof = prove_daemon(...)
    Prove(proof)                    Welcome(ticket, geometry, limits)   proof = prove(secret, ...)
    Attach(fabric)                  Attached(where, token)              now the blocks can flow
    Connect(blob)                   Ok                                  ... of verbs, from here on
    SessionOpen, Append, ...        Opened, Appended, ...
    Heartbeat                       Ok                                  or the host counts as dead

A call that fails is answered with `Error(code, what, where, fix)`. A call is added by deriving it
from `Call` here, with the reply that answers it, and writing its method in `control/service.py`:
its docstring is its row in docs/reference/protocol.md. Integers in packed byte fields are
little-endian; a key is 16 bytes, `lo` then `hi`.
"""

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from offstage.dpu.protocol.login import OPERATOR as OPERATOR
from offstage.dpu.protocol.login import OPERATOR_SOCKET as OPERATOR_SOCKET
from offstage.dpu.protocol.login import VERSIONS as VERSIONS
from offstage.dpu.protocol.login import default_runtime_dir as default_runtime_dir
from offstage.dpu.protocol.login import prove as prove
from offstage.dpu.protocol.login import prove_daemon as prove_daemon
from offstage.dpu.protocol.login import prove_member as prove_member
from offstage.dpu.protocol.message import (
    By,
    Changes,
    Count,
    Key,
    Name,
    Session,
    Setting,
    Time,
    Wait,
    decode,
    decoder_of,
)
from offstage.dpu.protocol.message import Call as Call
from offstage.dpu.protocol.message import ErrorCode as ErrorCode
from offstage.dpu.protocol.message import FabricName as FabricName
from offstage.dpu.protocol.message import Reply as Reply
from offstage.dpu.protocol.message import encode as encode
from offstage.dpu.protocol.pod_calls import Answer, Hot, PerSecond, ShardReport, Tally
from offstage.dpu.protocol.status import ArchivedLedger, DaemonStatus

Request = Call[Any]


class Ok(Reply, kw_only=True):
    """Done."""


class Error(Reply, kw_only=True):
    """`code` for programs, the rest for people: what happened, where, and how to fix it."""

    code: ErrorCode
    what: str
    where: str = ""
    fix: str = ""
    errno: int = 0


# ---- login ----


class Geometry(msgspec.Struct, kw_only=True):
    """The layout of a block on this daemon, and how many fit in the tenant's arena."""

    payload_size_bytes: int
    layer_count: int
    block_tokens: int
    slot_count: int
    lba_size_bytes: int
    granule_tokens: int = 0  # of the parts of a block that may be read; 0: whole blocks only


class Limits(msgspec.Struct, kw_only=True):
    """Limits that the daemon enforces."""

    message_size_bytes_max: int
    session_max: int
    session_chunk_max: int
    demand_max: int
    score_max: int
    put_slot_count: int
    host_timeout_ns: int


class Challenge(Reply, kw_only=True):
    """What `prove_daemon` covers: `user` as the kernel names it, `fabric_key` in Z85 (or none)."""

    version: int
    nonce: bytes
    user: Count
    fabric_key: Annotated[bytes, Meta(max_length=40)]
    proof: bytes


class Hello(Call[Challenge], kw_only=True):
    """Begins a login with a tenant's name or `operator`. The daemon takes the newest common
    version and proves itself; its nonce expires after 10 s and belongs to the connection."""

    by: ClassVar[By] = "anyone"
    versions: Annotated[list[Count], Meta(min_length=1, max_length=16)]
    name: Name
    tenant: Name
    nonce: Key


class Welcome(Reply, kw_only=True, omit_defaults=True):
    """The host is logged in. `boot_id` differs at every start of the daemon. `lease_ns`: the
    daemon's lease in its pod; 0: none."""

    ticket: bytes
    version: int
    boot_id: int
    geometry: Geometry
    limits: Limits
    storage: str
    lease_ns: Time = 0


class Prove(Call[Welcome], kw_only=True, omit_defaults=True):
    """Ends the login: `proof` is `prove(secret, nonce, tenant, name)`, and a nonce counts once. A
    host of a pod also names the incarnation of the daemon that it addresses, and the epoch of the
    map that it read; the connection is valid for these only."""

    by: ClassVar[By] = "anyone"
    nonce: Annotated[bytes, Meta(min_length=16, max_length=16)]
    proof: Annotated[bytes, Meta(min_length=32, max_length=32)]
    incarnation: Time = 0
    epoch: Time = 0


class Heartbeat(Call[Ok], kw_only=True):
    """The host is alive. Any call counts; a host silent for `Limits.host_timeout_ns` counts as
    dead."""

    by: ClassVar[By] = "host"


class Detach(Call[Ok], kw_only=True):
    """The host leaves: its sessions are closed and its ticket is void."""

    by: ClassVar[By] = "host"


# ---- ports ----


class Attached(Reply, kw_only=True):
    """Where the blocks flow.

    `blob` goes from the DPU's end of the fabric to the host's end, opaque in between. shm:
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


class Attach(Call[Attached], kw_only=True):
    """Asks for a port: `shm` on one machine, `verbs` over RDMA, `nixl` where both sides have it,
    `zmq` anywhere. With `again` the port's connection was lost (`verbs`): its sessions go on over
    another one."""

    by: ClassVar[By] = "tenant"
    fabric: FabricName = "shm"
    again: bool = False


class Connect(Call[Ok], kw_only=True):
    """The reply of the host's end of `verbs` to the blob of its attach. Blocks flow once the daemon
    has replied."""

    by: ClassVar[By] = "attached"
    blob: Annotated[bytes, Meta(max_length=8192)]


# ---- sessions ----


class Opened(Reply, kw_only=True, omit_defaults=True):
    """`hints`: how many of a layer's best scores are used (0: all), one step in how many, and how
    many bits of each. None: all."""

    session: int
    hints: tuple[Count, Count, Count] | None = None


class SessionOpen(Call[Opened], kw_only=True):
    """Opens a session, one decode stream. Counts are in blocks; `step_ns` is the expected time per
    token. Where a tenant's users do not share, the host must have fetched its descriptors first."""

    by: ClassVar[By] = "attached"
    sink_blocks: Count = 1
    window_blocks: Count = 1
    select_blocks: Annotated[int, Meta(ge=1, le=0xFFFFFFFF)]
    step_ns: Wait = 0


class Appended(Reply, kw_only=True):
    """Per chunk: its directory key, and how many of its layers the store already has."""

    keys: list[Key]
    store_keys: list[Key]
    stored_layers: list[int]


class Append(Call[Appended], kw_only=True):
    """Adds chunks to a session, each named by the 128-bit hash of its own tokens. `stored_layers`
    says what need not be recomputed."""

    by: ClassVar[By] = "owner"
    session: Session
    contents: list[Key]


class SetGenerating(Call[Ok], kw_only=True):
    """Blocks of a generating session are evicted last."""

    by: ClassVar[By] = "owner"
    session: Session
    generating: bool


class SessionClose(Call[Ok], kw_only=True):
    """Closes a session. With `keep` its blocks stay in the store for the next session with this
    prefix; without it those that no other session names are deleted, and the reply waits until
    they stay deleted."""

    by: ClassVar[By] = "owner"
    session: Session
    keep: bool = True

    @property
    def deletes(self) -> bool:
        """See `Call`."""
        return not self.keep


# ---- policy and figures ----


class PolicyReply(Reply, kw_only=True):
    """The policy in force, by key of `[policy]`."""

    policy: dict[str, Setting]


class PolicyGet(Call[PolicyReply], kw_only=True):
    """Asks for the policy in force."""

    by: ClassVar[By] = "host"


class PolicySet(Call[PolicyReply], kw_only=True):
    """Changes keys of `[policy]`, and shares and quotas of tenants, each as text of the
    configuration. All of them change, or none."""

    by: ClassVar[By] = "operator"
    changes: Changes


class StatusReply(Reply, kw_only=True):
    """The status visible to the host."""

    status: DaemonStatus


class Status(Call[StatusReply], kw_only=True):
    """Asks for the daemon's status. An operator sees hosts, device and counters; a tenant's host
    sees its quotas, how many hosts the tenant has attached, and what the store holds."""

    by: ClassVar[By] = "host"


class LedgerReply(Reply, kw_only=True):
    """Counters by the field names of `struct ofs_ledger`; arrays are lists."""

    tenant: str
    ledger: ArchivedLedger


class Ledger(Call[LedgerReply], kw_only=True):
    """Asks for the counters of one tenant. "" is the host's own tenant, or all of them for an
    operator. A tenant's host sees its own alone."""

    by: ClassVar[By] = "host"

    tenant: Annotated[str, Meta(max_length=64)] = ""


# ---- what an operator changes ----


class Reset(Call[Ok], kw_only=True):
    """Drops what is staged, clean and not pinned, and zeroes the ledger."""

    by: ClassVar[By] = "operator"


class Purged(Reply, kw_only=True):
    """`struct ofs_purged`, of this message alone: asked again while there is `more`."""

    chunks: int
    blocks: int
    bytes: int
    more: int
    marking: int


class Purge(Call[Purged], kw_only=True):
    """Drops a tenant's kept chunks, the coldest first, until `keep_blocks` blocks are left. A
    tenant's host may purge its own tenant. Each message does one batch; call `again` while there is
    `more`, or `marking`: writes that keep the chunks from coming back and, with `keep_blocks` 0,
    their reads and writes. Chunks that a session names stay."""

    by: ClassVar[By] = "host"

    tenant: Name
    keep_blocks: Time = 0
    again: bool = False


class Drained(Reply, kw_only=True):
    """`drained` false: the timeout came first, `dirty_blocks` are still only in memory; -1 where
    the reactor does not answer."""

    drained: bool
    dirty_blocks: int


class Drain(Call[Drained], kw_only=True):
    """Refuses new work and flushes what is only in memory. Answered when all of it is on the store,
    or after the timeout."""

    by: ClassVar[By] = "operator"
    timeout_ns: Wait = 30_000_000_000


class Undrain(Call[Ok], kw_only=True):
    """Admits new work again. A pending drain is answered as not done."""

    by: ClassVar[By] = "operator"


class StorageMove(Call[Ok], kw_only=True):
    """Moves all blocks to another storage; `changes` are keys of `[storage]` as text. Answered when
    the move has begun."""

    by: ClassVar[By] = "operator"
    changes: Changes


class Dismissed(Reply, kw_only=True):
    """The number of hosts of that name."""

    hosts: int


class Dismiss(Call[Dismissed], kw_only=True):
    """Ends the logins of a tenant's hosts of this name, as if they had died: their sessions are
    closed and their ports are free. Their blocks stay in the store."""

    by: ClassVar[By] = "operator"
    tenant: Name
    name: Name


class FabricOpen(Call[Ok], kw_only=True):
    """Opens this fabric to hosts. zmq listens at `endpoint`, or at the configured one."""

    by: ClassVar[By] = "operator"
    fabric: FabricName
    endpoint: Annotated[str, Meta(max_length=256)] = ""


class FabricShut(Call[Ok], kw_only=True):
    """Closes this fabric to new hosts. Attached hosts continue."""

    by: ClassVar[By] = "operator"
    fabric: FabricName


# ---- in a pod ----


class ShardsReply(Reply, kw_only=True, omit_defaults=True):
    """`load`: demands per second there of all the tenant's hosts; `answers`: one per report."""

    load: float
    answers: list[Answer] = msgspec.field(default_factory=list)
    hot: list[Hot] = msgspec.field(default_factory=list)


class Shards(Call[ShardsReply], kw_only=True, omit_defaults=True):
    """A host of a pod reports its demands here since its last report: in total (`served`), and of
    shards whose home this is (`reports`). The reply says which members have copies of each, whether
    to make or delete one, and the load here. `hot_per_s` asks for the shards of that rate and
    the pinned; 0: for none."""

    by: ClassVar[By] = "tenant"
    served: Count = 0
    tally: Tally = Tally()
    reports: Annotated[list[ShardReport], Meta(max_length=4096)] = msgspec.field(
        default_factory=list
    )
    hot_per_s: PerSecond = 0.0


class Held(Reply, kw_only=True):
    """Promised, for a whole lease; `proof` covers the nonce of the question."""

    proof: bytes


class Hold(Call[Held], kw_only=True):
    """A member of a pod that cannot reach etcd asks another member not to take it out of the map.
    `to` and `to_incarnation` name the member asked; both sides authenticate by the pod's
    secret (`prove_member`)."""

    by: ClassVar[By] = "anyone"
    name: Name
    incarnation: Time
    to: Name
    to_incarnation: Time
    nonce: Annotated[bytes, Meta(min_length=16, max_length=16)]
    proof: Annotated[bytes, Meta(min_length=32, max_length=32)]


CALLS: tuple[type[Request], ...] = tuple(Call.__subclasses__())
_call = decoder_of(Call)
_reply = decoder_of(Reply)


def decode_request(data: bytes) -> Request:
    """A call of the control socket. Raises BadInput, and nothing else, for any bytes."""
    return decode(_call, data)


def decode_reply(data: bytes) -> Reply:
    """A reply of the control socket. Raises BadInput, and nothing else, for any bytes."""
    return decode(_reply, data)
