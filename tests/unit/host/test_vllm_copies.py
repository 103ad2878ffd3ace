"""Do the workers of the vLLM connector copy out, send, load and skip the right blocks?

Runs over stand-ins for the tier and for vLLM's memory.
"""

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm_stand_ins import Memory, one_step

from offstage.bindings.errors import BadInput
from offstage.host.connectors.objects import Completion, State
from offstage.host.connectors.vllm import copies as copies_module
from offstage.host.connectors.vllm import loads
from offstage.host.connectors.vllm.copies import Copies
from offstage.host.connectors.vllm.keys import shards
from offstage.host.connectors.vllm.steps import Step, There
from offstage.host.model.identity import digest_of, files_of


def copies(
    memory: Memory, fill: int, by_layer: bool = True, **more: Any
) -> tuple[Copies, list[Any]]:
    """Return a worker with two layers of 6 blocks: 4 bytes a block in one part, 24 in two."""
    torch = pytest.importorskip("torch")
    layers = [
        torch.arange(6, dtype=torch.int32).reshape(6, 1, 1, 1) + fill,
        torch.arange(72, dtype=torch.bfloat16).reshape(12, 1, 2, 3) + fill,
    ]
    worker = Copies(memory, 28, by_layer=by_layer, **more)  # type: ignore[arg-type]
    worker.register(layers, 6)
    return worker, layers


@pytest.mark.parametrize("by_layer", [True, False])
def test_what_is_saved_is_loaded_into_other_blocks(by_layer: bool) -> None:
    """All layers of a block come back, only into the blocks for which they are loaded."""
    memory = Memory()
    worker, layers = copies(memory, 0, by_layer)
    one_step(worker, Step(saves=[([b"a", b"b"], [0, 4, 2])]))
    assert sorted(memory.objects) == [b"a", b"b"] and len(memory.objects[b"a"]) == 28
    other, loaded = copies(memory, 100, by_layer)
    before = [one.clone() for one in loaded]
    one_step(other, Step(loads=[(b"a", 1), (b"b", 5)]))
    assert other.failed() == set()
    for trio in zip(before, loaded, layers, strict=True):
        was, now, source = (one.unflatten(0, (6, -1)) for one in trio)
        assert (now[[1, 5]] == source[[4, 2]]).all()
        assert (now[[0, 2, 3, 4]] == was[[0, 2, 3, 4]]).all()


def test_a_load_is_waited_for_at_its_begin_and_once_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the decision learns of a load of 1 s to begin and 4 s to end is 5 s."""
    now, memory = [0.0], Memory()
    get, lost = memory.get, loads.Load.lost

    def after(seconds: float, call: Any) -> Any:
        def called(*args: Any, **more: Any) -> Any:
            now[0] += seconds
            return call(*args, **more)

        return called

    worker, _ = copies(memory, 0)
    memory.objects[b"a"] = bytes(28)
    monkeypatch.setattr(copies_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(memory, "get", after(1.0, get))
    monkeypatch.setattr(loads.Load, "lost", after(4.0, lost))
    step = Step(loads=[(b"a", 1)])
    one_step(worker, step)
    assert worker.report(step).waited_s == 5.0


def test_a_layer_goes_out_before_the_next_is_computed() -> None:
    """Each layer is sent as it stands when it is computed, and the object is there after the
    last."""
    memory = Memory()
    worker, layers = copies(memory, 0)
    step = Step(saves=[([b"a"], [0])])
    worker.load(step)
    worker.save_layer(step, 0)
    layers[0] += 1000  # as the next step may do
    assert memory.order == ["sent 4"] and not memory.objects
    worker.save_layer(step, 1)
    assert not memory.objects
    worker.end(step)
    assert memory.objects[b"a"][:4] == bytes(4)
    memory.unended[0][1](Completion(1, (State.DONE,), ("",)))
    assert worker.report(step).stored == [b"a"] and worker.report(step).stored == []


def test_layers_that_were_not_waited_for_did_not_load() -> None:
    """If the model runs without asking for its layers, all blocks are computed again."""
    memory = Memory()
    worker, _ = copies(memory, 0)
    one_step(worker, Step(saves=[([b"a"], [0])]))
    step = Step(loads=[(b"a", 1)])
    worker.load(step)
    worker.end(step)
    assert worker.failed() == {1}


def test_nothing_computed_from_a_block_that_failed_is_saved() -> None:
    """The failure is reported once, its memory is unchanged, and no request with that block is
    saved until it was noted."""
    memory = Memory()
    worker, layers = copies(memory, 0)
    before = layers[0].clone()
    saves = [([b"a"], [3, 4]), ([b"b"], [1, 2])]
    one_step(worker, Step(loads=[(b"x", 3)], saves=saves))
    assert worker.failed() == {3} and worker.failed() == set()
    assert (layers[0] == before).all()
    assert sorted(memory.objects) == [b"b"]
    one_step(worker, Step(saves=saves))
    assert sorted(memory.objects) == [b"b"], "the scheduler has not noted it"
    one_step(worker, Step(noted={3}, saves=saves))
    assert sorted(memory.objects) == [b"a", b"b"]


@pytest.mark.parametrize("by_layer", [True, False])
def test_a_step_whose_adapter_has_changed_moves_nothing(by_layer: bool, tmp_path: Path) -> None:
    """Its files are not those that the keys name: nothing of the step is loaded or stored, even if
    they change while it is computed."""
    (tmp_path / "adapter_model.safetensors").write_bytes(b"1")
    adapter = digest_of(files_of(str(tmp_path)))
    memory = Memory()
    worker, layers = copies(memory, 0, by_layer)
    one_step(worker, Step(saves=[([b"a"], [0])], adapters=[adapter]))
    assert sorted(memory.objects) == [b"a"]
    step = Step(saves=[([b"b"], [2])], adapters=[adapter])
    worker.load(step)
    worker.save_layer(step, 0)
    time.sleep(0.02)  # file times have the resolution of a clock tick
    (tmp_path / "adapter_model.safetensors").write_bytes(b"2")
    worker.save_layer(step, 1)
    worker.end(step)
    before = layers[0].clone()
    one_step(worker, Step(loads=[(b"a", 1)], adapters=[adapter]))
    assert worker.failed() == {1} and (layers[0] == before).all()
    assert sorted(memory.objects) == [b"a"]


@pytest.mark.parametrize("by_layer", [True, False])
def test_no_worker_stores_what_another_could_not_load(by_layer: bool) -> None:
    """If one of two workers misses its part of a block, the other stores nothing of the request
    either until the scheduler has taken note. Each keeps its own keys."""
    memory, failed = Memory(), [set[int](), {1}]
    workers = [
        copies(
            memory, 0, by_layer, rank=rank, parts=2, agree=lambda mine: failed[0] | failed[1] | mine
        )[0]
        for rank in range(2)
    ]
    memory.objects = {key: bytes(28) for key in shards([b"a"], 2)[:1]}
    step = Step(loads=[(b"a", 1)], saves=[([b"b"], [1, 2])])
    for worker, lost in zip(workers, failed, strict=True):
        one_step(worker, step)
        assert worker.failed() == lost
    assert not memory.unended
    for worker in workers:
        one_step(worker, Step(noted={1}, saves=[([b"b"], [1, 2])]))
    assert sorted(memory.objects)[1:] == shards([b"b"], 2)


def test_an_object_on_its_way_is_not_stored_twice() -> None:
    """It is skipped until its put has ended, as when two requests have one prefix."""
    memory = Memory()
    worker, _ = copies(memory, 0)
    for _ in range(2):
        one_step(worker, Step(saves=[([b"a"], [1])]))
    assert len(memory.unended) == 1
    memory.unended[0][1](Completion(1, (State.DONE,), ("",)))
    one_step(worker, Step(saves=[([b"a"], [1])]))
    assert len(memory.unended) == 2


def test_a_step_is_timed_from_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step's time includes the model's, even if vLLM begins loads after the model ran."""
    now = [10.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("offstage.host.connectors.vllm.copies.time", clock)
    worker, _ = copies(Memory(), 0)
    for first in (True, False):
        step = Step(tokens=32)
        worker.begin()
        if first:
            worker.load(step)
        for layer in range(2):
            worker.save_layer(step, layer)
            now[0] += 1.5
        if not first:
            worker.load(step)
        worker.end(step)
        assert worker.report(step).took_s == 3.0
        now[0] += 9.0


def test_another_size_is_refused() -> None:
    """Memory whose objects differ in size from those that the scheduler looks up is refused."""
    torch = pytest.importorskip("torch")
    with pytest.raises(BadInput, match="has 20 bytes here and 28"):
        Copies(None, 28).register([torch.zeros(6, 1, 1, 1), torch.zeros(12, 1, 1, 2)], 6)


@pytest.mark.parametrize("told_late", ["", "at once", "while it is waited for"])
def test_a_load_that_never_ends_is_computed(told_late: str) -> None:
    """With a frozen daemon a step goes on at its deadline, or once the object client says that it
    has passed. All of the load's blocks are named and counted, and none is written, though the load
    ends later."""
    memory, told = Memory(), list[Any]()
    worker, layers = copies(memory, 0)

    def never(keys: list[bytes], buffers: Any, **more: Any) -> None:
        told.append((buffers, more))
        assert more["within_s"] <= (600.0 if told_late else 0.01)

        def end() -> None:
            more["tell"](Completion(1, (State.DONE, State.LATE), ("", "")))
            for part in range(2):
                more["landed"](part, frozenset({1}))

        if told_late:
            timer = threading.Timer(0.1, end)
            timer.run() if told_late == "at once" else timer.start()

    memory.get = never  # type: ignore[method-assign]
    before = [one.clone() for one in layers]
    patience_s = 600.0 if told_late else 0.01
    one_step(worker, Step(loads=[(b"a", 1), (b"b", 5)], patience_s=patience_s))
    assert worker.failed() == {1, 5} and worker.counts["load_late_blocks"] == 2
    for buffer in told[0][0]:
        buffer[:] = 99
    told[0][1]["landed"](0, frozenset())
    told[0][1]["tell"](Completion(1, (State.DONE,) * 2, ("", "")))
    assert all((one == was).all() for one, was in zip(layers, before, strict=True))


@pytest.mark.parametrize("late", [False, True])
def test_no_step_waits_for_a_load_apart(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps go on during an asynchronous load. Nothing of it is written before all of it has
    arrived, and its request is reported once, with its time. If it arrives too late, the request is
    computed and nothing is written."""
    memory, told = Memory(), list[Any]()
    worker, layers = copies(memory, 0)
    monkeypatch.setattr(memory, "get", lambda _, *told_of, **more: told.append((*told_of, more)))
    before = [one.clone() for one in layers]
    step = Step(number=7, apart=[("r", [(b"a", 1), (b"b", 5)], 0.01 if late else 30.0)])
    one_step(worker, step)
    [(buffers, more)] = told
    assert more["within_s"] <= (0.01 if late else 30.0) and worker._load is None

    def come() -> None:
        for buffer in buffers:
            buffer[:] = 99
        for part in range(2):
            more["landed"](part, frozenset({1}))
        more["tell"](
            Completion(1, (State.DONE, State.UNREADABLE), ("", ""), time.monotonic() - 1.0)
        )

    if late:
        time.sleep(0.02)
    else:
        assert worker.landed() == set() == worker.failed() and worker.report(step).landed == []
        assert all((one == was).all() for one, was in zip(layers, before, strict=True))
        come()
    one_step(worker, Step())
    assert worker.landed() == {"r"} and worker.failed() == ({1, 5} if late else {5})
    [one] = worker.report(Step()).landed
    assert (one.request, one.loaded_bytes) == ("r", 56) and one.took_s >= one.alone_s >= 0.0
    if late:
        assert one.there == There()
    else:
        assert one.there.first_s == pytest.approx(one.there.last_s + 1.0, abs=0.5)
    assert worker.counts["load_late_blocks"] == (2 if late else 0) and worker.landed() == set()
    come()
    one_step(worker, Step())
    changed = [block for block in range(6) if layers[0][block] != before[0][block]]
    assert changed == ([] if late else [1])


def test_loads_apart_take_no_more_memory_than_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several requests, and one that is larger than that, follow each other in pieces. Each request
    is named when its last piece has arrived."""
    monkeypatch.setattr(loads, "LOAD_BYTES", 3 * 28)
    memory, flying = Memory(), list[Any]()
    worker, _ = copies(memory, 0)
    monkeypatch.setattr(memory, "get", lambda keys, _, **more: flying.append((keys, more)))
    keys = [b"%d" % one for one in range(6)]
    worker.load(
        Step(
            apart=[
                ("long", list(zip(keys[:5], range(5), strict=True)), 60.0),
                ("short", [(keys[5], 5)], 60.0),
            ]
        )
    )
    named, sizes = list[str](), list[int]()
    while flying:
        sizes.append(sum(len(keys) for keys, _ in flying))
        keys, more = flying.pop(0)
        for part in range(2):
            more["landed"](part, frozenset())
        more["tell"](Completion(1, (State.DONE,) * len(keys), ("",) * len(keys)))
        named += sorted(worker.landed())
    assert named == ["long", "short"] and max(sizes) == 3 and len(sizes) == 3


def test_a_load_apart_of_a_worker_without_a_daemon_ends_at_once() -> None:
    """Its request is named all the same, with every block failed."""
    worker, _ = copies(None, 0)  # type: ignore[arg-type]
    worker.load(Step(apart=[("r", [(b"a", 1), (b"b", 5)], 60.0)]))
    assert worker.landed() == {"r"} and worker.failed() == {1, 5}
