"""Does a layer fetch for a whole batch at once, check every block, and attend to the right
bytes?"""

import errno
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from decode_world import KV, LAYERS, RETAINED, RULE, SELECT, SHAPE, FakeFabric, World
from hypothesis import given
from hypothesis import strategies as st
from later_arrays import LaterArrays

from offstage.bindings.errors import BadInput, RunFailed
from offstage.host.arrays import Arrays, open_arrays
from offstage.host.decode.layer import Decoder
from offstage.host.decode.pool import HbmPool
from offstage.host.decode.record import Token
from offstage.host.decode.tail_block import TailBlock, write_tokens
from offstage.host.decode.timeline import Span, Timeline, merged
from offstage.host.gpu import interpreted
from offstage.host.model.layer_kv import LayerKv
from offstage.host.model.models import geometry


def torch_staged() -> Arrays:
    pytest.importorskip("torch", reason="pip install '.[host]'")
    from offstage.host.arrays.torch_arrays import TorchArrays

    return TorchArrays("cpu", staged=True)


def torch_cpu() -> Arrays:
    pytest.importorskip("torch", reason="pip install '.[host]'")
    return open_arrays("torch")


@pytest.mark.parametrize("arrays", [open_arrays, LaterArrays, torch_cpu, torch_staged])
@pytest.mark.parametrize("last_first", [False, True])
@pytest.mark.parametrize("calls_max", [8, 2, 1])
def test_the_kernel_reads_what_prefill_wrote(arrays: Any, last_first: bool, calls_max: int) -> None:
    """On every array library, in whatever order fetches end, many at a time or one."""
    world = World(FakeFabric(calls_max=calls_max, last_first=last_first), arrays())
    record = world.run()
    demands = sum(token.demands for token in record.tokens)
    assert record.blocks_verified == demands > 0 and record.blocks_corrupt == 0
    assert sum(int(token.ends[RETAINED]) for token in record.tokens) == demands
    assert world.attended == sum(token.selected for token in record.tokens) > demands
    assert record.attention_checked == 3 * LAYERS * 3 and record.attention_error_max < 1e-4
    assert record.blocks_recomputed == 0
    read = sum(token.selected for token in record.tokens) * SHAPE.block_bytes(0)
    assert 0.5 * read < record.kernel_bytes < read and record.kernel_ns > 0


@pytest.mark.parametrize("arrays", [open_arrays, LaterArrays])
def test_what_is_predicted_is_fetched_ahead_and_the_rest_when_it_is_due(arrays: Any) -> None:
    """An exactly predicted layer demands nothing more when it is due, except a block that did not
    arrive. No block counts as selected twice."""
    world = World(FakeFabric(lose=0), arrays(), sessions=[0])
    (session,), control = world.sessions, None
    tail = TailBlock(control, world.decoder, lambda o: 7 << 96 | o)  # type: ignore[arg-type]
    token = Token(0, 0)
    tail.begin_token(session)
    query = KV.queries(0, 1).next(0, session.block_count(SHAPE))
    scores = session.context.selectors[1].scores(query)
    ordinals = world.decoder.chosen(scores, scores.size)
    coming = world.decoder.begin_predicted([(session, token, (None, ordinals))], 1, world.record)
    (ahead,) = [ordinals for *_, ordinals in world.fabric.demands]
    assert len(ahead) == SELECT and token.selected == 0
    write_tokens(world.pool, [(session, tail)], 1)
    world.decoder.end_predicted(coming, world.record)
    due = world.decoder.begin([(session, token)], 1, world.record)
    world.decoder.attend(due, world.record)
    *_, again = world.fabric.demands[1]
    assert ahead[0] in again and len(again) <= 2
    assert token.selected == SELECT
    assert world.record.blocks_verified == len(ahead) - 1 + len(again)


@pytest.mark.parametrize("name", ["tiny", "tiny-mla"])
def test_the_gpus_kernels_decode_what_the_host_decodes(name: str) -> None:
    """Bounds, scores, selection and attention run in Triton's interpreter, over K and V and over
    latents, with sessions of different lengths. Every step's demands equal the host's, and every
    output equals dense attention over the same blocks."""
    pytest.importorskip("torch", reason="pip install '.[host]'")
    pytest.importorskip("triton", reason="pip install '.[triton]'")
    if not interpreted():
        pytest.skip("a GPU is there: python tests/gpu/run_all.py checks it")
    shape = geometry(name)
    host = World(FakeFabric(), sessions=[1, 2], shape=shape)
    host.run(2)
    world = World(FakeFabric(), torch_cpu(), sessions=[1, 2], kernel="triton", shape=shape)
    record = world.run(2)
    assert world.decoder._finders, "nothing was selected on the device"
    assert world.fabric.demands == host.fabric.demands
    checked = 2 * shape.layer_count * 2
    assert record.attention_checked == checked and record.attention_error_max < 1e-2


@pytest.mark.parametrize("kernel", ["numpy", "torch", "triton"])
def test_a_layer_that_selects_tokens_attends_to_the_best_of_what_was_fetched(kernel: str) -> None:
    """Is just `top_k` read of each session, of the blocks that block selection demands anyway, and
    are they those of greatest attention? Every output equals dense attention over them."""
    if kernel != "numpy":
        pytest.importorskip("torch", reason="pip install '.[host]'")
    if kernel == "triton" and not interpreted():
        pytest.skip("a GPU is there: python tests/gpu/run_all.py checks it")
    shape = geometry("tiny-dsa")
    arrays = open_arrays("numpy" if kernel == "numpy" else "torch")
    whole = World(
        FakeFabric(), sessions=[1, 2], shape=geometry("tiny-mla"), selector="mass"
    )  # the same latents: KV is drawn from the seed, not from the name
    plain = whole.run(2)
    world = World(
        FakeFabric(), arrays, sessions=[1, 2], kernel=kernel, shape=shape, selector="mass"
    )
    record = world.run(2)
    assert world.fabric.demands == whole.fabric.demands and whole.slots is None
    calls = 2 * shape.layer_count * 2
    top_k = shape.layers[0].token_top_k
    assert world.attended == calls * top_k and world.slots.shape == (2, top_k)
    assert record.kernel_bytes == calls * top_k * shape.entry_bytes(0) < plain.kernel_bytes
    assert record.attention_checked == calls
    assert record.attention_error_max < (1e-2 if kernel == "triton" else 1e-4)


@pytest.mark.parametrize("window", [32, 37, 1000])
@pytest.mark.parametrize("kernel", ["numpy", "torch", "triton"])
def test_a_window_is_read_whole_and_nothing_behind_it(kernel: str, window: int) -> None:
    """Of sessions of different lengths in one batch: are the demands of a layer with a window the
    window's blocks, the tokens attended the window's, and is nothing behind it in the pool? Every
    output, with sink logits in one layer, equals dense attention over those tokens."""
    if kernel != "numpy":
        pytest.importorskip("torch", reason="pip install '.[host]'")
    if kernel == "triton" and not interpreted():
        pytest.skip("a GPU is there: python tests/gpu/run_all.py checks it")
    layers = LayerKv("gqa", 2, 32), LayerKv("window", 2, 32, window_tokens=window)
    shape = replace(SHAPE, layers=layers)
    arrays = open_arrays("numpy" if kernel == "numpy" else "torch")
    world = World(FakeFabric(), arrays, kernel=kernel, shape=shape, room=30, landing_rows=90)
    world.decoder.sink_logits = {1: np.linspace(-1, 9, shape.q_heads, dtype=np.float32)}
    lengths = [one.length_tokens for one in world.sessions]
    # Within one block; the window of 37 leaves a block behind. The interpreter is slow.
    steps = 2 if kernel == "triton" else 15
    record = world.run(steps)
    demanded: dict[int, set[int]] = {number: set() for number in range(3)}
    for number, step, layer, ordinals in world.fabric.demands:
        if layer == 1 and ordinals:
            demanded[number] |= set(ordinals)
            assert min(ordinals) >= max(0, lengths[number] + step + 1 - window) // 16
    for number, length in enumerate(lengths):
        first = max(0, length + 1 - window) // 16
        assert demanded[number] == set(range(first, length // 16))
        left = world.pool.resident(number, 1)
        assert left.min() == max(0, length + steps - window) // 16
    assert record.attention_checked == 3 * 2 * steps
    assert record.attention_error_max < (1e-2 if kernel == "triton" else 1e-4)


@pytest.mark.parametrize("kernel", ["numpy", "torch", "triton"])
def test_what_an_indexer_selected_is_demanded_and_read_and_nothing_else(kernel: str) -> None:
    """Of a batch with selections of two sizes, the newest token among them: are the demands the
    blocks of the selected tokens, whatever a query would score, are these tokens alone attended,
    and does the tier hear which blocks they are in? Every output equals dense attention over
    them."""
    if kernel != "numpy":
        pytest.importorskip("torch", reason="pip install '.[host]'")
    if kernel == "triton" and not interpreted():
        pytest.skip("a GPU is there: python tests/gpu/run_all.py checks it")
    shape, arrays = geometry("tiny-dsa"), open_arrays("numpy" if kernel == "numpy" else "torch")
    world = World(FakeFabric(), arrays, sessions=[1, 2], kernel=kernel, shape=shape, room=24)
    draw, hints = np.random.default_rng(3), {}
    for session, count in zip(world.sessions, (20, 9), strict=True):
        older = draw.choice(session.length_tokens, count, replace=False)
        own = np.sort(np.append(older, session.length_tokens)).astype(np.int32)
        session.tokens = {layer: own for layer in range(shape.layer_count)}
    world.decoder.observe = lambda session, layer, _, hint: hints.update({session.number: hint})
    record = world.run(2)
    rows = [session.tokens[0] for session in world.sessions]
    assert world.attended == 2 * shape.layer_count * sum(map(len, rows))
    for session, own, slots in zip(world.sessions, rows, world.slots, strict=True):
        assert (slots[: own.size] == own % 16).all()
        stored = np.bincount(own // 16)[:-1]  # without the tail block
        found = [one for number, *_, one in world.fabric.demands if number == session.number]
        assert found[: shape.layer_count] == [np.flatnonzero(stored).tolist()] * shape.layer_count
        assert found[shape.layer_count :] == [[]] * shape.layer_count, "the pool has them now"
        hint = hints[session.number]
        assert hint.size == stored.size
        assert (hint[stored > 0] > hint[stored == 0].max()).all()
        assert (hint[stored > 1] > hint[stored == 1].max()).all()
    assert record.attention_checked == 2 * 2 * shape.layer_count
    assert record.attention_error_max < (1e-2 if kernel == "triton" else 1e-4)


@pytest.mark.parametrize("change", [{"top_k": 1000}, {"top_k": 0}, {"granule_entries": 4}])
def test_whole_blocks_are_attended_where_no_single_tokens_are_selected(
    change: dict[str, int],
) -> None:
    """A top k above what was fetched, none, and one of several neighbours: no slots are given."""
    shape = geometry("tiny-dsa")
    layers = tuple(replace(one, **change) for one in shape.layers)
    world = World(FakeFabric(), shape=replace(shape, layers=layers), selector="mass")
    world.run(1)
    assert world.slots is None and world.attended == 3 * shape.layer_count * SELECT
    quest = World(FakeFabric(), shape=shape)
    quest.run(1)
    assert quest.slots is None, "bounds of blocks weigh no token"


def test_one_layer_of_all_sessions_is_asked_for_together() -> None:
    """Every session's demands are in flight before the first wait. They begin in batch order,
    however many fit and in whatever order they end."""
    world = World(FakeFabric())
    world.run(1)
    layer = [("begin", n) for n in range(3)] + [("end", n) for n in range(3)]
    assert world.fabric.calls == layer * LAYERS
    few = World(FakeFabric(calls_max=2, last_first=True))
    few.run(1)
    assert few.fabric.calls[:4] == [("begin", 0), ("begin", 1), ("end", 1), ("begin", 2)]
    assert few.fabric.demands == world.fabric.demands


def test_few_landing_rows_make_fetches_wait_for_each_other() -> None:
    """With rows for only one selection, a fetch begins once the one before it is committed."""
    world = World(FakeFabric(), LaterArrays(), landing_rows=SELECT)
    world.run(1)
    assert [call for call, _ in world.fabric.calls[:4]] == ["begin", "end", "begin", "end"]
    with pytest.raises(RunFailed, match="landing row"):
        World(FakeFabric(), LaterArrays(), landing_rows=2).run(1)


def test_a_sessions_demands_do_not_depend_on_other_sessions() -> None:
    together = World(FakeFabric(calls_max=2, last_first=True))
    together.run(4)
    for number in range(3):
        alone = World(FakeFabric(), sessions=[number])
        alone.run(4)
        own = [demand for demand in together.fabric.demands if demand[0] == number]
        assert own == alone.fabric.demands


@pytest.mark.parametrize("which", [0, 2, 5])
def test_a_block_that_is_not_what_prefill_wrote_is_counted(which: int) -> None:
    """Its checksum matches its bytes, so only the comparison with prefill's bytes detects it."""
    world = World(FakeFabric(spoil=which))
    world.decoder._decode = world._kernel  # the watched kernel would stop at the damage
    record = world.run(1)
    demands = sum(token.demands for token in record.tokens)
    assert record.blocks_corrupt == 1 and record.blocks_verified == demands - 1


def test_a_block_that_does_not_come_is_computed_again_used_and_written() -> None:
    """It counts neither as verified nor as an end, and is put once no fetch is in flight."""
    fabric = FakeFabric(lose=1)
    world = World(fabric)
    record = world.run(1)
    demands = sum(token.demands for token in record.tokens)
    assert record.blocks_recomputed == 1 and record.blocks_corrupt == 0
    assert record.blocks_verified == demands - 1 == sum(int(t.ends.sum()) for t in record.tokens)
    assert fabric.calls[:7] == [
        ("begin", 0),
        ("begin", 1),
        ("begin", 2),
        ("end", 0),
        ("end", 1),
        ("end", 2),
        ("put", 1),
    ]


def test_a_pod_without_members_costs_recomputation_and_any_other_refusal_is_an_error() -> None:
    """While leases lapse no member takes the recomputed block; a full store is not like that."""
    record = World(FakeFabric(lose=1, refuse=errno.EHOSTDOWN)).run(2)
    assert record.blocks_recomputed == 1 and len(record.tokens) == 6
    with pytest.raises(RunFailed, match="EIO"):
        World(FakeFabric(lose=1, refuse=errno.EIO)).run(1)


def test_all_tokens_of_a_batch_have_waited_what_the_batch_waited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fetches end at 100, 200 and 300, having waited 150 each: the wait is -50 to 300 in each
    layer."""
    world = timed_world(monkeypatch)
    record = world.run(1)
    assert [token.stall_ns for token in record.tokens] == [350 * LAYERS] * 3
    assert [token.copy_ns for token in record.tokens] == [7 * LAYERS] * 3


def timed_world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Every poll takes 100 and ends one fetch; nothing else takes time."""
    world, now = World(FakeFabric(stall_ns=150)), [1_000]
    poll = world.fabric.poll

    def slow_poll(timeout_ns: int = 0) -> list[Any]:
        now[0] += 100
        return poll(timeout_ns)

    monkeypatch.setattr(world.fabric, "poll", slow_poll)
    monkeypatch.setattr(world.decoder.clock, "now_ns", lambda: now[0])
    return world


def test_a_layer_ahead_demands_the_same_and_stalls_only_when_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the first layer waits from before it is due: 350, the others 300 each. The demands,
    their order, and what the kernel reads do not change; the spans agree."""
    plain = World(FakeFabric())
    plain.run(2)
    world = timed_world(monkeypatch)
    record = world.run(2, ahead=True)
    assert world.fabric.demands == plain.fabric.demands
    assert world.attended == plain.attended > 0
    assert record.attention_error_max < 1e-3
    first = [token.stall_ns for token in record.tokens[:3]]
    assert first == [350 + 300 * (LAYERS - 1)] * 3


def test_a_fetch_that_arrives_during_compute_adds_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer whose blocks arrive while the previous one computes does not stall."""
    world = timed_world(monkeypatch)
    control: Any = None
    tails = [TailBlock(control, world.decoder, lambda o: 7 << 96 | o) for _ in world.sessions]
    active = list(zip(world.sessions, tails, strict=True))
    tokens = [Token(session.number, 0) for session in world.sessions]
    for session, tail in active:
        tail.begin_token(session)
    write_tokens(world.pool, active, 0)
    world.record.timeline.begin_tick()
    batch = list(zip(world.sessions, tokens, strict=True))
    coming = world.decoder.begin(batch, 0, world.record, early=True)
    world.decoder.tend(coming, 5_000, world.record)
    assert not coming.flying and not world.fabric.flying
    world.decoder.attend(coming, world.record)
    assert [token.stall_ns for token in tokens] == [0, 0, 0] and world.attended > 0
    number, spans = world.record.timeline.shown()
    lanes = [span.lane for span in spans]
    assert number == 0 and lanes.count("fetch") == 3 and "stall" not in lanes


class StampedArrays(LaterArrays):
    """A device whose marks are 1,000 apart, independent of the host's clock."""

    source = "the test"

    def __init__(self) -> None:
        self.marks = 0

    def stamps(self) -> Any:
        return self

    def mark(self) -> int:
        self.marks += 1_000
        return self.marks

    def ns(self, mark: int) -> int:
        return mark


@pytest.mark.parametrize("ahead", [False, True])
def test_on_a_device_the_stall_is_what_its_stream_waited(ahead: bool) -> None:
    """The stall is the time between the device's marks around a layer's wait, once for each layer
    and session, even though the host waited 150 for each fetch."""
    world = World(FakeFabric(stall_ns=150), StampedArrays())
    world.record.timeline.begin_tick()
    record = world.run(1, ahead)
    assert [token.stall_ns for token in record.tokens] == [1_000 * LAYERS] * 3
    spans = [span for span in record.timeline.ticks[0] if span.lane in ("stall", "compute")]
    assert len(spans) == 2 * LAYERS
    assert all(span.end_ns - span.begin_ns == 1_000 for span in spans)
    assert record.timeline.source.startswith("the test; ")


def test_of_a_timeline_the_tick_of_a_long_stall_is_shown() -> None:
    """The tick at the 90th percentile is shown with its own spans; spans outside ticks belong to
    none."""
    timeline = Timeline()
    timeline.add("stall", 0, 0, 1_000)
    assert timeline.shown() == (0, [])
    for number in range(10):
        timeline.begin_tick()
        timeline.add("stall", 0, 0, 10 * ((number + 3) % 10))
        timeline.add("compute", 1, 5, 5)
    assert timeline.shown() == (6, [Span("stall", 0, 0, 90)])


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=8))
def test_covered_time_is_what_at_least_one_span_covers(spans: list[tuple[int, int]]) -> None:
    ends = [(begin, begin + length) for begin, length in spans]
    seen = {at for begin, end in ends for at in range(begin, end)}
    assert sum(end - begin for begin, end in merged(ends)) == len(seen)


def test_a_kernel_needs_a_pool_of_its_own_arrays() -> None:
    pool = HbmPool(SHAPE, 8)
    with pytest.raises(BadInput, match="torch kernel does not read blocks in numpy"):
        Decoder(World(FakeFabric()).decoder.driver, pool, KV, RULE, "torch")
