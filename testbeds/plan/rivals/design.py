"""The rivals, and what a budget buys of each: capacity, rates and watts of one GPU's part.

Model: a rival is a memory of the catalog and a path to it (`testbeds/prices/rival.toml`). A budget
of dollars a GPU pays for the path first, and the rest of it buys modules or drives of a machine of
eight GPUs: as many as slots and the smallest size that is sold allow, because reads a second come
with devices and not with their size. What the slots do not take is not spent.

Pure; a budget that buys no device gives a design that says so.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from offstage.bindings import tradeoffs as at
from offstage.testbeds.plan.sizing import MACHINE

__all__ = ["DPU", "HBM", "RIVALS", "Bought", "Rival", "bought", "devices_of"]

HBM, DPU = "hbm", "dpu"


@dataclass(frozen=True)
class Rival:
    """One way to keep KV. `memory`: a device of the catalog; `own`: its path has a link of its own,
    else the GPU's; `pooled`: its modules need no slots of the machine; `packaged`: each GPU has as
    many as the others, or none."""

    label: str
    memory: str
    own: bool = False
    pooled: bool = False
    packaged: bool = False


RIVALS: dict[str, Rival] = {
    HBM: Rival("HBM alone", "hbm"),
    "dram": Rival("host DRAM over PCIe", "ddr5"),
    "c2c": Rival("unified memory over C2C", "lpddr5x", own=True, packaged=True),
    "cxl": Rival("CXL expanders", "cxl"),
    "cxl-pool": Rival("CXL pool", "cxl", own=True, pooled=True),
    "rdma": Rival("RDMA pool of DRAM", "ddr5", own=True, pooled=True),
    "nvme": Rival("local TLC, reads by the GPU", "tlc"),
    "xl-flash": Rival("local XL-FLASH, reads by the GPU", "xl-flash"),
    DPU: Rival("flash behind a DPU", "tlc"),
    "hbf": Rival("HBF, as announced", "hbf", own=True, packaged=True),
}
"""Every rival by its name, which its path has in the catalog behind `rival-`."""


@dataclass(frozen=True)
class Bought:
    """One GPU's part. `rate`: bytes per second, `iops`: reads per second, `wait_s`: of one read
    that meets no other, `slowest_s`: of the slowest of a layer's."""

    capacity: float
    rate: float
    iops: float
    wait_s: float
    slowest_s: float
    under_way: float
    granule: float
    usd: float
    watts: float
    note: str = ""


def devices_of(gpu: str, dpu: str) -> list[str]:
    """The devices of the catalog that rivals take numbers from."""
    memories = [one.memory for one in RIVALS.values()]
    paths = [f"rival-{name}" for name in RIVALS]
    return [gpu, dpu, *memories, *paths, "rivals", "serving", "workload"]


def bought(name: str, budget: float, gpu: str, dpu: str, v: Mapping[str, float]) -> Bought:
    """What `budget` dollars a GPU buy of a rival, by values in base units."""
    rival, path = RIVALS[name], f"rival-{name}"
    if name == HBM:
        return Bought(0.0, math.inf, math.inf, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0)
    memory, fixed, watts = rival.memory, v[f"{path}.each"], v[f"{path}.power"]
    link, wait = v[f"{gpu}.link"], v[f"{path}.latency"] if name != DPU else v[f"{dpu}.latency"]
    if rival.own:
        link = v.get(f"{path}.link", math.inf)
    issued = v.get(f"{path}.iops", math.inf)
    if name == DPU:
        part = 1.0 / v[f"{path}.shares"]
        fixed += v[f"{dpu}.each"] * part
        watts += v[f"{dpu}.power"] * part
        link, issued = min(link, v[f"{dpu}.link"] * part), issued * part
    each = v[f"{memory}.price"] * v[f"{path}.least"] / at.GB
    money = MACHINE * (budget - fixed)
    count = min(max(0.0, money / each), math.inf if rival.pooled else v[f"{memory}.slots"])
    count = math.floor(count) // MACHINE * MACHINE if rival.packaged else math.floor(count)
    size = min(money / v[f"{memory}.price"] * at.GB, count * v[f"{memory}.capacity"])
    size = size if count else 0.0
    note = (
        "" if count else f"${budget:,.0f} a GPU buy the path to it and no device, or not the path"
    )
    device = v[f"{memory}.latency"]
    return Bought(
        capacity=size / MACHINE,
        rate=min(link, count * v[f"{memory}.read"] / MACHINE),
        iops=min(issued, count * v[f"{memory}.iops"] / MACHINE),
        wait_s=wait + device,
        slowest_s=wait + device * v[f"{path}.tail"],
        under_way=v[f"{path}.concurrency"],
        granule=v[f"{path}.granule"],
        usd=fixed + size * v[f"{memory}.price"] / at.GB / MACHINE,
        watts=watts + count * v[f"{memory}.power"] / MACHINE,
        note=note,
    )
