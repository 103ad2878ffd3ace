"""`offstage dpu`: run the daemon, query it, change its policy, and inspect its files."""

import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from offstage.bindings.errors import BadInput, Corrupt, RunFailed
from offstage.host.endpoint import DEFAULT_ENDPOINT
from offstage.testbeds.beds.device import as_device
from offstage.testbeds.cli.common import (
    ConfigOption,
    CurveOption,
    EndpointOption,
    Fabric,
    Format,
    FormatOption,
    OperatorSecretOption,
    RuntimeDirOption,
    emit,
    operator,
    parse_settings,
    table,
)
from offstage.testbeds.cli.names import presets
from offstage.testbeds.cli.status_shown import Reading
from offstage.testbeds.cli.watch import drawn, interval
from offstage.testbeds.cli.watch import watch as watch_it

__all__ = ["register"]

MOVE_LOOK_S = 0.2
BLOCKS_MAX = (1 << 63) - 1
"""That a message can name."""


dpu = typer.Typer(no_args_is_help=True, help="The daemon on the DPU, or on what stands in for it.")
policy = typer.Typer(no_args_is_help=True, help="What is prefetched and evicted, changed live.")
dpu.add_typer(policy, name="policy")
storage = typer.Typer(no_args_is_help=True, help="What holds the blocks, changed live.")
dpu.add_typer(storage, name="storage")
fabric = typer.Typer(no_args_is_help=True, help="What hosts attach over, changed live.")
dpu.add_typer(fabric, name="fabric")


def register(app: typer.Typer) -> None:
    """Add `offstage dpu`."""
    app.add_typer(dpu, name="dpu")


RecordOption = Annotated[
    Path | None, typer.Option("--record", help="write ledger records and decision log here")
]
SettingsOption = Annotated[
    list[str] | None, typer.Option("--set", help="section.key=value; may be repeated")
]
ReadyOption = Annotated[
    int | None, typer.Option("--ready-fd", help="write the ready line to this descriptor too")
]
WatchOption = Annotated[
    int | None,
    typer.Option("--watch-fd", help="drain and stop when this descriptor's other end closes"),
]
ChipOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        autocompletion=presets,
        help="serve at the pace of this preset of `asic presets`",
    ),
]
DilationOption = Annotated[
    int | None, typer.Option("--dilation", help="run the device's time slower by this factor")
]
PodOption = Annotated[
    str | None, typer.Option("--pod", help="the pod's map: etcd:HOST:PORT,... or a .toml file")
]
PodNameOption = Annotated[
    str | None, typer.Option("--pod-name", help="name of this daemon in the pod")
]
WeightOption = Annotated[
    int | None, typer.Option("--weight", help="its share relative to the other members")
]
ZoneOption = Annotated[str | None, typer.Option("--zone", help="failure domain, such as a rack")]


@dpu.command()
def serve(
    config: ConfigOption = None,
    record: RecordOption = None,
    settings: SettingsOption = None,
    ready_fd: ReadyOption = None,
    watch_fd: WatchOption = None,
    device: ChipOption = None,
    dilation: DilationOption = None,
    pod: PodOption = None,
    pod_name: PodNameOption = None,
    weight: WeightOption = None,
    zone: ZoneOption = None,
) -> None:
    """Run the daemon until SIGTERM drains it.

    When ready it prints one line of JSON: endpoint, metrics_port, runtime_dir, storage, pid. A
    second signal, 2 s after the first or later, stops it at once.
    """
    from offstage.dpu.config.derive import derive
    from offstage.dpu.config.values import load
    from offstage.dpu.control.store_moves import follow
    from offstage.dpu.daemon import Daemon
    from offstage.dpu.process import keep_private, make_room
    from offstage.dpu.storage.device import Device
    from offstage.testbeds.live.checks import found, refuse

    chosen = parse_settings(settings or [])
    if record is not None:
        chosen["daemon.record_dir"] = str(record)
    if device is not None:
        chosen["model.device"] = device
        chosen.setdefault("storage.backend", "emulated")
    if dilation is not None:
        chosen["model.dilation"] = str(dilation)
    in_pod = {"map": pod, "name": pod_name, "weight": weight, "zone": zone}
    chosen |= {f"pod.{key}": str(value) for key, value in in_pod.items() if value is not None}
    loaded, timing = as_device(load(config, chosen))
    loaded, uuid = follow(loaded)
    derived = derive(loaded)
    keep_private(traceable=loaded.daemon.nixl)
    make_room(loaded)
    recording = bool(loaded.daemon.record_dir)
    daemon = Daemon(
        loaded,
        derived,
        lambda: Device(loaded, derived, recording=recording, timing=timing, store_uuid=uuid),
    )
    if any(uuid):
        daemon.log.info("store_moved", serving=loaded.storage.path)
    code = daemon.run(ready_fd, watch_fd)
    if daemon.recorder is not None:
        refuse(found(daemon.recorder.lost), loaded.daemon.record_dir)
    raise typer.Exit(code)


@dpu.command()
def status(
    endpoint: EndpointOption = DEFAULT_ENDPOINT,
    runtime_dir: RuntimeDirOption = None,
    curve_dir: CurveOption = None,
    secret: OperatorSecretOption = None,
    everything: Annotated[
        bool, typer.Option("--all", help="all that the daemon reports, as JSON has it")
    ] = False,
    watch: Annotated[
        str, typer.Option("--watch", help="show it again at this interval, such as 1s; q ends it")
    ] = "",
    count: Annotated[
        int, typer.Option("--count", min=0, help="with --watch: how many times; 0: no limit")
    ] = 0,
    form: FormatOption = Format.text,
) -> None:
    """Show the daemon in ten lines: store, arena, demands, reads, prefetch, hosts, errors, policy.

    With --watch counts and rates are of the interval. On a terminal it is drawn in its place, as
    `top` does; elsewhere one snapshot follows another, and JSON is one line each time.
    """
    every_s = interval(watch, count)
    with operator(endpoint, runtime_dir, curve_dir, secret) as control:
        if every_s > 0:
            return watch_it(control, every_s, count, form, whole=everything)
        now = Reading.of(control)
    emit(now.status, form, drawn(now, whole=everything))


@dpu.command()
def ledger(
    tenant: Annotated[
        str, typer.Argument(help="a tenant's name; default: all tenants together")
    ] = "",
    endpoint: EndpointOption = DEFAULT_ENDPOINT,
    runtime_dir: RuntimeDirOption = None,
    curve_dir: CurveOption = None,
    secret: OperatorSecretOption = None,
    form: FormatOption = Format.text,
) -> None:
    """Print the counters that every figure is computed from: demands by end, prefetches by fate."""
    from offstage.bindings.layouts import CAUSES, ENDS, FATES

    with operator(endpoint, runtime_dir, curve_dir, secret) as control:
        result = msgspec.to_builtins(control.ledger(tenant))
        if not tenant:
            result["wear"] = control.status()["device"]["wear"]
    shown = dict(result)
    for name in ("ends", "nontrivial_ends"):
        shown[name] = dict(zip(ENDS, result[name], strict=True))
    shown["issued"] = dict(zip(CAUSES, result["issued"], strict=True))
    shown["fates"] = {
        cause: dict(zip(FATES, result["fates"][index], strict=True))
        for index, cause in enumerate(CAUSES)
        if any(result["fates"][index])
    }
    emit(result, form, table(shown))


@policy.command("show")
def policy_show(
    endpoint: EndpointOption = DEFAULT_ENDPOINT,
    runtime_dir: RuntimeDirOption = None,
    curve_dir: CurveOption = None,
    secret: OperatorSecretOption = None,
    form: FormatOption = Format.text,
) -> None:
    """The policy in force."""
    with operator(endpoint, runtime_dir, curve_dir, secret) as control:
        result = control.policy()
    emit(result, form, table(result))


@policy.command("set")
def policy_set(
    changes: Annotated[list[str], typer.Argument(help="KEY=VALUE of [policy]")],
    endpoint: EndpointOption = DEFAULT_ENDPOINT,
    runtime_dir: RuntimeDirOption = None,
    curve_dir: CurveOption = None,
    secret: OperatorSecretOption = None,
    form: FormatOption = Format.text,
) -> None:
    """Change the policy of the running daemon: all of the keys, or none on an error.

    Sharing changes for sessions that open afterwards.
    """
    chosen = parse_settings(changes)
    with operator(endpoint, runtime_dir, curve_dir, secret) as control:
        result = control.policy_set(chosen)
    emit(result, form, table(result))


@storage.command("move")
def storage_move(
    changes: Annotated[list[str], typer.Argument(help="KEY=VALUE of [storage]; path is needed")],
    endpoint: EndpointOption = DEFAULT_ENDPOINT,
    runtime_dir: RuntimeDirOption = None,
    curve_dir: CurveOption = None,
    secret: OperatorSecretOption = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="wait until the move has ended")
    ] = True,
    form: FormatOption = Format.text,
) -> None:
    """Move all blocks of the running daemon to another storage, while hosts go on.

    Keys that are not given stay as they are. Waits for the end; exit code 1 where the move failed
    and the blocks are where they were.
    """
    chosen = parse_settings(changes)
    if "path" in chosen:  # the daemon's working directory is another one
        chosen["path"] = str(Path(chosen["path"]).absolute())
    with operator(endpoint, runtime_dir, curve_dir, secret) as control:
        control.storage_move(chosen)
        result = control.status()["move"]
        while wait and result["state"] == "running":
            time.sleep(MOVE_LOOK_S)
            result = control.status()["move"]
    emit(result, form, table(result))
    if result["state"] == "failed":
        raise RunFailed(
            f"the blocks stay where they were: {result['error']}",
            result["path"],
            "fix the target, remove what is left on it, and try again",
        )


@fabric.command("add")
def fabric_add(
    name: Annotated[Fabric, typer.Argument(help="fabric that hosts may attach over from now on")],
    listen: Annotated[
        str, typer.Option("--listen", help="zmq: address; default: as configured")
    ] = "",
    endpoint: EndpointOption = DEFAULT_ENDPOINT,
    runtime_dir: RuntimeDirOption = None,
    curve_dir: CurveOption = None,
    secret: OperatorSecretOption = None,
    form: FormatOption = Format.text,
) -> None:
    """Let hosts attach over this fabric from now on; those that are attached go on."""
    with operator(endpoint, runtime_dir, curve_dir, secret) as control:
        control.fabric_open(name.value, listen)
        result = control.status()["fabrics"]
    emit(result, form, table(result))


@fabric.command("remove")
def fabric_remove(
    name: Annotated[Fabric, typer.Argument(help="fabric that no further host may attach over")],
    endpoint: EndpointOption = DEFAULT_ENDPOINT,
    runtime_dir: RuntimeDirOption = None,
    curve_dir: CurveOption = None,
    secret: OperatorSecretOption = None,
    form: FormatOption = Format.text,
) -> None:
    """Let no more hosts attach over this fabric; those that are attached go on until they leave."""
    with operator(endpoint, runtime_dir, curve_dir, secret) as control:
        control.fabric_shut(name.value)
        result = control.status()["fabrics"]
    emit(result, form, table(result))


@dpu.command()
def reset(
    endpoint: EndpointOption = DEFAULT_ENDPOINT,
    runtime_dir: RuntimeDirOption = None,
    curve_dir: CurveOption = None,
    secret: OperatorSecretOption = None,
    form: FormatOption = Format.text,
) -> None:
    """Drop what is staged and clean and zero the ledger: a run starts cold. The store stays."""
    with operator(endpoint, runtime_dir, curve_dir, secret) as control:
        control.reset()
    emit({"reset": True}, form, "reset")


@dpu.command()
def drain(
    endpoint: EndpointOption = DEFAULT_ENDPOINT,
    runtime_dir: RuntimeDirOption = None,
    curve_dir: CurveOption = None,
    secret: OperatorSecretOption = None,
    timeout: Annotated[str, typer.Option("--timeout", help="time limit, such as 30s")] = "30s",
    form: FormatOption = Format.text,
) -> None:
    """Take no new work and write back what is only in memory; reads go on.

    Exit code 1 where the time was too short.
    """
    from offstage.bindings.units import parse_time_between

    timeout_s = parse_time_between(timeout, "--timeout", "0s", "1h") / 1e9
    with operator(endpoint, runtime_dir, curve_dir, secret) as control:
        done = control.drain(timeout_s)
    emit(
        {"drained": done.drained, "dirty_blocks": done.dirty_blocks},
        form,
        "drained" if done.drained else f"{done.dirty_blocks} blocks are still only in memory",
    )
    if not done.drained:
        raise RunFailed("the drain did not end in time", endpoint, "give a longer --timeout")


@dpu.command()
def undrain(
    endpoint: EndpointOption = DEFAULT_ENDPOINT,
    runtime_dir: RuntimeDirOption = None,
    curve_dir: CurveOption = None,
    secret: OperatorSecretOption = None,
    form: FormatOption = Format.text,
) -> None:
    """Take new work again after a drain. A daemon that is being stopped does not."""
    with operator(endpoint, runtime_dir, curve_dir, secret) as control:
        control.undrain()
    emit({"draining": False}, form, "accepts new work")


@dpu.command()
def dismiss(
    host: Annotated[str, typer.Argument(help="name of the host, as dpu status shows it")],
    tenant: Annotated[str, typer.Option("--tenant", help="tenant of the host")] = "default",
    endpoint: EndpointOption = DEFAULT_ENDPOINT,
    runtime_dir: RuntimeDirOption = None,
    curve_dir: CurveOption = None,
    secret: OperatorSecretOption = None,
    form: FormatOption = Format.text,
) -> None:
    """Log a host out, as if it had died; its blocks stay in the store."""
    from offstage.dpu.protocol import Dismiss

    with operator(endpoint, runtime_dir, curve_dir, secret) as control:
        hosts = control.call(Dismiss(tenant=tenant, name=host)).hosts
    if not hosts:
        raise BadInput(f"{tenant!r} has no host of this name", host, "see offstage dpu status")
    emit({"hosts": hosts}, form, f"{hosts} {'login' if hosts == 1 else 'logins'} ended")


@dpu.command()
def purge(
    tenant: Annotated[str, typer.Argument(help="a tenant's name")],
    keep: Annotated[
        str,
        typer.Option(
            "--keep", help="stop when the store has at most this much of it, such as 10GiB"
        ),
    ] = "",
    blocks: Annotated[
        int | None,
        typer.Option("--blocks", min=0, max=BLOCKS_MAX, help="stop at this many of its blocks"),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="drop everything archived")] = False,
    endpoint: EndpointOption = DEFAULT_ENDPOINT,
    runtime_dir: RuntimeDirOption = None,
    curve_dir: CurveOption = None,
    secret: OperatorSecretOption = None,
    form: FormatOption = Format.text,
) -> None:
    """Drop kept chunks of a tenant, the coldest first, until one of the bounds holds.

    What a session names stays. It ends when nothing that was dropped can come back, with --all also
    by the end of a read or write in flight, and says how many chunks, blocks and bytes that was.
    """
    from offstage.bindings.units import parse_size

    bounds = (keep != "") + (blocks is not None) + everything
    if bounds != 1:
        raise BadInput(
            f"{bounds or 'no'} bounds are given",
            "dpu purge",
            "give one of --keep SIZE, --blocks N and --all",
        )
    keep_bytes = parse_size(keep, "--keep") if keep else 0
    with operator(endpoint, runtime_dir, curve_dir, secret) as control:
        record = control.geometry.payload_size_bytes + control.geometry.lba_size_bytes
        kept = blocks if blocks is not None else min(keep_bytes // record, BLOCKS_MAX)
        result = control.purge(tenant, kept)
    emit(
        result,
        form,
        f"{result['chunks']} chunks, {result['blocks']} blocks, {result['bytes']} B of the store",
    )
    if result["more"] or result["marking"]:
        raise RunFailed("the purge has not ended yet", tenant, "give the same command again")


@dpu.command()
def replay(
    log: Annotated[Path, typer.Argument(help="decisions.log of a recorded run")],
    form: FormatOption = Format.text,
) -> None:
    """Feed a decision log to a fresh core: every decision must be the same, bit for bit.

    Exit code 1 at the first that differs, named by its event and time.
    """
    from offstage.dpu.watch.recorder import first_difference, replay_log

    try:
        done = replay_log(log)
    except Corrupt as error:  # here it is the user's choice, and no run has failed
        raise BadInput(error.what, error.where, error.fix) from None
    result = {"agreed": done.agreed, "diverged_at_byte": done.diverged_at}
    if done.diverged_at is None:
        emit(result, form, f"{done.agreed} decisions agree")
        return
    emit(result, form, f"{done.agreed} decisions agree, then byte {done.diverged_at} differs")
    event = first_difference(log)
    assert event is not None
    what = f"the replay diverged at a {event.kind} of {event.now_ns} ns"
    raise RunFailed(what, str(log), "was it written by another version?")


@dpu.command()
def erase(
    path: Annotated[str, typer.Argument(help="transport ids, as in storage.path")],
    yes: Annotated[bool, typer.Option("--yes", help="erase the contents of the drives")] = False,
    form: FormatOption = Format.text,
) -> None:
    """Deallocate all blocks of SPDK drives and overwrite their headers, for a new store.

    Without --yes it says what would be lost and changes nothing.
    """
    from offstage.dpu.storage.erase import erase as erase_drive

    result = erase_drive(path, yes)
    emit(result, form, table(result))


@dpu.command()
def store(
    file: Annotated[Path, typer.Argument(help="a store's file or block device")],
    form: FormatOption = Format.text,
) -> None:
    """Read a store without the daemon, changing nothing; exit code 1 where it is not whole."""
    from offstage.dpu.storage.storefile import check, inspect

    result = inspect(file)
    wrong = check(file)
    emit({**result, "wrong": wrong}, form, table({**result, "wrong": wrong}))
    if wrong:
        raise RunFailed(
            f"{len(wrong)} parts are damaged ({wrong[0]})",
            str(file),
            "a daemon serves the rest and counts these as misses",
        )
