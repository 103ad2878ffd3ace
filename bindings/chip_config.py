"""A network of hardware units as the engine in C takes it, with all that the struct points at.

`BadInput` for a network whose names, numbers or rows the engine has no room for. The extension is
loaded here, and refused where it is of another release.
"""

from dataclasses import dataclass, field
from typing import Any

from offstage.bindings import firmware
from offstage.bindings.errors import BadInput, Incompatible
from offstage.bindings.layouts import names
from offstage.bindings.network import Limits, Network, Unit, index_of, whole

try:
    from offstage.bindings._chip import ffi, lib
except ImportError as error:
    raise Incompatible(
        f"the chip extension does not load ({error})",
        "offstage.bindings",
        "in a checkout run `make dev`, elsewhere reinstall offstage",
    ) from None

__all__ = ["ITEMS", "KINDS", "QUEUES", "ChipConfig", "ffi", "lib"]

if lib.ofs_chip_version() != firmware.ABI_VERSION:
    raise Incompatible(
        f"the chip extension has ABI {lib.ofs_chip_version()}, "
        f"this release needs {firmware.ABI_VERSION}",
        "offstage.bindings",
        "in a checkout run `make dev`, elsewhere reinstall offstage",
    )

KINDS = names("enum ofs_chip_kind", "OFS_CHIP_KIND_", ffi)
"""The kinds of units: server, link, pipe, banks, tags, delay, drive."""
QUEUES = names("enum ofs_chip_queue", "OFS_CHIP_QUEUE_", ffi)
"""Who of those that wait is served next."""
ITEMS = names("enum ofs_chip_items", "OFS_CHIP_ITEMS_", ffi)
"""What a stage counts as items: `none`, `blocks` (the request's `count`), `scores`, or `missed`,
the keys that its last visit to tags did not find."""
_END = int(lib.OFS_CHIP_END)
_NAME_BYTES = 24


@dataclass(eq=False)
class ChipConfig:
    """The C view of a network, with all that it points at."""

    network: Network
    seed: int
    limits: Limits
    struct: Any = field(init=False)

    def __post_init__(self) -> None:
        stages, routes = self._stages()
        self._kept: list[Any] = []
        units = [self._unit(unit) for unit in self.network.units]
        self._kept += [
            ffi.new("struct ofs_chip_unit[]", units),
            ffi.new("struct ofs_chip_stage[]", stages),
            ffi.new("uint32_t[]", routes),
        ]
        self.struct = ffi.new("struct ofs_chip_config *")
        self.struct.units, self.struct.stages, self.struct.routes = self._kept[-3:]
        self.struct.unit_count, self.struct.stage_count = len(self.network.units), len(stages)
        self.struct.route_count, self.struct.seed = len(routes), self.seed
        if rows := self.network.coded():
            self._kept.append(ffi.new("uint16_t[]", [one for row in rows for one in row]))
            self.struct.coded_permille = self._kept[-1]
            self.struct.coded_rows, self.struct.coded_parts = len(rows), len(rows[0])
        for name, value in vars(self.limits).items():
            setattr(self.struct, name, whole(value, name, "chip"))

    def _unit(self, unit: Unit) -> dict[str, Any]:
        name = unit.name.encode()
        if not 0 < len(name) < _NAME_BYTES:
            raise BadInput("a name has 1 to 23 bytes", f"unit {unit.name!r}", "shorten it")
        rows = [vars(row) for row in unit.load_rows]
        if len(rows) > lib.OFS_CHIP_LOAD_ROWS:
            raise BadInput(
                f"{len(rows)} load rows", f"unit {unit.name}", f"at most {lib.OFS_CHIP_LOAD_ROWS}"
            )
        numbers = (
            "servers",
            "queue_max",
            "in_flight_max",
            "set_count",
            "way_count",
            "fixed_ps",
            "item_ps",
            "mib_ps",
            "latency_ps",
            "pause_every_ps",
            "pause_ps",
            "load_span_ps",
            "draw_span_ps",
        )
        found: dict[str, Any] = {
            "name": name,
            "kind": index_of(KINDS, unit.kind, f"unit {unit.name}", "kind"),
            "queue": index_of(QUEUES, unit.queue, f"unit {unit.name}", "queue"),
            "drops": int(unit.drops),
            "load_row_count": len(rows),
            "load_rows": rows,
            **{one: whole(getattr(unit, one), one, f"unit {unit.name}") for one in numbers},
        }
        if unit.drive is not None:
            drive: Any = firmware.ffi.new("struct ofs_nvme_params *", dict(unit.drive))
            self._kept.append(drive)
            address = int(firmware.ffi.cast("uintptr_t", drive))
            found["drive"] = ffi.cast("struct ofs_nvme_params *", address)
        if unit.qos is not None:
            shares = [vars(one) for one in unit.tenants]
            try:
                qos: Any = ffi.new("struct ofs_qos_config *", vars(unit.qos))
                tenants: Any = ffi.new("struct ofs_qos_tenant[]", shares)
            except OverflowError as error:
                raise BadInput(str(error), f"unit {unit.name}", "numbers from 0") from None
            qos.tenant_count = len(shares)
            self._kept += [qos, tenants]
            found["qos"], found["tenants"] = qos, tenants
        return found

    def _stages(self) -> tuple[list[dict[str, Any]], list[int]]:
        """The stages of all routes, one route behind the other, and where each begins."""
        units = {unit.name: number for number, unit in enumerate(self.network.units)}
        found: list[dict[str, Any]] = []
        starts = []
        for steps in self.network.steps().values():
            base = len(found)
            starts.append(base)
            for step in steps:
                stage, where = step.stage, step.where
                found.append(
                    {
                        "unit": units[stage.unit],
                        "next": _END if step.next is None else base + step.next,
                        "miss": _END if step.miss is None else base + step.miss,
                        "bytes_permille": whole(stage.bytes_permille, "bytes_permille", where),
                        "coded": int(stage.coded),
                        "items": index_of(ITEMS, stage.items, where, "items"),
                        "piece_bytes": whole(stage.piece_bytes, "piece_bytes", where),
                        "join": int(stage.join),
                        "write": int(stage.write),
                        "keys": whole(stage.keys, "keys", where),
                        **{
                            one: whole(getattr(stage, one), one, where)
                            for one in ("fixed_ps", "item_ps", "mib_ps")
                        },
                    }
                )
        return found, starts
