"""Does the configuration show each value and its source, and report errors in one line?"""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offstage.bindings.errors import BadInput
from offstage.bindings.settings import declared
from offstage.dpu.config.derive import derive
from offstage.dpu.config.options import PolicyOptions, Tenant
from offstage.dpu.config.values import SECTIONS, change_policy, change_tenant, load, rows
from offstage.testbeds.cli import run

PATH = {"storage.path": "store.ofs"}


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "daemon.toml"
    path.write_text(text)
    return path


def test_each_source_wins_over_the_weaker_one_and_is_named(tmp_path: Path) -> None:
    """The order is command line, environment, file, default, and `show` names the source."""
    file = write(tmp_path, '[arena]\nsize = "1MiB"\npayload = "4KiB"\nlayers = 3\n')
    environ = {"OFFSTAGE_ARENA_SIZE": "2MiB", "OFFSTAGE_ARENA_PAYLOAD": "8KiB", "PATH": "/bin"}
    config = load(file, {"arena.size": "3MiB"}, environ)
    assert (config.arena.size_bytes, config.arena.payload_bytes) == (3 << 20, 8 << 10)
    assert (config.arena.layers, config.arena.block_tokens) == (3, 64)
    sources = {where: source for where, _, source in rows(config)}
    assert sources["arena.size"] == "command line"
    assert sources["arena.payload"] == "OFFSTAGE_ARENA_PAYLOAD"
    assert sources["arena.layers"] == str(file)
    assert sources["arena.block_tokens"] == "default"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[arena]\nsise = "1MiB"\n', ["[arena]", "'sise'", "'size'"]),
        ("[arenas]\nsize = 1\n", ["'arenas'", "'arena'"]),
        ('[arena]\nsize = "1 parsec"\n', ["[arena] size", "parsec"]),
        ("[arena]\nlayers = 0\n", ["[arena] layers", "choose 1 to"]),
        ('[policy]\nprefetchers = ["windw"]\n', ["'windw'", "window"]),
        ("[storage]\ndirect = 3\n", ["[storage] direct", "true or false"]),
        ('arena = "big"\n', ["[arena]"]),
        ("[[tenant]]\nnme = 'a'\n", ["[[tenant]] 1", "'name'"]),
        ("[arena\n", ["TOML"]),
        ("[arena]\nlayers = " + "9" * 5000 + "\n", ["too large"]),
        ("[arena]\nlayers = " + "[" * 50_000 + "\n", ["too large"]),
    ],
)
def test_what_is_wrong_is_reported_with_location_and_remedy(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    """The one line has the file, the place in it, and the nearest key."""
    file = write(tmp_path, text)
    with pytest.raises(BadInput) as raised:
        load(file, environ={})
    line = str(raised.value)
    assert "\n" not in line and str(file) in line and raised.value.exit_code == 2
    for word in words:
        assert word in line


def test_unknown_variable_of_a_known_section_is_refused_and_others_are_not() -> None:
    """A typing mistake in OFFSTAGE_* is found, while OFFSTAGE_TRACES is left alone."""
    with pytest.raises(BadInput, match=r"OFFSTAGE_ARENA_SISE.*'size'"):
        load(environ={"OFFSTAGE_ARENA_SISE": "1MiB"})
    load(environ={"OFFSTAGE_TRACES": "/somewhere"})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "storage.path is empty"),
        (PATH | {"arena.payload": "33KiB"}, "not a multiple of storage.lba"),
        (PATH | {"arena.size": "64KiB"}, "raise arena.size"),
        (PATH | {"store.segment": "64KiB"}, "raise store.segment"),
        (PATH | {"storage.size": "16MiB"}, "raise storage.size"),
        (PATH | {"limits.port_entries": "48"}, "power of two"),
        (PATH | {"daemon.endpoint": "7411"}, "not an endpoint"),
        (PATH | {"daemon.endpoint": "tcp://0.0.0.0:7411"}, "without CURVE"),
        (PATH | {"daemon.metrics_endpoint": "9411"}, "host:port"),
        (PATH | {"store.write": "back", "store.dirty_max": "99999"}, "lower store.dirty_max"),
        (PATH | {"arena.granule_tokens": "24"}, "24, and a block has 64 .*divisor"),
        (PATH | {"arena.granule_tokens": "40"}, "40, and a block has 64 .*divisor"),
        (PATH | {"arena.granule_tokens": "128"}, "128, and a block has 64 .*divisor"),
        (PATH | {"arena.granule_tokens": "1"}, "1, and a block has 64 .*at most 32"),
        (PATH | {"arena.granule_tokens": "4", "storage.lba": "4096"}, "2,048 B.*smaller lba"),
        (PATH | {"arena.granule_tokens": "16", "store.codec": "bfloat16"}, "one of the two"),
        ({"storage.path": "/no/such/directory/store"}, "mkdir -p /no/such/directory"),
        (PATH | {"storage.nvme": "foo"}, "storage.nvme 'foo' is not a preset"),
        (PATH | {"daemon.fabric_endpoint": "tcp://127.0.0.1:7411"}, "give each its own port"),
        (PATH | {"daemon.endpoint": "tcp://127.0.0.1:²"}, "has no port"),
        (PATH | {"pod.map": "pod.toml"}, "give --pod-name or pod.name"),
        (PATH | {"pod.map": "pod.toml", "pod.name": "../a"}, "not a name for a member"),
        (PATH | {"pod.map": "p.toml", "pod.name": "a", "pod.endpoint": "b"}, "not an endpoint"),
        (PATH | {"pod.map": "p.toml", "pod.name": "a", "pod.endpoint": "tcp://b:*"}, "no port"),
    ],
)
def test_values_that_contradict_each_other_are_refused(
    settings: dict[str, str], words: str
) -> None:
    """Each relation is checked before the daemon opens anything."""
    with pytest.raises(BadInput, match=words):
        derive(load(overrides=settings, environ={}))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("sharing = 'host'\nusers = ['7']", r"\[\[tenant\]\] 1 sharing.*user"),
        ("sharing = 'user'", "'a'.*sharing is 'user'.*name its users or groups"),
        ("sharing = 'user'\ngroups = ['7']\n[daemon]\nfabrics = ['zmq']", "add shm to daemon"),
    ],
)
def test_users_that_cannot_be_told_apart_are_not_said_to_be(
    tmp_path: Path, lines: str, words: str
) -> None:
    """`sharing` is refused in one line where users cannot be distinguished."""
    tenant = f"[[tenant]]\nname = 'a'\n{lines}"
    with pytest.raises(BadInput, match=words) as raised:
        derive(load(write(tmp_path, tenant), PATH, {}))
    assert "\n" not in str(raised.value)
    derive(load(write(tmp_path, "[[tenant]]\nsharing = 'user'\nusers = ['7']"), PATH, {}))
    with pytest.raises(BadInput, match="sharing"):
        change_tenant(Tenant(users=("7",)), {"sharing": "user"}, "tenant.default")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("floor = '2GB/s'\nbandwidth = '1GB/s'", "bandwidth is 1 GB/s, below the floor of 2 GB/s"),
        ("floor = '9B/s'", "floor is 9 bytes a second"),
        (
            "floor = '13GB/s'\n[[tenant]]\nname = 'b'\nfloor = '2GB/s'",
            "15 GB/s, and gen5-tlc reads",
        ),
    ],
)
def test_a_floor_is_within_its_cap_and_what_an_emulated_drive_reads(
    tmp_path: Path, lines: str, words: str
) -> None:
    emulated = {"storage.backend": "emulated"}
    tenant = f"[[tenant]]\nname = 'a'\n{lines}"
    with pytest.raises(BadInput, match=words) as raised:
        derive(load(write(tmp_path, tenant), emulated, {}))
    assert "\n" not in str(raised.value)
    with pytest.raises(BadInput, match="below the floor"):
        change_tenant(Tenant(bandwidth_bytes_per_s=1000), {"floor": "2KB/s"}, "tenant.a")


def test_streams_need_a_handle_each(tmp_path: Path) -> None:
    """Are fewer handles than tenants refused in one line, the one for headers among them, and asked
    for only where it is set?"""
    text = "[[tenant]]\nname = 'a'\n[[tenant]]\nname = 'b'"
    for enough in ("0", "3"):
        derive(load(write(tmp_path, text), PATH | {"storage.handles_min": enough}, {}))
    with pytest.raises(BadInput, match=r"2 tenants need 3 placement handles.*, 2, or") as one:
        derive(load(write(tmp_path, text), PATH | {"storage.handles_min": "2"}, {}))
    assert "\n" not in str(one.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"nvme.listen": "4420"}, "nvme.listen: .*host:port"),
        ({"nvme.listen": "192.0.2.1:4420"}, "not encrypted.*daemon.insecure"),
        ({"nvme.listen": "0.0.0.0:4420", "daemon.insecure": "yes"}, "the address that hosts reach"),
        ({"limits.values": "0"}, "limits.values is not set"),
        ({"pod.map": "pod.toml", "pod.name": "a"}, "a pod's member has no volumes"),
    ],
)
def test_what_cannot_be_served_over_nvme_tcp_is_refused(
    tmp_path: Path, settings: dict[str, str], words: str
) -> None:
    """A listener has volumes to serve, values to keep, and an address that may be known."""
    tenant = f"[[tenant]]\nvolumes = ['{'a' * 32}']"
    good = PATH | {"nvme.listen": "127.0.0.1:4420", "limits.values": "64"}
    derive(load(write(tmp_path, tenant), good, {}))
    with pytest.raises(BadInput, match=words):
        derive(load(write(tmp_path, tenant), good | settings, {}))
    for none in ("", "\nsharing = 'user'\nusers = ['7']"):
        text = "[[tenant]]" + (none and f"\nvolumes = ['{'a' * 32}']{none}")
        with pytest.raises(BadInput, match="no tenant whose users share lists a volume"):
            derive(load(write(tmp_path, text), good, {}))


def test_a_port_that_cannot_list_keys_keeps_no_values(tmp_path: Path) -> None:
    """A list takes two values a command, so a daemon that keeps any has room for those."""
    values = PATH | {"limits.values": "64"}
    derive(load(write(tmp_path, ""), values | {"limits.demands": "8"}, {}))
    derive(load(write(tmp_path, ""), PATH | {"limits.values": "0", "limits.demands": "1"}, {}))
    with pytest.raises(BadInput, match=r"limits.demands is 7, too little .* raise it to 8"):
        derive(load(write(tmp_path, ""), values | {"limits.demands": "7"}, {}))


def test_tenants_share_the_arena_and_bad_shares_are_refused(tmp_path: Path) -> None:
    """Shares add up to the arena, and a tenant without slots is refused."""
    two = "[[tenant]]\nname = 'a'\nshare_percent = {}\n[[tenant]]\nname = 'b'\n[[tenant]]\nname='c'"
    config = load(write(tmp_path, two.format(50)), PATH, {})
    total = config.arena.size_bytes // (36 << 10)
    counts = derive(config).slot_counts
    assert counts[0] == total // 2 and counts[1] == counts[2] and sum(counts) <= total
    assert derive(config).core_reads == 3 * 2 * config.limits.demands + 48  # 48 for prefetches
    capped = two.format(50).replace("'b'", "'b'\narena_max = '36MiB'")
    counts = derive(load(write(tmp_path, capped), PATH, {})).slot_counts
    assert counts[1] == 1024 and counts[2] == total - total // 2 - 1024  # c gets the rest
    for leaf, words in ((f"{36 * 7}KiB", "gives tenant 'a' 7 blocks"), ("1TiB", "")):
        text = two.format(50).replace("50", f"50\narena_max = '{leaf}'")
        with pytest.raises(BadInput, match=words) if words else contextlib.nullcontext():
            assert derive(load(write(tmp_path, text), PATH, {})).slot_counts[0] == total // 2
    alone = load(overrides={"storage.path": str(tmp_path / "s")}, environ={})
    assert derive(alone).core_reads == alone.limits.reads
    with pytest.raises(BadInput, match="add up to 100 %"):
        derive(load(write(tmp_path, two.format(100)), PATH, {}))
    for names, words in (
        ("'a' 'a'", "twice"),
        ("'operator'", "not a name"),
        ("'a/b'", "not a name"),
    ):
        text = "".join(f"[[tenant]]\nname = {name}\n" for name in names.split())
        with pytest.raises(BadInput, match=words):
            derive(load(write(tmp_path, text), PATH, {}))


def test_every_shown_value_reads_back_as_itself() -> None:
    """The output of `config show` can be given as input unchanged."""
    config = load(overrides=PATH, environ={})
    typed = {where: shown for where, shown, _ in rows(config) if not where.startswith("tenant.")}
    again = load(overrides=typed, environ={})
    for section in SECTIONS:
        assert getattr(again, section) == getattr(config, section)


@given(st.integers(1 << 20, 1 << 46), st.integers(0, 10**12), st.integers(0, 1 << 62))
def test_any_size_time_and_rate_reads_back(size: int, time_ns: int, rate: int) -> None:
    """A value of any magnitude is shown exactly: no digit is lost to rounding."""
    given_text = {"arena.size": str(size), "policy.lease": f"{time_ns}ns"}
    config = load(overrides={**PATH, **given_text, "policy.bandwidth": str(rate)}, environ={})
    shown = {where: text for where, text, _ in rows(config) if where.split(".")[0] != "tenant"}
    again = load(overrides=shown, environ={})
    assert again.arena == config.arena and again.policy == config.policy


def test_a_hot_change_touches_only_its_keys_and_refuses_the_rest() -> None:
    """`policy set` parses as the file does, and changes nothing when it refuses."""
    old = PolicyOptions(window_tokens=9)
    new = change_policy(old, {"prefetchers": "none", "policy.bandwidth": "2GB/s"})
    assert new.prefetchers == () and new.bandwidth_bytes_per_s == 2 * 10**9
    assert new.window_tokens == 9 and new.eviction == old.eviction
    with pytest.raises(BadInput, match=r"arena.size is read at the start alone.*start it anew"):
        change_policy(old, {"arena.size": "32MiB"})
    with pytest.raises(BadInput, match=r"'5' is not a time; write one such as 20ms"):
        change_policy(old, {"lease": "5"})
    assert change_policy(old, {"lease": "0"}).lease_ns == 0
    with pytest.raises(BadInput, match=r"'evicton'.*'eviction'"):
        change_policy(old, {"evicton": "lru"})


def test_a_tenants_key_that_needs_a_restart_is_not_called_unknown() -> None:
    with pytest.raises(BadInput, match=r"arena_max is read at the start alone.*restart.*floor"):
        change_tenant(Tenant(), {"arena_max": "1MiB"}, "tenant.a")
    with pytest.raises(BadInput, match="unknown key 'arena_mux'"):
        change_tenant(Tenant(), {"arena_mux": "1MiB"}, "tenant.a")


def test_a_configuration_without_end_is_refused(tmp_path: Path) -> None:
    """No more of it is read than any configuration has."""
    with pytest.raises(BadInput, match="larger than"):
        load(Path("/dev/zero"), environ={})


def test_the_sample_configuration_loads(pytestconfig: pytest.Config) -> None:
    path = Path(str(pytestconfig.rootpath)) / "testbeds/presets/local.toml"
    assert derive(load(path, environ={}))


def test_a_number_without_a_unit_is_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    """In each time option of the configuration and each command that takes a time, a bare number,
    or one with another kind of unit, is refused by name."""
    times = [
        f"{section}.{key}"
        for section, kind in SECTIONS.items()
        for key, one in declared(kind).items()
        if one.unit is not None and one.unit.base == "ns"
    ]
    assert {"policy.lease", "store.ttl", "daemon.spin", "storage.io_timeout"} <= set(times)
    for where in times:
        for text in ("5", "1e9", "5GB/s", "5KiB"):
            with pytest.raises(BadInput, match=f"{where.split('.')[1]}: '{text}' is not a time"):
                load(overrides={**PATH, where: text}, environ={})
    for text in ("5ms", "5s"):
        with pytest.raises(BadInput, match="is not a rate"):
            load(overrides={**PATH, "policy.bandwidth": text}, environ={})
    for words in (
        "dpu status --watch 5",
        "dpu drain --timeout 5",
        "host run --timeout 5",
        "host run --time-per-token 5",
        "demo --time-per-token 5",
    ):
        assert run(words.split()) == 2, words
        assert "'5' is not a time; write one such as 20ms" in capsys.readouterr().err, words
