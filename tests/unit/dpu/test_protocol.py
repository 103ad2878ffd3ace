"""Do messages survive encoding and decoding, and does all other input give one typed error?"""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect as info

from offstage.bindings.errors import BadInput
from offstage.bindings.layouts import constant
from offstage.dpu import protocol as p
from offstage.dpu.protocol import zmq_messages
from offstage.dpu.protocol.login import negotiate
from offstage.dpu.protocol.message import Call
from offstage.dpu.protocol.pod_calls import ShardReport

KEY = st.binary(min_size=16, max_size=16)
U32 = st.integers(0, 0xFFFFFFFF)
SESSION = st.integers(0, 0xFFFFFFFE)
REQUESTS = st.one_of(
    st.builds(
        p.Hello,
        id=U32,
        versions=st.lists(U32, min_size=1, max_size=16),
        name=st.just("host-1"),
        tenant=st.just("a.b"),
        nonce=KEY,
    ),
    st.builds(p.Prove, id=U32, nonce=KEY, proof=st.binary(min_size=32, max_size=32)),
    st.builds(p.Append, id=U32, session=SESSION, contents=st.lists(KEY, max_size=20)),
    st.builds(p.SessionOpen, id=U32, select_blocks=st.integers(1, 2**32 - 1), sink_blocks=U32),
    st.builds(
        p.PolicySet, id=U32, changes=st.dictionaries(st.text(max_size=9), st.text(), max_size=8)
    ),
    st.builds(p.Ledger, id=U32, tenant=st.text(max_size=30)),
    st.builds(
        p.Shards,
        id=U32,
        served=U32,
        hot_per_s=st.floats(0, 1e9),
        reports=st.lists(
            st.builds(ShardReport, name=KEY, demands=U32, made=st.text(max_size=64)), max_size=4
        ),
    ),
    st.builds(p.SetGenerating, session=SESSION, generating=st.booleans()),
    st.sampled_from([p.Status(), p.Heartbeat(id=3), p.Detach(), p.Reset(), p.Attach(fabric="zmq")]),
)
DECODERS = [
    p.decode_request,
    p.decode_reply,
    zmq_messages.decode_fabric_request,
    zmq_messages.decode_fabric_reply,
]


@given(REQUESTS)
def test_a_request_survives_the_wire(request: p.Request) -> None:
    """Every kind of message decodes to what was encoded."""
    assert p.decode_request(p.encode(request)) == request


@given(st.binary(max_size=300))
def test_random_bytes_are_one_typed_error(data: bytes) -> None:
    """No bytes make a decoder raise anything but BadInput."""
    for decode in DECODERS:
        with pytest.raises(BadInput) as raised:
            decode(data)
        assert "\n" not in str(raised.value)


@given(REQUESTS, st.data())
def test_a_damaged_request_decodes_or_is_refused(request: p.Request, data: st.DataObject) -> None:
    """Flipped bytes, cut ends and appended tails give a valid message or BadInput."""
    raw = bytearray(p.encode(request))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))]) + data.draw(st.binary(max_size=4))
    try:
        message = p.decode_request(cut)
    except BadInput as refused:
        assert "\n" not in str(refused)
    else:
        assert p.decode_request(p.encode(message)) == message


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=12,
    )
)
def test_well_formed_msgpack_of_another_shape_is_refused(value: object) -> None:
    """Valid msgpack that is no message is refused, with or without a known tag."""
    fields = value if isinstance(value, dict) else {"contents": value}
    for body in (value, {"type": "Append", **fields}):
        with pytest.raises(BadInput):
            p.decode_request(msgspec.msgpack.encode(body))


@pytest.mark.parametrize(
    "opener", [b"\x91", b"\x81\xa1a", b"\xdc\xff\xff", b"\xdf\xff\xff\xff\xff"]
)
def test_deep_nesting_and_huge_claimed_counts_are_refused(opener: bytes) -> None:
    """Deeply nested containers, or containers of a huge claimed size, end in the error, not a
    crash."""
    for decode in DECODERS:
        with pytest.raises(BadInput):
            decode(b"\x82\xa4type\xa6Append\xa8contents" + opener * 100_000)


def test_a_call_that_does_not_say_by_whom_is_the_operators() -> None:
    """Each call of the protocol declares its callers, so that none is granted by default."""
    assert Call.by == "operator"
    assert [one.__name__ for one in Call.__subclasses__() if "by" not in vars(one)] == []


def test_versions_meet_at_the_newest_common_one_or_not_at_all() -> None:
    """An unknown newer version is ignored, and an incompatible peer learns the supported
    versions."""
    assert negotiate([99, 6, 1]) == 6
    with pytest.raises(BadInput, match="the daemon \\[6\\]"):
        negotiate([5, 4])


def test_a_proof_is_bound_to_secret_nonce_tenant_and_name() -> None:
    """Changing any one of the four changes the proof."""
    parts: Any = (b"s" * 32, b"n" * 16, "tenant", "name")
    others = (b"S" * 32, b"N" * 16, "tenanT", "namE")
    proofs = {p.prove(*parts)}
    for index in range(4):
        changed: Any = list(parts)
        changed[index] = others[index]
        proofs.add(p.prove(*changed))
    proofs.add(p.prove(parts[0], parts[1], "tenant\0", "name"))
    assert len(proofs) == 6


def parts(found: info.Type, path: str) -> Iterator[tuple[str, info.Type]]:
    """Yield the parts of a field that a sender chooses: each number, text, run of bytes and list,
    at any depth."""
    if isinstance(found, info.StructType):
        for field in found.fields:
            yield from parts(field.type, f"{path}.{field.name}")
    elif isinstance(found, info.UnionType):
        for one in found.types:
            yield from parts(one, path)
    elif isinstance(found, info.TupleType):
        for number, one in enumerate(found.item_types):
            yield from parts(one, f"{path}[{number}]")
    else:
        yield path, found
    if isinstance(found, info.ListType):
        yield from parts(found.item_type, f"{path}[]")
    elif isinstance(found, info.DictType):
        yield from parts(found.key_type, f"{path} key")
        yield from parts(found.value_type, f"{path} value")


PARTS = {
    path: found
    for kind in (*p.CALLS, *zmq_messages.FabricRequest.__args__)
    for path, found in parts(info.type_info(kind), kind.__name__)
}
BOUNDED_BY = {
    "Append.contents": "limits.message, and the chunks of a session",
    "FabricFetch.ordinals": "limits.demands",
    "FabricFetch.keys": "limits.demands",
    "FabricFetch.scores": "the chunks of a session",
    "FabricPut.ordinals": "limits.put_slots",
    "FabricPut.checksums": "limits.put_slots",
    "FabricHint.guesses": "the frame, and the room in the port",
    "FabricValues.asks": "the frame, and demand_max",
}


@pytest.mark.parametrize("path", PARTS)
def test_every_part_of_a_request_has_bounds(path: str) -> None:
    """Each number below zero or too large for C is refused on arrival; each length is bounded by
    its type, or by the table's limit."""
    found = PARTS[path]
    if isinstance(found, info.IntType):
        assert found.ge is not None and found.ge >= 0
        assert found.le is not None and found.le < 2**63
    elif isinstance(found, info.FloatType):
        assert found.ge is not None and found.le is not None  # which refuses NaN too
    elif isinstance(found, info.StrType | info.BytesType | info.ListType | info.DictType):
        assert (found.max_length is None) == (path in BOUNDED_BY)
    else:
        assert isinstance(found, info.BoolType | info.LiteralType | info.NoneType)


def test_the_longest_pace_is_the_cores() -> None:
    """The core accepts every pace that the protocol accepts."""
    found = PARTS["SessionOpen.step_ns"]
    assert isinstance(found, info.IntType) and found.le == constant("OFS_STEP_NS_MAX")


@pytest.mark.parametrize(
    "message",
    [
        {"type": "x" * 100_000},
        {"type": "Status", "y" * 100_000: 1},
        {"type": "Attach", "fabric": "z" * 100_000},
    ],
)
def test_a_refusal_is_short_whatever_it_refuses(message: dict[str, object]) -> None:
    """No peer can make the daemon answer, or log, invented text of unlimited length."""
    with pytest.raises(BadInput) as raised:
        p.decode_request(msgspec.msgpack.encode(message))
    assert len(str(raised.value)) < 600


@pytest.mark.parametrize(
    "request_",
    [
        {"type": "SessionOpen", "select_blocks": 0},
        {"type": "SessionClose", "session": 2**32},
        {"type": "Drain", "timeout_ns": 3_600_000_000_001},
        {"type": "SessionOpen", "select_blocks": 1, "step_ns": 3_600_000_000_001},
        {"type": "SetGenerating", "session": 2**32 - 1, "generating": True},
        {"type": "Ledger", "tenant": "t" * 65},
        {"type": "PolicySet", "changes": {"k": "v" * 4097}},
    ],
)
def test_a_number_out_of_its_bounds_is_refused(request_: dict[str, object]) -> None:
    """The decoder refuses a count beyond u32 and a time beyond its limit."""
    with pytest.raises(BadInput):
        p.decode_request(msgspec.msgpack.encode(request_))
