"""The extension `_mapped`: this package's C, and what every side of the seam has in common."""

from cffi import FFI

from offstage.bindings import sides

builder = FFI()
builder.cdef("uintptr_t mapped_table(void);")
builder.set_source(
    "offstage_mapped._mapped",
    '#include "common.c"\nuintptr_t mapped_table(void);',
    sources=["mapped.c"],
    include_dirs=sides.headers(),
    extra_compile_args=["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra"],
)
