"""Run a program under a container's seccomp profile, and without capabilities, but in no container.

    python tests/reference/under_seccomp.py PROFILE.json WORD...

libseccomp makes the filter, as it does for container runtimes, and skips calls that it does not
know, as they do. Exit code 77 where the library is missing.
"""

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

PR_CAPBSET_DROP = 24
CAPABILITIES = 64
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
COMPARED = {"SCMP_CMP_EQ": 4, "SCMP_CMP_MASKED_EQ": 7}
MISSING = 77


class Compared(ctypes.Structure):
    """`struct scmp_arg_cmp`."""

    _fields_ = (
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("datum_a", ctypes.c_uint64),
        ("datum_b", ctypes.c_uint64),
    )


def library() -> ctypes.CDLL | None:
    """libseccomp, which Debian's apt and systemd bring; None where it is missing."""
    try:
        found = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    except OSError:
        return None
    found.seccomp_init.restype = ctypes.c_void_p
    found.seccomp_init.argtypes = [ctypes.c_uint32]
    found.seccomp_load.argtypes = [ctypes.c_void_p]
    found.seccomp_rule_add_array.argtypes = [
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.POINTER(Compared),
    ]
    return found


def number(name: str) -> int:
    """The number of a system call here; negative where this processor or library has none."""
    found = library()
    assert found is not None
    return int(found.seccomp_syscall_resolve_name(name.encode()))


def load(profile: dict[str, Any]) -> None:
    """Put this process, and all that it starts, under the profile for good."""
    found = library()
    assert found is not None
    context = found.seccomp_init(ERRNO | profile["defaultErrnoRet"])
    for rule in profile["syscalls"]:
        action = ALLOW if rule["action"] == "SCMP_ACT_ALLOW" else ERRNO | rule["errnoRet"]
        if action == ERRNO | profile["defaultErrnoRet"]:
            continue  # libseccomp takes no rule that says the same
        compared = [
            Compared(one["index"], COMPARED[one["op"]], one["value"], one.get("valueTwo", 0))
            for one in rule.get("args", [])
        ]
        for name in rule["names"]:
            if number(name) >= 0:
                given = (Compared * len(compared))(*compared)
                rc = found.seccomp_rule_add_array(
                    context, action, number(name), len(compared), given
                )
                assert rc == 0, (name, rc)
    rc = found.seccomp_load(context)
    assert rc == 0, rc


def main() -> None:
    """Drop what root has, load the profile, and become the program."""
    if library() is None:
        sys.exit(MISSING)
    if os.geteuid() == 0:
        for capability in range(CAPABILITIES):
            ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    load(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
