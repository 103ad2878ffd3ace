"""Base types of the daemon's messages, and the types of their fields."""

from functools import reduce
from operator import or_
from typing import Annotated, ClassVar, Generic, Literal, TypeAlias, TypeVar, get_args

import msgspec
from msgspec import Meta

from offstage.bindings.errors import BadInput

Key = Annotated[bytes, Meta(min_length=16, max_length=16)]
Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Count = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
Session = Annotated[int, Meta(ge=0, le=0xFFFFFFFE)]  # the last number names none
Time = Annotated[int, Meta(ge=0, le=0x7FFFFFFFFFFFFFFF)]
Wait = Annotated[int, Meta(ge=0, le=3_600_000_000_000)]  # OFS_STEP_NS_MAX: an hour
Changes = Annotated[
    dict[Annotated[str, Meta(max_length=256)], Annotated[str, Meta(max_length=4096)]],
    Meta(max_length=64),
]
Setting: TypeAlias = bool | int | str | list[str]
"""A value of the configuration, with numbers in their plain unit."""
ErrorCode = Literal[
    "bad_message",
    "version",
    "unauthenticated",
    "forbidden",
    "unknown",
    "invalid",
    "limit",
    "draining",
    "busy",
    "store_full",
    "io",
    "timeout",
    "internal",
    "fenced",
    "foreign",
    "stale",
]
By = Literal["anyone", "host", "tenant", "attached", "owner", "operator"]
FabricName = Literal["shm", "verbs", "nixl", "zmq"]
SAID_MAX = 300  # most characters of the cause in a refusal, and so in the log
T = TypeVar("T")
M = TypeVar("M", bound="Message")
R = TypeVar("R", bound="Reply", covariant=True)


class Message(msgspec.Struct, tag=True, kw_only=True, forbid_unknown_fields=True):
    """`id` pairs a reply with its call; 0 where there is nothing to pair."""

    id: Count = 0


class Reply(Message, kw_only=True):
    """A reply of the daemon: every host can decode a type derived from this."""


class Call(Message, Generic[R], kw_only=True):
    """A control call, answered by `R` or by an error: a type derived from this is known to the
    daemon. `by` says who may make it, and is checked before the service's method is called:

    anyone: no login is needed. host: any login, a tenant's host or an operator.
    tenant: a tenant's host. attached: one that has a port. owner: the host that has `session`.
    operator: an operator; so is a call that does not say.
    """

    by: ClassVar[By] = "operator"

    @classmethod
    def reply(cls) -> type[R]:
        """The type of its reply."""
        kind: type[R] = get_args(vars(cls)["__orig_bases__"][0])[0]
        return kind

    @property
    def deletes(self) -> bool:
        """Whether this deletes blocks, so that its reply waits until they stay deleted."""
        return False


def decoder_of(base: type[M]) -> msgspec.msgpack.Decoder[M]:
    """A decoder of every type that is derived from `base` itself."""
    return msgspec.msgpack.Decoder(reduce(or_, base.__subclasses__()))


_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    """The msgpack bytes of one message."""
    return _encoder.encode(message)


def decode(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    """One message. Raises BadInput, and nothing else, for any bytes."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:  # too deep; a bad string
        said = str(error)[:SAID_MAX]  # it repeats names of any length that the sender chose
        raise BadInput(
            f"not a message of this protocol ({said})",
            f"{len(data)} bytes",
            "keep to the bounds that are named, or use the client of the same release",
        ) from None
