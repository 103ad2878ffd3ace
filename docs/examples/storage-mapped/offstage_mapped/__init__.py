"""Storage `mapped`: a file as memory, for one that is memory (DAX, persistent memory, CXL)."""

from offstage_mapped._mapped import lib


def table() -> int:
    """The address of the side's `struct ofs_storage_ops`."""
    return int(lib.mapped_table())
