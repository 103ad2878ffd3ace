"""Do the structs of figures have the same fields as those in C, in the same order?"""

import msgspec
import pytest

from offstage.bindings.figures import (
    DeviceStatus,
    DmaTotals,
    EventWork,
    MoveStatus,
    StorageStats,
    StoreStats,
    TenantStatus,
)
from offstage.bindings.layouts import layout
from offstage.bindings.ledger import Ledger


@pytest.mark.parametrize(
    ("struct", "kind", "more"),
    [
        ("ofs_device_status", DeviceStatus, ["work"]),
        ("ofs_dma_totals", DmaTotals, ["warning"]),
        ("ofs_ledger", Ledger, []),
        ("ofs_move_status", MoveStatus, []),
        ("ofs_storage_stats", StorageStats, []),
        ("ofs_store_stats", StoreStats, []),
        ("ofs_tenant_status", TenantStatus, []),
        ("ofs_work", EventWork, []),
    ],
)
def test_the_fields_are_those_of_c(
    struct: str, kind: type[msgspec.Struct], more: list[str]
) -> None:
    assert [*(layout(f"struct {struct}").names or ()), *more] == list(kind.__struct_fields__)
