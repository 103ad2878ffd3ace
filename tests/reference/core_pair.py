"""Core and model side by side: every event goes to both, and all their outputs must agree."""

import random
from typing import Any

import numpy as np
from core_model import Model
from core_model_parts import Key, Slot
from msgspec.structs import asdict

from offstage.bindings.core import ACTION, GUESS, KEY, Core, CoreConfig, Policy, SessionConfig
from offstage.bindings.layouts import EVICTIONS

FAILURES = (-110, -74, -5, -2, -11)  # ETIMEDOUT, EBADMSG, EIO, ENOENT, EAGAIN
# Tables so small that all of them fill.
CONFIG = CoreConfig(
    slot_count=14,
    chunk_max=64,
    session_chunk_max=16,
    layer_count=2,
    tenant_max=2,
    session_max=3,
    block_size_bytes=4096,
    io_max=5,
    queue_max=6,
    demand_max=8,
    log_size_bytes=1 << 18,
    seed=9,
)
SECRETS = (b"first tenant 0123"[:16], b"second tenant 45"[:16])


def flat(row: Any) -> tuple[int, ...]:
    """One action of the core in the model's form; the model knows only whole blocks."""
    assert int(row["granules"]) == int(row["held"]) == 0
    left = ("key", "store_key", "granules", "held")
    names = [name for name in ACTION.names or () if name not in left]
    keys = (row["key"]["lo"], row["key"]["hi"], row["store_key"]["lo"], row["store_key"]["hi"])
    return tuple(int(row[name]) for name in names) + tuple(int(key) for key in keys)


def contents_array(contents: list[Key]) -> np.ndarray:
    return np.array(contents, KEY)


class Pair:
    """Both cores, and the reads that are in flight."""

    def __init__(self, config: CoreConfig, policy: Policy) -> None:
        self.core, self.model = Core(config, policy), Model(config, policy)
        self.config = config
        self.reads: list[int] = []
        self.log = b""
        self.decisions = 0  # actions, and ends of demands

    def call(self, name: str, *arguments: Any, **named: Any) -> Any:
        """Send both the event; their answers, actions, ledgers and tables must agree."""
        got = getattr(self.core, name)(*arguments, **named)
        if name == "session_append":
            arguments = (*arguments[:2], [tuple(map(int, key)) for key in arguments[2]])
        if name == "hint":
            fields = ("layer", "ordinal", "steps", "probability", "cause")
            guesses = [tuple(int(guess[field]) for field in fields) for guess in arguments[2]]
            arguments = (*arguments[:2], guesses)
        if name in ("block_restore", "block_forget"):
            key = arguments[2]
            words = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
            arguments = (*arguments[:2], words, *arguments[3:])
        expected = getattr(self.model, name)(*arguments, **named)
        assert self.plain(name, got) == expected, name
        self.decisions += len(expected) if name == "step" else 0
        self.check_actions(name)
        for tenant in range(len(self.model.tenants)):
            assert asdict(self.core.ledger(tenant)) == self.model.ledger(tenant), name
        assert self.core.verify()
        self.log += self.core.log()
        return expected

    @staticmethod
    def plain(name: str, got: Any) -> Any:
        if name == "session_append":
            return [
                (
                    (int(i["key"]["lo"]), int(i["key"]["hi"])),
                    (int(i["store_key"]["lo"]), int(i["store_key"]["hi"])),
                    *(int(i[field]) for field in ("chunk", "stored_layers", "references")),
                )
                for i in got
            ]
        return got.tolist() if isinstance(got, np.ndarray) else got

    def check_actions(self, name: str) -> None:
        got = [flat(row) for row in self.core.actions()]
        expected = self.model.actions()
        assert got == expected, name
        self.decisions += len(got)
        self.reads += [action[1] for action in got if action[0] == 1]


class Driver:
    """Random but valid events over a pair, from one seed."""

    def __init__(
        self, seed: int, config: CoreConfig, policy: Policy, policy_changes: bool = True
    ) -> None:
        self.random = random.Random(seed)
        self.changes = policy_changes
        self.pair = Pair(config, policy)
        self.now = 1000
        self.steps: dict[int, int] = {}
        self.base: dict[int, list[int]] = {}

    def begin(self) -> None:
        """Two tenants and two sessions."""
        slots = self.pair.config.slot_count
        share = self.random.randint(2, slots - 2)
        self.pair.call("tenant_add", 0, SECRETS[0], share, 1)
        self.pair.call("tenant_add", 0, SECRETS[1], slots - share, self.random.choice([1, 3]))
        for _ in range(2):
            self.session_open()

    def run(self, count: int) -> None:
        weighted = (
            [self.step] * 10
            + [self.hint] * 4
            + [self.read_ends] * 8
            + [self.tick] * 3
            + [self.append] * 2
            + [self.store_changes] * 2
            + [self.stage, self.session_open, self.session_close, self.generating]
            + [self.policy_changes, self.release]
        )
        for _ in range(count):
            self.now += self.random.choice([0, 1, 1000, 50_000, 2_000_000])
            self.random.choice(weighted)()

    def any_session(self) -> int | None:
        return self.random.choice(sorted(self.pair.model.sessions) or [None])

    def session_open(self) -> None:
        if not self.pair.model.free_sessions:
            return
        config = SessionConfig(
            tenant=self.random.choice([0, 0, 1]),
            select_blocks=self.random.choice([0, 2, 3, 4]),
            sink_blocks=self.random.choice([0, 1]),
            window_blocks=self.random.choice([0, 2]),
            step_ns=self.random.choice([0, 1_000_000]),
        )
        number = self.pair.call("session_open", self.now, config)
        self.steps[number] = 0
        self.append(number)
        self.generating(number)

    def append(self, number: int | None = None) -> None:
        number = self.any_session() if number is None else number
        if number is None:
            return
        chunks = self.pair.model.sessions[number].chunks
        count = self.random.randint(1, 4) if chunks else self.random.randint(3, 9)
        count = min(count, self.pair.config.session_chunk_max - len(chunks))
        if count <= 0 or 2 * count > len(self.pair.model.free_chunks):
            return
        # Contents repeat, so that sessions of a tenant share prefixes and then part.
        contents = [(len(chunks) + i, self.random.choice([0, 0, 0, 1])) for i in range(count)]
        infos = self.pair.call("session_append", self.now, number, contents_array(contents))
        for info in infos:
            for layer in range(self.pair.config.layer_count):
                if self.random.random() < 0.8:
                    self.pair.call("block_stored", self.now, info[2], layer)

    def generating(self, number: int | None = None) -> None:
        number = self.any_session() if number is None else number
        if number is not None:
            flag = self.random.random() < 0.7
            self.pair.call("session_set_generating", self.now, number, flag)

    def session_close(self) -> None:
        number = self.any_session()
        if number is not None and self.random.random() < 0.5:
            self.pair.call("session_close", self.now, number)

    def release(self) -> None:
        number = self.any_session()
        if number is not None:
            self.pair.call("session_release", self.now, number)

    def step(self) -> None:
        number = self.any_session()
        if number is None:
            return
        session = self.pair.model.sessions[number]
        layer = self.random.randrange(self.pair.config.layer_count)
        self.steps[number] += self.random.random() < 0.6
        count = self.random.randint(0, min(self.pair.config.demand_max // 2, len(session.chunks)))
        demands = self.random.sample(range(len(session.chunks)), count)
        named: dict[str, Any] = {"waiter": self.random.randrange(9)}
        if self.random.random() < 0.7:
            named["seen"] = [self.random.choice([0, 0, 255, 255, 1, 3, 4, 7]) for _ in demands]
        if self.random.random() < 0.7 and session.chunks:
            whole = len(session.chunks)
            size = self.random.choice([whole, self.random.randint(1, whole)])
            named["scores"] = self.random.choices([0, 1, 300, 9000, 40000, 40001, 65535], k=size)
        if self.random.random() < 0.1:
            named.pop("scores", None)
            named["retry"] = True
        self.pair.call("step", self.now, number, self.steps[number], layer, demands, **named)

    def hint(self) -> None:
        number = self.any_session()
        if number is None or not self.pair.model.sessions[number].chunks:
            return
        guesses = np.zeros(self.random.randint(0, self.pair.config.queue_max), GUESS)
        for guess in guesses:
            guess["layer"] = self.random.randrange(self.pair.config.layer_count)
            guess["ordinal"] = self.random.randrange(len(self.pair.model.sessions[number].chunks))
            guess["steps"] = self.random.choice([0, 0, 1, 1, 2, 5])
            guess["probability"] = self.random.choice([0, 1, 700, 9000, 40000, 65535])
            guess["cause"] = self.random.choice([3, 4, 5, 5, 6, 7])
        self.pair.call("hint", self.now, number, guesses)

    def read_ends(self) -> None:
        if not self.pair.reads:
            return
        io = self.pair.reads.pop(self.random.randrange(len(self.pair.reads)))
        rc = self.random.choice(FAILURES) if self.random.random() < 0.12 else 0
        self.pair.call("io_done", self.now, io, rc)

    def tick(self) -> None:
        for tenant in self.pair.model.tenants:
            for slot in tenant.slots:
                if slot.state == "quarantined" and self.random.random() < 0.5:
                    self.pair.call("slot_free", self.now, slot.tenant, slot.number)
        self.pair.call("tick", self.now)

    def any_slot(self, **wanted: Any) -> Slot | None:
        slots = [slot for tenant in self.pair.model.tenants for slot in tenant.slots]
        found = [s for s in slots if all(getattr(s, k) == v for k, v in wanted.items())]
        return self.random.choice(found) if found else None

    def stage(self) -> None:
        dirty = self.any_slot(dirty=True, state="resident")
        if dirty and self.random.random() < 0.6:
            number, layer = dirty.block
            if self.random.random() < 0.7:
                self.pair.call("block_stored", self.now, number, layer)
            self.pair.call("block_clean", self.now, number, layer)
        elif self.pair.model.chunks:
            number = self.random.choice(sorted(self.pair.model.chunks))
            layer = self.random.randrange(self.pair.config.layer_count)
            self.pair.call("block_stage", self.now, number, layer)

    def store_changes(self) -> None:
        if not self.pair.model.chunks:
            return
        chunk = self.pair.model.chunks[self.random.choice(sorted(self.pair.model.chunks))]
        layer = self.random.randrange(self.pair.config.layer_count)
        key = b"".join(word.to_bytes(8, "little") for word in chunk.store.key)
        if self.random.random() < 0.15:
            key = self.random.randbytes(16)
        kind = self.random.choice(["stored", "stored", "stored", "lost", "forget", "restore"])
        if kind == "forget":
            self.pair.call("block_forget", self.now, chunk.tenant, key, layer)
        elif kind == "restore" and self.pair.model.free_chunks:
            self.pair.call("block_restore", self.now, chunk.tenant, key, layer)
        elif kind in ("stored", "lost"):
            self.pair.call(f"block_{kind}", self.now, chunk.number, layer)

    def policy_changes(self) -> None:
        if self.changes and self.random.random() < 0.05:
            self.pair.call("reset", self.now)
        if self.changes and self.random.random() < 0.3:
            self.pair.call("set_policy", self.now, random_policy(self.random))


def random_policy(source: random.Random) -> Policy:
    """Any policy, with limits small enough to be reached."""
    kinds = ["window", "ema", "shared", "prev_step", "prev_layer", "next_n"]
    chosen = source.sample(kinds, source.choice([0, 1, 2, 3, 6]))
    sharing = source.random() < 0.3
    if sharing:
        chosen = ["shared", source.choice(["ema", "window"])]
    names = "+".join(chosen) or "none"
    return Policy(
        prefetchers=names,
        eviction=source.choice([*EVICTIONS, "score"]),
        window_blocks=source.randint(0, 3),
        ema_shift=source.randint(0, 4),
        residency_percent=200 if sharing else source.choice([50, 100, 200]),
        degree_max=8 if sharing else source.choice([0, 1, 2, 8]),
        next_n=source.randint(1, 2),
        prefetch_in_flight_max=source.choice([1, 2, 8]),
        prefetch_bytes_per_s_max=source.choice([0, 0, 4_096_000, 409_600]),
        accuracy_permille_min=source.choice([0, 300, 600]),
        lateness_permille_max=source.choice([0, 100]),
        lease_ns=source.choice([0, 100_000, 5_000_000]),
        probability_permille_min=source.choice([0, 10] if sharing else [0, 10, 50, 160]),
        hint_scores_max=source.choice([0, 0, 1, 5]),
        hint_every_steps=source.choice([1, 1, 3]),
        hint_score_bits=source.choice([8, 16]),
    )
