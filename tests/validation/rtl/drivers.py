"""Drivers of the RTL under cocotb: each applies a stimulus cycle by cycle and records the output.

Inputs change after the rising edge and outputs are read at the falling one, so that both belong to
the same cycle. A driver reads stimulus.json in its folder and writes answer.json there; the tests
check the answers.
"""

import json
from collections import deque
from pathlib import Path
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, RisingEdge, Timer

CYCLES_MAX = 200_000  # the longest that a driver waits


def load() -> dict[str, Any]:
    stimulus: dict[str, Any] = json.loads(Path("stimulus.json").read_text())
    return stimulus


def save(answer: dict[str, Any]) -> None:
    Path("answer.json").write_text(json.dumps(answer))


async def start(dut: Any, **inputs: int) -> None:
    """Start the clock and reset with idle inputs; return after a rising edge."""
    Clock(dut.clk, 10, "ns").start()
    for name, value in inputs.items():
        getattr(dut, name).value = value
    dut.rst.value = 1
    for _ in range(4):
        await RisingEdge(dut.clk)
    dut.rst.value = 0


class Sink:
    """A server that takes the given cycles for each answer, with `room` more waiting."""

    def __init__(self, cycles: list[int], room: int) -> None:
        self._cycles, self._room = cycles, room
        self._waiting: deque[int] = deque()
        self._free_at = 0

    def ready(self, cycle: int) -> bool:
        """Whether it accepts an answer in this cycle."""
        if self._waiting and self._free_at <= cycle:
            self._begin(cycle, self._waiting.popleft())
        return len(self._waiting) < self._room or self._free_at <= cycle

    def take(self, cycle: int, number: int) -> None:
        if self._free_at <= cycle and not self._waiting:
            self._begin(cycle, number)
        else:
            self._waiting.append(number)

    def _begin(self, cycle: int, number: int) -> None:
        self._free_at = cycle + self._cycles[number]


@cocotb.test()
async def drive_metadata_lookup(dut: Any) -> None:
    """Apply keys at their cycles, at most two per cycle; the sink is slower at times."""
    stimulus = load()
    keys, due = stimulus["keys"], stimulus["cycles"]
    sink = Sink(stimulus["sink_cycles"], stimulus["sink_room"])
    entered, left, hit, evicts = ([0] * len(keys) for _ in range(4))
    await start(dut, in_valid=0, out_ready=0)
    while True:  # until the SRAM is cleared
        await FallingEdge(dut.clk)
        if int(dut.in_ready.value) & 1:
            break
    await RisingEdge(dut.clk)
    cycle = next_in = out = 0
    while out < len(keys):
        here = [next_in + i for i in range(2) if next_in + i < len(keys)]
        here = [number for number in here if due[number] <= cycle]
        for port, number in enumerate(here):
            getattr(dut, f"in_key_{port}").value = keys[number]
            getattr(dut, f"in_id_{port}").value = number
        dut.in_valid.value = (1 << len(here)) - 1
        ready = sink.ready(cycle)
        dut.out_ready.value = int(ready)
        await FallingEdge(dut.clk)
        accepted = int(dut.in_ready.value) if here else 0
        for port, number in enumerate(here):
            if accepted >> port & 1:
                entered[number] = cycle
                next_in += 1
        if ready and int(dut.out_valid.value):
            number = int(dut.out_id.value)
            left[number] = cycle
            hit[number], evicts[number] = int(dut.out_hit.value), int(dut.out_evicts.value)
            sink.take(cycle, number)
            out += 1
        await RisingEdge(dut.clk)
        cycle += 1
        assert cycle < CYCLES_MAX
    save({"entered": entered, "left": left, "hit": hit, "evicts": evicts, "cycles": cycle})


@cocotb.test()
async def drive_qos_arbiter(dut: Any) -> None:
    """Apply puts in order, each from its cycle on; the line takes an item when it has time to move
    it."""
    stimulus = load()
    puts, stalls = stimulus["puts"], stimulus["stalls"]
    entered: list[int] = []
    taken, refused, begun = [], [], []
    free_at = 0
    await start(dut, put_valid=0, take=0, **stimulus["config"])
    for cycle, stall in enumerate(stalls):
        number = len(entered)
        offers = number < len(puts) and puts[number]["cycle"] <= cycle
        dut.put_valid.value = int(offers)
        if offers:
            for name, value in puts[number]["item"].items():
                getattr(dut, f"put_{name}").value = value
        dut.take.value = int(free_at <= cycle and not stall)
        await FallingEdge(dut.clk)
        if int(dut.out_valid.value):
            began = begun.pop(0)
            if int(dut.out_take.value):
                taken.append([began, cycle, int(dut.out_tag.value), int(dut.out_tenant.value)])
                free_at = cycle - (-int(dut.out_cost.value) // stimulus["bytes_per_cycle"])
            for reason in ("full", "session_full"):
                if int(getattr(dut, f"out_{reason}").value):
                    refused.append([began, cycle, reason])
        if int(dut.take_begins.value):
            begun.append(cycle)
            free_at = len(stalls)  # until it is known what the line moves
        if offers and int(dut.put_ready.value):
            begun.append(cycle)
            entered.append(cycle)
        await RisingEdge(dut.clk)
    save({"entered": entered, "taken": taken, "refused": refused})


@cocotb.test()
async def drive_codec_lane(dut: Any) -> None:
    """Apply pieces at their cycles, words back to back or paused; the receiver may stall."""
    stimulus = load()
    pieces, pauses, stalls = (stimulus[name] for name in ("pieces", "pauses", "stalls"))
    begun, ended, bad, found = [], [], [], []
    words: deque[int] = deque()
    values: list[int] = []
    await start(dut, piece_valid=0, in_valid=0, out_ready=0)
    cycle = 0
    while len(ended) < len(pieces):
        offers = len(begun) < len(pieces) and pieces[len(begun)]["cycle"] <= cycle
        dut.piece_valid.value = int(offers)
        if offers:
            for name in ("dtype", "bytes", "values"):
                getattr(dut, f"piece_{name}").value = pieces[len(begun)][name]
        sends = bool(words) and not pauses[cycle % len(pauses)]
        dut.in_valid.value = int(sends)
        if sends:
            dut.in_word.value = words[0]
        ready = not stalls[cycle % len(stalls)]
        dut.out_ready.value = int(ready)
        await FallingEdge(dut.clk)
        if offers and int(dut.piece_ready.value):
            words.extend(pieces[len(begun)]["words"])
            begun.append(cycle)
        if sends and int(dut.in_ready.value):
            words.popleft()
        if ready and int(dut.out_valid.value):
            values.append(int(dut.out_value.value))
            if int(dut.out_last.value):
                ended.append(cycle)
                bad.append(int(dut.out_bad.value))
                found.append(values)
                values = []
        await RisingEdge(dut.clk)
        cycle += 1
        assert cycle < CYCLES_MAX
    save({"begun": begun, "ended": ended, "bad": bad, "values": found})


@cocotb.test()
async def drive_encode_lane(dut: Any) -> None:
    """Apply pieces at their cycles, values back to back or paused; the receiver may stall."""
    stimulus = load()
    pieces, pauses, stalls = (stimulus[name] for name in ("pieces", "pauses", "stalls"))
    begun, ended, coded, sizes, found = [], [], [], [], []
    values: deque[int] = deque()
    words: list[int] = []
    await start(dut, piece_valid=0, in_valid=0, out_ready=1)
    while True:  # until the counts are cleared
        await FallingEdge(dut.clk)
        if int(dut.piece_ready.value):
            break
    await RisingEdge(dut.clk)
    cycle = 0
    while len(ended) < len(pieces):
        offers = len(begun) < len(pieces) and pieces[len(begun)]["cycle"] <= cycle
        dut.piece_valid.value = int(offers)
        if offers:
            dut.piece_dtype.value = pieces[len(begun)]["dtype"]
            dut.piece_values.value = len(pieces[len(begun)]["values"])
        sends = bool(values) and not pauses[cycle % len(pauses)]
        dut.in_valid.value = int(sends)
        if sends:
            dut.in_value.value = values[0]
        ready = not stalls[cycle % len(stalls)]
        dut.out_ready.value = int(ready)
        await FallingEdge(dut.clk)
        if offers and int(dut.piece_ready.value):
            values.extend(pieces[len(begun)]["values"])
            begun.append(cycle)
        if sends and int(dut.in_ready.value):
            values.popleft()
        if ready and int(dut.out_valid.value):
            words.append(int(dut.out_word.value))
            if int(dut.out_last.value):
                ended.append(cycle)
                sizes.append(int(dut.out_bytes.value))
                coded.append(int(dut.out_coded.value))
                found.append(words)
                words = []
        await RisingEdge(dut.clk)
        cycle += 1
        assert cycle < CYCLES_MAX
    save({"begun": begun, "ended": ended, "coded": coded, "bytes": sizes, "words": found})


@cocotb.test()
async def drive_channel_queue(dut: Any) -> None:
    """Apply requests at their cycles; the receiver takes each as it arrives, a flight after its
    service, and its credit is back a flight later."""
    stimulus = load()
    requests, flight = stimulus["requests"], stimulus["flight"]
    entered, begun = [0] * len(requests), [0] * len(requests)
    returns: deque[int] = deque()
    await start(dut, in_valid=0, credit_back=0)
    cycle = next_in = count = 0
    while count < len(requests):
        offers = next_in < len(requests) and requests[next_in]["cycle"] <= cycle
        dut.in_valid.value = int(offers)
        if offers:
            dut.in_tag.value = next_in
            dut.in_urgent.value = requests[next_in]["urgent"]
            dut.in_cycles.value = requests[next_in]["cycles"]
        back = bool(returns) and returns[0] <= cycle
        dut.credit_back.value = int(back)
        if back:
            returns.popleft()
        await FallingEdge(dut.clk)
        if offers and int(dut.in_ready.value):
            entered[next_in] = cycle
            next_in += 1
        if int(dut.begins.value):
            number = int(dut.begins_tag.value)
            begun[number] = cycle
            returns.append(cycle + requests[number]["cycles"] + 2 * flight)
            count += 1
        await RisingEdge(dut.clk)
        cycle += 1
        assert cycle < CYCLES_MAX
    save({"entered": entered, "begun": begun})


@cocotb.test()
async def drive_chunk_key(dut: Any) -> None:
    """Apply messages at their cycles; keys wait at the receiver, whose room the credits stand for,
    until the sink takes them, in the cycle in which they are out at the earliest."""
    stimulus = load()
    messages = stimulus["messages"]
    sink = Sink(stimulus["sink_cycles"], stimulus["sink_room"])
    entered, left, keys = ([0] * len(messages) for _ in range(3))
    waiting: deque[int] = deque()
    await start(dut, in_valid=0, credit_back=0)
    cycle = next_in = count = 0
    while count < len(messages):
        offers = next_in < len(messages) and messages[next_in]["cycle"] <= cycle
        dut.in_valid.value = int(offers)
        if offers:
            dut.in_id.value = next_in % (1 << len(dut.in_id))
            for name in ("secret", "parent", "content", "short"):
                getattr(dut, f"in_{name}").value = messages[next_in][name]
        await FallingEdge(dut.clk)
        if int(dut.out_valid.value):
            number = count + len(waiting)  # in order
            assert int(dut.out_id.value) == number % (1 << len(dut.out_id))
            keys[number] = int(dut.out_key.value)
            waiting.append(number)
        back = sink.ready(cycle) and bool(waiting)
        dut.credit_back.value = int(back)
        if back:
            number = waiting.popleft()
            left[number] = cycle
            sink.take(cycle, number)
            count += 1
        await Timer(1, "ns")  # until the port sees the credit
        if offers and int(dut.in_ready.value):
            entered[next_in] = cycle
            next_in += 1
        await RisingEdge(dut.clk)
        cycle += 1
        assert cycle < CYCLES_MAX
    save({"entered": entered, "left": left, "keys": [f"{key:032x}" for key in keys]})


@cocotb.test()
async def drive_block_hash(dut: Any) -> None:
    """Apply blocks at their cycles, stripes back to back or paused; each digest is in order."""
    stimulus = load()
    blocks, pauses = stimulus["blocks"], stimulus["pauses"]
    begun, ended, digests = [], [], []
    stripe = 0
    await start(dut, in_valid=0)
    cycle = 0
    while len(ended) < len(blocks):
        number = len(begun) - (stripe > 0)
        offers = number < len(blocks) and blocks[number]["cycle"] <= cycle
        offers = offers and not pauses[cycle % len(pauses)]
        dut.in_valid.value = int(offers)
        if offers:
            stripes = blocks[number]["stripes"]
            dut.in_stripe.value = int(stripes[stripe], 16)
            dut.in_last.value = int(stripe == len(stripes) - 1)
        await FallingEdge(dut.clk)
        if int(dut.out_valid.value):
            digests.append(f"{int(dut.out_digest.value):032x}")
            ended.append(cycle)
        if offers and int(dut.in_ready.value):
            if stripe == 0:
                begun.append(cycle)
            stripe = (stripe + 1) % len(stripes)
        await RisingEdge(dut.clk)
        cycle += 1
        assert cycle < CYCLES_MAX
    save({"begun": begun, "ended": ended, "digests": digests})


@cocotb.test()
async def drive_candidate_heap(dut: Any) -> None:
    """Apply puts and takes at their cycles, one a cycle; takes and puts each keep their order."""
    stimulus = load()
    asked = stimulus["asked"]
    entered, answered, answers = [0] * len(asked), [0] * len(asked), [[0]] * len(asked)
    inside: tuple[deque[int], deque[int]] = (deque(), deque())  # puts, takes
    begun = []
    await start(dut, in_valid=0)
    cycle = next_in = count = 0
    while count < len(asked):
        offers = next_in < len(asked) and asked[next_in]["cycle"] <= cycle
        dut.in_valid.value = int(offers)
        if offers:
            for name in ("take", "deadline", "chance", "tag"):
                getattr(dut, f"in_{name}").value = asked[next_in][name]
        await FallingEdge(dut.clk)
        if int(dut.begins.value):
            begun.append(cycle)
        if offers and int(dut.in_ready.value):
            entered[next_in] = cycle
            inside[asked[next_in]["take"]].append(next_in)
            next_in += 1
        if int(dut.out_valid.value):
            number = inside[int(dut.out_take.value)].popleft()
            answered[number] = cycle
            refused = int(dut.out_refused.value)
            found = int(dut.out_take.value) and not refused
            rest = [int(dut.out_tag.value), int(dut.out_late.value)] if found else []
            answers[number] = [refused, *rest]
            count += 1
        await RisingEdge(dut.clk)
        cycle += 1
        assert cycle < CYCLES_MAX
    save({"entered": entered, "begun": begun, "answered": answered, "answers": answers})


@cocotb.test()
async def drive_candidate_compare(dut: Any) -> None:
    """Apply each command's beats at their cycles after its start; what comes out until it is done
    is taken in the cycles in which the heap has room."""
    stimulus = load()
    stalls, answers = stimulus["stalls"], []
    await start(dut, start_valid=0, in_valid=0, out_ready=0)
    cycle = 0
    for command in stimulus["commands"]:
        beats, begun = command["beats"], -1
        entered: list[int] = []
        averages: list[str] = []
        out: list[list[int]] = []
        for name, value in command["start"].items():
            getattr(dut, f"start_{name}").value = int(value, 16)
        while True:
            dut.start_valid.value = int(begun < 0)
            number = len(entered)
            offers = begun >= 0 and number < len(beats)
            offers = offers and begun + beats[number]["at"] <= cycle
            dut.in_valid.value = int(offers)
            if offers:
                dut.in_last.value = int(number == len(beats) - 1)
                for name, value in beats[number]["lanes"].items():
                    getattr(dut, f"in_{name}").value = int(value, 16)
            ready = not stalls[cycle % len(stalls)]
            dut.out_ready.value = int(ready)
            await FallingEdge(dut.clk)
            done = begun >= 0 and int(dut.out_done.value)
            if int(dut.averages_valid.value):
                averages.append(f"{int(dut.out_averages.value):x}")
            if begun < 0 and int(dut.start_ready.value):
                begun = cycle
            if offers and int(dut.in_ready.value):
                entered.append(cycle)
            if ready and int(dut.out_valid.value):
                out.append([cycle, int(dut.out_ordinal.value), int(dut.out_chance.value)])
            above = int(dut.out_above.value) if done else 0
            await RisingEdge(dut.clk)
            cycle += 1
            assert cycle < CYCLES_MAX
            if done:
                break
        answers.append([begun, entered, averages, out, above])
    save({"answers": answers})


@cocotb.test()
async def drive_dma_engines(dut: Any) -> None:
    """Apply descriptors at their cycles; record each piece on its engine, and each end."""
    stimulus = load()
    descriptors = stimulus["descriptors"]
    entered, ended = [0] * len(descriptors), [0] * len(descriptors)
    pieces: list[list[list[int]]] = [[] for _ in descriptors]
    in_slot: dict[int, int] = {}
    await start(dut, in_valid=0)
    cycle = next_in = count = 0
    while count < len(descriptors):
        offers = next_in < len(descriptors) and descriptors[next_in]["cycle"] <= cycle
        dut.in_valid.value = int(offers)
        if offers:
            for name in ("urgent", "address", "bytes"):
                getattr(dut, f"in_{name}").value = descriptors[next_in][name]
        await FallingEdge(dut.clk)
        if int(dut.begins.value):
            number = in_slot[int(dut.begins_slot.value)]
            where = [int(getattr(dut, f"begins_{name}").value) for name in ("address", "bytes")]
            pieces[number].append([cycle, *where, int(dut.begins_engine.value)])
        ends = int(dut.ends.value)
        for slot in [slot for slot in in_slot if ends >> slot & 1]:
            ended[in_slot.pop(slot)] = cycle
            count += 1
        if offers and int(dut.in_ready.value):
            assert int(dut.in_slot.value) not in in_slot
            in_slot[int(dut.in_slot.value)] = next_in
            entered[next_in] = cycle
            next_in += 1
        await RisingEdge(dut.clk)
        cycle += 1
        assert cycle < CYCLES_MAX
    save({"entered": entered, "ended": ended, "pieces": pieces})
