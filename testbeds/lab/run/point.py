"""One point with one seed: a decision core, an engine in virtual time, and a policy.

Model: the point owns its core and engine and reads slabs from a `Feed` that it shares with other
points. It runs until a session needs a slab that does not exist yet, and continues when it does.
Sessions are admitted in order of arrival, or, if the policy schedules them together, those with a
shared prefix one after another; at most `concurrent` decode concurrently. A session is closed when
it ends; its staged blocks may then be shared or evicted like any others.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from offstage.asic_model.chip import limited, open_timed
from offstage.asic_model.parameters import read_preset
from offstage.asic_model.twice import units_since, used_since
from offstage.bindings.chip import Chip
from offstage.bindings.core import Core, CoreConfig, Policy, SessionConfig
from offstage.bindings.errors import BadInput
from offstage.bindings.sim import Engine, EngineConfig, populate_contents
from offstage.bindings.storage import preset
from offstage.bindings.stream import Stream, open_stream
from offstage.bindings.tiers import TierCosts, Tiers, TiersConfig, open_tiers
from offstage.bindings.timing import Costs, Timing
from offstage.bindings.units import parse_time
from offstage.testbeds.lab.policies.policy import GUESS, Setting, View
from offstage.testbeds.lab.policies.registry import TRAFFIC, TRAFFIC_PERMILLE, Combined, parse
from offstage.testbeds.lab.results.ledger import ROW
from offstage.testbeds.lab.results.summary import SeedRun
from offstage.testbeds.lab.run.answers import Answers
from offstage.testbeds.lab.run.feed import SLAB_STEPS_MAX, Feed, Served, over_k
from offstage.testbeds.lab.run.plan import Point
from offstage.testbeds.lab.spec.schema import Spec
from offstage.testbeds.lab.spec.tiers import tiers_of
from offstage.testbeds.lab.spec.weights import stream_of
from offstage.testbeds.workloads.selections.coarse import grained
from offstage.testbeds.workloads.selections.slab import Workload

__all__ = ["HIT_NS", "Runner"]

QUEUE_PER_DEMAND = 4
"""Candidates that may be queued for each block that all sessions select in one step."""
QUEUE_MAX = 1 << 24
"""Largest queue that a decision core accepts."""
LOG_BYTES, LOG_BYTES_MAX = 1 << 22, 1 << 30
LOG_BYTES_PER_BLOCK, LOG_BYTES_PER_DEMAND = 64, 128
"""Estimate of what a log has of an opened session, and of a demand with its reads."""
PS_PER_NS = 1_000
HIT_NS = 2_000
"""The fabric's time for a layer whose demands are all staged: the time that `bench fabric` measures
for a command. The GPU's time includes the transfer of the bytes."""


@dataclass
class _Running:
    """A session that is decoding."""

    handle: int
    begins_ns: int
    next_slab: int = 0
    blocks: int = 0


class Runner:
    """Runs one point with one seed. Call `advance` until `done`, then `result`."""

    def __init__(
        self,
        number: int,
        point: Point,
        spec: Spec,
        workload: Workload,
        feed: Feed,
        seed: int,
        answers: Answers | None = None,
        keep: Callable[[bytes], object] | None = None,
    ) -> None:
        """`answers`: policies shared with other runners over the same feed. `keep`: takes the
        decision log as it grows; None: the core writes none."""
        self.number = number
        self._keep = keep
        self.point = point
        self.done = False
        self._spec, self._feed, self._seed = spec, feed, seed
        self._combined: Combined = parse(point.policy.use)
        self._grain = point.grain(spec)
        self._concurrent = spec.concurrent
        self._workload = grained(workload, spec.granules // self._grain)
        self._policy = (answers or Answers()).open(self._combined, self._setting(), number)
        self._core = self._open_core()
        each = self._core.config.slot_count // spec.workload.tenants
        self._tenants = [
            self._core.tenant_add(0, number.to_bytes(16, "little"), each)
            for number in range(spec.workload.tenants)
        ]
        self._tiers = self._open_tiers() if spec.tier.below else None
        self._chip = self._device(len(workload.sessions)) if spec.tier.device else None
        self._stream = self._open_stream(len(workload.sessions)) if spec.weights else None
        self._engine = Engine(self._core, self._engine_config())
        self._waiting = deque(self._order())
        self._running: dict[int, _Running] = {}
        self._rows: list[npt.NDArray[np.void]] = []
        self._blocked: int | None = None
        self._ended_ns = self._sessions_ns = 0
        self._uses = self._engine.uses()
        self._spread_ns = spec.time_per_token_ns // self._concurrent
        self._begun = False

    def advance(self) -> bool:
        """Run until a slab is missing (returns False) or to the end (True)."""
        if not self._begun:
            self._begun = True
            for turn in range(self._concurrent):
                self._admit(turn * self._spread_ns)
        if self._blocked is not None and not self._give(self._blocked):
            return False
        self._blocked = None
        while (event := self._engine.run()) is not None:
            kind, slot = event
            if kind == "rows":
                if not self._give(slot):
                    self._blocked = slot
                    return False
            else:
                self._rows.append(self._engine.take_rows(slot))
                self._ended_ns = self._engine.now_ns
                self._uses = self._engine.uses()  # before the close drops what is staged
                ended = self._running.pop(slot)
                self._sessions_ns += self._engine.now_ns - ended.begins_ns
                self._core.session_close(self._engine.now_ns, ended.handle)
                self._admit(self._engine.now_ns)
        self._log()
        self.done = True
        return True

    def _log(self) -> None:
        """Hand out what the log has since the last time; its ring holds what comes in between."""
        if self._keep is not None:
            self._keep(self._core.log())

    def result(self) -> SeedRun:
        """The ledger and the counters."""
        rows = np.concatenate(self._rows) if self._rows else np.zeros(0, ROW)
        rows = rows[np.lexsort((rows["layer"], rows["step"], rows["session"]))]
        return SeedRun(
            seed=self._seed,
            rows=rows,
            counters=self._core.ledger(),
            end_ns=self._engine.now_ns,
            reads=self._engine.reads,
            failed=self._engine.failed,
            decoded_ns=max(0, self._ended_ns - self._lead_ns()),
            sessions_ns=self._sessions_ns,
            turns={number: one.turns for number, one in enumerate(self._workload.sessions)},
            tiers=self._tiers.stats() if self._tiers else [],
            weights=self._streamed(),
            used=self._used(rows),
            units=self._uses.tolist() if self._grain < self._spec.granules else [],
        )

    def _setting(self) -> Setting:
        work = self._workload
        return Setting(
            layer_count=work.layer_count,
            select_blocks=min(work.select_blocks, self._buffer_blocks()),
            buffer_blocks=self._buffer_blocks(),
            sink_blocks=work.sink_blocks,
            window_blocks=work.window_blocks,
            block_tokens=work.block_tokens,
            index_source=work.index_source,
            draft_agreement=work.draft_agreement,
            predicts=work.predicts,
            draft_layers=self._draft_layers(),
            worth=self._core_policy().probability_permille_min / 1000,
            pool_blocks=round(self._spec.tier.hbm_pool_over_k * work.select_blocks),
            traffic=self.point.policy.parameters.get(TRAFFIC, TRAFFIC_PERMILLE) / 1000,
        )

    def _draft_layers(self) -> int:
        return math.ceil(self._spec.workload.draft_cost * self._workload.layer_count)

    def _buffer_blocks(self) -> int:
        return self.point.buffer_blocks(self._spec) * self._grain

    def _open_core(self) -> Core:
        spec, work = self._spec, self._workload
        lengths = [one.blocks + one.steps // work.block_tokens + 1 for one in work.sessions]
        slots = self._buffer_blocks() * work.layer_count * self._concurrent
        queued = QUEUE_PER_DEMAND * work.select_blocks * work.layer_count * self._concurrent
        config = CoreConfig(
            slot_count=slots,
            chunk_max=sum(lengths) * (1 if "shared" in self._combined.core.prefetchers else 2),
            session_chunk_max=max(lengths),
            layer_count=work.layer_count,
            tenant_max=spec.workload.tenants,
            session_max=self._concurrent,
            block_size_bytes=spec.block_bytes // self._grain,
            io_max=spec.tier.in_flight,
            queue_max=min(queued, QUEUE_MAX),
            demand_max=work.select_blocks,
            log_size_bytes=self._log_bytes(max(lengths)) if self._keep is not None else 0,
            seed=self._seed,
        )
        if spec.tier.device:
            config = limited(read_preset(spec.tier.device), config)
        try:
            return Core(config, self._core_policy().with_(eviction=self.point.eviction))
        except BadInput as error:
            where = f"{error.where} of {self.point.label}"
            raise BadInput(error.what, where, "check the sizes and the parameters") from None

    def _log_bytes(self, blocks: int) -> int:
        """Ring of a decision log: twice what is decided while each session is opened and decodes
        one slab."""
        a_block = 2 * SLAB_STEPS_MAX + LOG_BYTES_PER_BLOCK
        demands = SLAB_STEPS_MAX * (self._workload.select_blocks + 1) * LOG_BYTES_PER_DEMAND
        each = self._workload.layer_count * (blocks * a_block + demands)
        return min(LOG_BYTES + 2 * self._concurrent * each, LOG_BYTES_MAX)

    def _core_policy(self) -> Policy:
        changes = {
            "prefetch_in_flight_max": max(self._spec.tier.in_flight // 2, 1),
            "prefetch_bytes_per_s_max": self.point.cap or 0,
            **self.point.policy.parameters,
        }
        return self._combined.core_policy(self._workload.block_tokens, **changes)

    def _engine_config(self) -> EngineConfig:
        spec, slots = self._spec, len(self._workload.sessions)
        return EngineConfig(
            batch_slot_max=slots,
            timing=self._below(),
            compute_ns=spec.time_per_token_ns // self._workload.layer_count,
            hit_ns=HIT_NS,
            append_steps=self._workload.block_tokens,
            nvme=preset(spec.tier.storage).params,
            seed=self._seed,
        )

    def _below(self) -> str | Timing:
        if self._chip:
            return self._chip.timing()
        side = self._tiers or self._stream
        return side.timing if side else "nvme"

    def _open_tiers(self) -> Tiers:
        """The tiers below the arena, as the engine's timing side."""
        spec, config = self._spec, self._core.config
        size = config.block_size_bytes
        costs = [
            TierCosts(
                capacity_blocks=one.capacity_bytes // size,
                promote_ns=one.promote_ns,
                latency_ps=one.latency_ps,
                read_ps=one.read_ps,
                write_ps=one.write_ps,
                concurrency=one.concurrency,
                drive_count=one.devices if one.drive else 0,
                drive=preset(one.drive).params if one.drive else {},
            )
            for one in tiers_of(spec, size)
        ]
        return open_tiers(
            TiersConfig(
                chunk_max=config.chunk_max,
                layer_count=config.layer_count,
                session_max=config.session_max,
                block_size_bytes=size,
                in_flight_max=config.io_max,
                exclusive=spec.tier.copies == "exclusive",
                place_last=spec.tier.place == "last",
                hit_ps=HIT_NS * PS_PER_NS,
                seed=self._seed,
            ),
            costs,
        )

    def _open_stream(self, slots: int) -> Stream:
        """The drive with the weights, as the engine's timing side."""
        size = self._core.config.block_size_bytes
        hit_ps = HIT_NS * PS_PER_NS
        return open_stream(stream_of(self._spec, size, self._owed(slots), hit_ps, self._seed))

    def _streamed(self) -> dict[str, int]:
        """What became of the stream, whose rest is read when the last session has ended."""
        if self._stream is None:
            return {}
        beside = self._stream.stats()["read_bytes"]
        self._stream.finish()
        return {**self._stream.stats(), "read_beside_bytes": beside}

    def _used(self, rows: npt.NDArray[np.void]) -> dict[str, float]:
        """What of the device was used since the first session began to decode."""
        if self._chip is None:
            return {}
        tier, demands = self._spec.tier, int(rows["demands"].sum())
        preset = read_preset(tier.device)
        return used_since(self._chip, preset, tier.storage, demands, self._lead_ns() * PS_PER_NS)

    def units(self, after: float) -> dict[str, float]:
        """The utilisation of each unit of the device after this share of the same time; of none
        without one."""
        if self._chip is None:
            return {}
        tier, lead_ps = self._spec.tier, self._lead_ns() * PS_PER_NS
        begin_ps = lead_ps + round(after * (self._chip.now_ps - lead_ps))
        return units_since(self._chip, read_preset(tier.device), tier.storage, begin_ps)

    def _device(self, slots: int) -> Chip:
        """The chip that is the engine's timing side."""
        return open_timed(
            self._spec.tier.device,
            Costs(seed=self._seed, in_flight_max=self._owed(slots)),
            drive=self._spec.tier.storage,
            block_bytes=self._core.config.block_size_bytes,
        )

    def _owed(self, slots: int) -> int:
        """In flight at most: the core's reads, and for each batch slot one more and one write per
        layer."""
        config = self._core.config
        return config.io_max + slots * (1 + config.layer_count)

    def _order(self) -> list[int]:
        numbers = list(range(len(self._workload.sessions)))
        if self._combined.core.schedule == "together":
            first: dict[int, int] = {}
            groups = [one.group for one in self._workload.sessions]
            for number in numbers:
                if groups[number] >= 0:
                    first.setdefault(groups[number], number)
            numbers.sort(key=lambda number: (first.get(groups[number], number), number))
        return numbers

    def _admit(self, at_ns: int) -> None:
        """Open the next waiting session, if any; it begins at `at_ns`. The times of a log that is
        kept never go back, so there it is opened now."""
        if not self._waiting:
            return
        open_ns = at_ns if self._keep is None else self._engine.now_ns
        number = self._waiting.popleft()
        info, work = self._workload.sessions[number], self._workload
        config = SessionConfig(
            tenant=self._tenants[number % len(self._tenants)],
            sink_blocks=self._setting().sink_blocks,
            window_blocks=self._setting().window_blocks,
            select_blocks=self._setting().select_blocks,
            step_ns=self._spec.time_per_token_ns,
        )
        handle = self._core.session_open(open_ns, config)
        homes = populate_contents(self._core, handle, info.contents, open_ns)
        if self._tiers:
            self._tiers.fill(at_ns, homes)
        self._core.session_set_generating(open_ns, handle, True)
        self._log()
        self._running[number] = _Running(handle, at_ns + self._lead_ns(), blocks=info.blocks)
        first = self._policy.begin(number, info.blocks, work.prefill(number))
        self._engine.start(number, handle, at_ns, first, self._lead_ns())

    def _lead_ns(self) -> int:
        return parse_time(self._spec.tier.warmup, "[tier] warmup")

    def _give(self, number: int) -> bool:
        """Feed the session its next slab, if it exists."""
        running = self._running[number]
        found = self._feed.get(self.number, number, running.next_slab)
        if found is None:
            return False
        self._log()
        self._check_width(found)
        running.next_slab += 1
        if len(self._rows) or running.next_slab > 1:
            self._rows.append(self._engine.take_rows(number))
        guesses, offsets = self._guesses(number, found, running.blocks)
        self._engine.feed(
            number,
            found.slab.selected,
            found.served,
            found.slab.scores,
            offsets,
            guesses,
            last=found.last,
            units=found.slab.units,
        )
        return True

    def _check_width(self, given: Served) -> None:
        """BadInput if the slots of one session cannot hold the demands of one layer, which are
        pinned together: the blocks would wait for each other forever."""
        slots = self._buffer_blocks() * self._workload.layer_count
        if given.widest > slots:
            raise BadInput(
                f"{self.point.label}: a layer demands {given.widest} blocks, of {slots} slots",
                "[tier] buffer_over_k",
                over_k(given.widest, slots, self.point.buffer_over_k),
            )

    def _guesses(
        self, number: int, found: Served, blocks: int
    ) -> tuple[npt.NDArray[np.void] | None, npt.NDArray[np.uint64] | None]:
        """The policy's guesses for every step of the slab, in the order of submission."""
        if not self._combined.guesses:
            return None, None
        layers, slab = self._workload.layer_count, found.slab
        turns = set(self._workload.sessions[number].turns)
        answers, keys = [], []
        for index in range(len(slab.selected)):
            step = slab.first_step + index
            view = View(
                session=number,
                step=step,
                blocks=min(blocks + step // self._workload.block_tokens, slab.scores.shape[2]),
                selected=slab.selected[index],
                scores=slab.scores[index],
                draft=None if slab.draft is None else slab.draft[index],
                turn=step in turns,
                predicted=None if slab.predicted is None else slab.predicted[index],
                draft_layers=self._draft_layers(),
                held=None if found.held is None else found.held[index],
            )
            answer = self._policy.step(view)
            if found.held is not None:
                answer = _not_in_pool(answer, found.held[index : index + 2], slab.scores.shape[2])
            answers.append(answer)
            keys.append(index * layers + answer["after_layer"].astype(np.int64))
        guesses = np.concatenate(answers) if answers else np.zeros(0, GUESS)
        order_key = np.concatenate(keys) if keys else np.zeros(0, np.int64)
        order = np.argsort(order_key, kind="stable")
        counts = np.bincount(order_key, minlength=len(slab.selected) * layers)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint64)
        return guesses[order], offsets


def _not_in_pool(
    answer: npt.NDArray[np.void], held: npt.NDArray[np.uint32], blocks: int
) -> npt.NDArray[np.void]:
    """The guesses without blocks in the HBM pool, which the host does not request.

    held: the pool before and after the step, `[2, layers, pool]`. Guesses for this step are
    compared with the pool before it, guesses for later steps with the pool after it.
    """
    has = np.zeros((2, held.shape[1], blocks + 1), bool)
    np.put_along_axis(has, np.minimum(held, blocks).astype(np.int64), True, axis=2)
    has[:, :, blocks] = False
    after = (answer["steps"] > 0).astype(np.int64)
    kept: npt.NDArray[np.void] = answer[~has[after, answer["layer"], answer["ordinal"]]]
    return kept
