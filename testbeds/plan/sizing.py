"""The resources of a place for KV between two turns: GPUs, drives, dollars and watts.

Model: every user has one session, answers take `pace` a token, and after `gap` seconds the next
turn needs the whole context, of which context / turns is new. What is new or not found is prefilled
and written. KV of running answers is in HBM; waiting KV is in one place: nowhere (every turn is
prefilled again), HBM, or a tier. A replica is the GPUs that hold the weights once; its size is the
power of two that takes the fewest GPUs in total. GPUs are bound by the room for live KV, by
prefilling, or by the rate of HBM while decoding; a tier by its capacity, its rates, or its write
endurance. Loads are means: queueing at the peak is not included, and bandwidth is not divided among
GPUs. With a time for a cold start, drives have room for the weights too, and beside KV's reads the
rate that loads one replica within that time.

All of it is a pure function of the question and of values in base units. What can fail: nothing;
a place that does not work for the question has infinite costs and says why.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from offstage.bindings import tradeoffs as at
from offstage.testbeds.plan.kv import DTYPES
from offstage.testbeds.plan.question import DRIVES, Question

__all__ = ["RECOMPUTE", "Place", "fetch_rate", "floor_bytes_per_s", "places", "wears"]

RECOMPUTE = "recompute"
"""No place: KV is not kept, and is prefilled again."""
MACHINE = 8
"""GPUs of a machine; a replica spans more only if fewer cannot hold it."""
REPLICA_LIMIT = 1 << 12
MTOK = 1e6
KWH = 3_600.0 * 1_000.0


@dataclass
class Place:
    """One place. Rates are means over all users; `devices` by the need that requires them."""

    name: str
    gpus: int = 0
    replica: int = 0
    sessions_per_replica: int = 0
    gpu_binds: str = ""
    active: float = 0.0
    turns_per_s: float = 0.0
    first_token_s: float = math.inf
    fetch_s: float = 0.0
    """Of it, what a turn waits for its KV; 0 where there is no tier."""
    capacity_bytes: float = 0.0
    read_bytes_per_s: float = 0.0
    write_bytes_per_s: float = 0.0
    cold_start_s: float = math.inf
    """To load a replica's weights from the drives beside KV; infinite where they are not there."""
    devices: dict[str, int] = field(default_factory=dict)
    dpus: int = 0
    device_binds: str = ""
    years: float = math.inf
    """Of the drives, with a store that leaves room."""
    years_full: float = math.inf
    """Of as many drives, with a full store."""
    devices_full: int = 0
    """Devices with a full store."""
    usd_per_h: float = math.inf
    usd_per_mtok: float = math.inf
    usd_per_mtok_decoded: float = math.inf
    kwh_per_mtok: float = math.inf
    note: str = ""

    @property
    def count(self) -> int:
        """Devices of the tier."""
        return max(self.devices.values(), default=0)


@dataclass(frozen=True)
class Load:
    """The users' load, whatever the place."""

    users: int
    tokens: int
    new: float
    shared: float
    weights: float
    b: float
    room: float
    """HBM of one GPU for weights and KV."""
    prefill: float
    """Tokens that one GPU prefills in a second."""
    decode: float
    """Bytes that one GPU reads of its HBM in a second."""
    v: Mapping[str, float]
    gpu: str

    @staticmethod
    def of(question: Question, v: Mapping[str, float]) -> "Load":
        gpu, tokens = question.gpu, question.tokens
        rate = v["serving.prefill"] * v[f"{gpu}.compute"] / (2.0 * v["model.active"])
        return Load(
            question.users,
            tokens,
            tokens / question.turns,
            question.shared,
            v["model.parameters"] * DTYPES[question.weights],
            v["model.kv"],
            v[f"{gpu}.memory"] * v["serving.memory_share"],
            rate,
            v[f"{gpu}.bandwidth"] * v["serving.bandwidth_share"],
            v,
            gpu,
        )

    @property
    def found(self) -> float:
        """Tokens of a turn that its place still has."""
        return (self.tokens - self.new) * self.v["workload.prefix"]

    @property
    def answer_s(self) -> float:
        return self.v["workload.answer"] * self.v["workload.pace"]

    def rate(self, busy_s: float) -> float:
        """Turns a second of all users."""
        return self.users / (self.v["workload.gap"] + busy_s)


def places(question: Question, v: Mapping[str, float]) -> list[Place]:
    """Every place of the question, recomputing first."""
    load = Load.of(question, v)
    names = [RECOMPUTE, *question.tiers]
    return [_place(name, question, load) for name in names]


def wears(v: Mapping[str, float], *, full: bool = False) -> float:
    """Of a drive's endurance, bytes that one byte of KV takes: what flash writes for it, over what
    it writes for a byte of the writes that endurance is given for."""
    return v["wear.full" if full else "wear.roomy"] / v["wear.rated"]


def fetch_rate(name: str, question: Question, v: Mapping[str, float], devices: int) -> float:
    """Bytes per second that `devices` devices of a tier give to hosts."""
    if name == "dpu":
        dpus = max(1, math.ceil(devices * v["tlc.read"] / v[f"{question.dpu}.link"]))
        return min(devices * v["tlc.read"], dpus * v[f"{question.dpu}.link"])
    return max(devices, 1) * v[f"{name}.read"]


def _place(name: str, question: Question, load: Load) -> Place:
    place = Place(name)
    tier = name not in (RECOMPUTE, "hbm")
    if tier:
        _tier(place, question, load)
    best: Place | None = None
    for replica in _replicas(load):
        one = _served(Place(**{**place.__dict__}), replica, question, load, tier)
        if one.gpus and (best is None or one.gpus < best.gpus):
            best = one
    if best is None:
        place.note = "the model and one session do not fit into a machine of these GPUs"
        return place
    slots = load.v.get(f"{name}.slots")
    machines = math.ceil(best.gpus / MACHINE)
    if slots is not None and best.count > slots * machines and not best.note:
        best.note = f"needs {best.count} slots, has {math.floor(slots * machines)}"
    _price(best, question, load, tier)
    return best


def _replicas(load: Load) -> list[int]:
    """Powers of two that hold the weights and one session, up to a machine or the first that
    does."""
    least = (load.weights + load.tokens * load.b) / load.room
    sizes: list[int] = []
    size = 1
    while size <= REPLICA_LIMIT and (size <= MACHINE or not sizes):
        if size >= least:
            sizes.append(size)
        size *= 2
    return sizes


def _tier(place: Place, question: Question, load: Load) -> None:
    """The number of devices, and the need that requires them; a rented tier has none, and each
    host reads alone."""
    v, base = load.v, "tlc" if place.name == "dpu" else place.name
    turns = load.rate(load.answer_s)
    place.capacity_bytes = at.capacity_bytes(load.users, load.tokens, load.b, load.shared)
    place.read_bytes_per_s = turns * load.found * load.b
    place.write_bytes_per_s = turns * (load.tokens - load.found) * load.b
    if f"{base}.rent" in v:
        place.device_binds = "read"
        return
    floor = floor_bytes_per_s(question, v) if place.name in DRIVES else 0.0
    held = load.weights if floor else 0.0
    needs = {
        "capacity": (place.capacity_bytes + held) / v[f"{base}.capacity"],
        "read": (place.read_bytes_per_s + floor) / v[f"{base}.read"],
        "write": place.write_bytes_per_s / v[f"{base}.write"],
    }
    if f"{base}.endurance" in v:
        life_s = v["serving.life"] * 3_600.0
        put = place.write_bytes_per_s * life_s / v[f"{base}.endurance"]
        needs["wear"] = put * wears(v)
    place.devices = {what: max(1, math.ceil(need)) for what, need in needs.items()}
    place.device_binds = max(needs, key=lambda what: needs[what])
    if "wear" in needs:
        bought = place.count * v[f"{base}.endurance"]
        place.years = at.life_years(bought, place.write_bytes_per_s, wears(v))
        place.years_full = at.life_years(bought, place.write_bytes_per_s, wears(v, full=True))
        place.devices_full = max(place.count, math.ceil(put * wears(v, full=True)))
    if place.name == "dpu":
        traffic = place.read_bytes_per_s + place.write_bytes_per_s + floor
        place.dpus = max(1, math.ceil(traffic / v[f"{question.dpu}.link"]))


def _served(place: Place, replica: int, question: Question, load: Load, tier: bool) -> Place:
    """The GPUs at one size of a replica; 0 if it does not work."""
    v, session = load.v, load.tokens * load.b
    spare = replica * load.room - load.weights - session * load.shared
    alone = at.private_bytes(session, load.shared)
    place.sessions_per_replica = math.floor(spare / alone) if alone else load.users
    if place.sessions_per_replica < 1:
        return place
    asked = load.tokens if place.name == RECOMPUTE else load.tokens - load.found
    place.first_token_s = at.prefill_s(asked, replica * load.prefill)
    if tier:
        rate = min(
            replica * v[f"{load.gpu}.link"], fetch_rate(place.name, question, v, place.count)
        )
        place.fetch_s = at.fetch_s(load.found, load.b, rate, _latency(place.name, question, v))
        place.first_token_s += place.fetch_s
        _cold_start(place, replica, question, load)
        if load.found and place.fetch_s >= at.prefill_s(load.found, replica * load.prefill):
            place.note = "slower than prefilling again"
    busy_s = place.first_token_s + load.answer_s
    place.turns_per_s = load.rate(busy_s)
    place.active = min(float(load.users), place.turns_per_s * busy_s)
    held = load.users if place.name == "hbm" else math.ceil(place.active)
    prefilling = place.turns_per_s * asked / load.prefill
    decoding = place.turns_per_s * load.answer_s
    reading = decoding * session / v["workload.pace"] / load.decode
    weights = load.weights / v["workload.pace"] / load.decode
    if weights >= replica:
        return place
    room = math.ceil(held / place.sessions_per_replica)
    work = math.ceil((prefilling + reading) / (replica - weights))
    place.replica, place.gpus = replica, replica * max(room, work, 1)
    place.gpu_binds = (
        "room for KV" if room >= work else ("prefill" if prefilling >= reading else "HBM bandwidth")
    )
    return place


def floor_bytes_per_s(question: Question, v: Mapping[str, float]) -> float:
    """What the weights of one replica must be read with to be there in time; 0: not asked for."""
    within_s = question.cold_start_s
    weights = v["model.parameters"] * DTYPES[question.weights]
    return weights / within_s if within_s else 0.0


def _cold_start(place: Place, replica: int, question: Question, load: Load) -> None:
    """How long the weights take with what KV leaves of the drives, or with the replica's links."""
    floor = floor_bytes_per_s(question, load.v)
    if place.name not in DRIVES or not floor:
        return
    links = replica * load.v[f"{load.gpu}.link"]
    left = fetch_rate(place.name, question, load.v, place.count) - place.read_bytes_per_s
    place.cold_start_s = at.transfer_s(load.weights, min(left, links))
    if floor > links:
        place.note = f"the links of {replica} GPUs take {at.transfer_s(load.weights, links):.2g} s"


def _latency(name: str, question: Question, v: Mapping[str, float]) -> float:
    if name == "dpu":
        return v["tlc.latency"] + v[f"{question.dpu}.latency"]
    return v[f"{name}.latency"]


def _price(place: Place, question: Question, load: Load, tier: bool) -> None:
    """Dollars an hour and a million tokens, and energy separately, which dollars do not include."""
    v, base = load.v, "tlc" if place.name == "dpu" else place.name
    usd = place.gpus * v[f"{load.gpu}.hour"]
    watts = place.gpus * v[f"{load.gpu}.power"]
    if tier and f"{base}.rent" in v:
        usd += place.capacity_bytes / at.GB * v[f"{base}.rent"] / at.HOURS_PER_MONTH
    elif tier:
        bought = place.count * v[f"{base}.capacity"]
        usd += at.hold_usd(bought, v[f"{base}.price"], 3_600.0, v["serving.life"])
        watts += place.count * v[f"{base}.power"]
    if place.dpus:
        usd += place.dpus * v[f"{question.dpu}.each"] / v["serving.life"]
        watts += place.dpus * v[f"{question.dpu}.power"]
    turns_per_h = 3_600.0 * place.turns_per_s
    tokens_per_h = turns_per_h * (load.tokens + v["workload.answer"])
    place.usd_per_h = usd
    place.usd_per_mtok = usd / tokens_per_h * MTOK
    place.usd_per_mtok_decoded = usd / (turns_per_h * v["workload.answer"]) * MTOK
    place.kwh_per_mtok = watts * 3_600.0 / KWH / tokens_per_h * MTOK
