"""The benches' figures as tables: figure, reference, ratio, aim, and whether it was reached."""

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from offstage.bindings.units import format_rate, format_size, format_time
from offstage.testbeds.cli.pod_bench import pod_table, schedule_table
from offstage.testbeds.cli.soak_table import soak_table
from offstage.testbeds.cli.tenants_table import where_time_went
from offstage.testbeds.report.engine import below, hits_of, regret_of

__all__ = ["TABLES"]

HEADINGS = ("", "ours", "reference", "ratio", "aim", "")

Drawn = tuple[RenderableType, list[str]]
Show = Callable[[float], str]
Row = tuple[str, str, str, float | None, str, bool | None]
"""What, ours, reference, ratio, aim, whether it was reached."""


def drawn(rows: list[Row]) -> Table:
    """One row per figure; the last column says whether the aim was reached, where there is one."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for number, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if number in (0, 4, 5) else "right", no_wrap=True)
    for name, ours, reference, ratio, aim, met in rows:
        word = {None: "", True: "reached", False: "missed"}[met]
        shown = f"{ratio:.3f}" if ratio is not None else ""
        style = "green" if met else "yellow"
        table.add_row(name, ours, reference, shown, aim, Text(word, style=style))
    return table


def links_table(result: Mapping[str, Any]) -> Drawn:
    """Every fabric beside its own floor."""
    rows: list[Row] = []
    for row in result["links"]:
        name = f"{row['link']} {format_size(row['block_bytes'])}"
        aim, met = _aim(result["aims"], f"{row['link']} latency / floor")
        aimed = row["block_bytes"] == result["aim_bytes"]
        rows.append(
            (
                f"{name} one read",
                format_time(row["latency_ns"]),
                format_time(row["floor_latency_ns"]),
                row["latency_ratio"],
                aim if aimed else "",
                met if aimed else None,
            )
        )
        aim, met = _aim(result["aims"], f"{row['link']} bandwidth / floor")
        rows.append(
            (
                f"{name} {result['batch']} together",
                format_rate(row["bytes_per_s"]),
                format_rate(row["floor_bytes_per_s"]),
                row["bandwidth_ratio"],
                aim if aimed else "",
                met if aimed else None,
            )
        )
        rows.append(
            (
                f"{name} a fetch of {result['batch']}",
                format_time(row["fetch_ns"]),
                "",
                None,
                "",
                None,
            )
        )
    notes = [
        f"measured between two processes of one machine, medians of {result['rounds']} turns, "
        f"seed {result['seed']}; "
        "floors: memcpy (shm), a plain echo of as many bytes (zmq), a bare NIXL loop (nixl, "
        "nixl-tcp); a fetch is looked up, read and checked, from Python",
    ]
    return drawn(rows), notes


def storage_table(result: Mapping[str, Any]) -> Drawn:
    """Reads beside fio; the emulated drives beside what was published of them."""
    rows: list[Row] = []
    for row in result["rows"]:
        name = f"{format_size(row['block_bytes'])} depth {row['queue_depth']}"
        name += "" if row["pages"] == "base pages" else ", huge"
        shown: tuple[tuple[str, str, Show], ...] = (
            ("bytes_per_s", "bandwidth", format_rate),
            ("latency_ns_p50", "latency p50", format_time),
        )
        for key, label, form in shown:
            ratio_key = "bandwidth_ratio" if key == "bytes_per_s" else "latency_ratio"
            aim, met = _aim(row["aims"], ratio_key)
            rows.append(
                (
                    f"{name} {label}",
                    form(row["ours"][key]),
                    form(row["fio"][key]),
                    row[ratio_key],
                    aim,
                    met,
                )
            )
    for drive in result["emulated"]:
        for key, figure in drive["figures"].items():
            label, form = EMULATED[key]
            late = figure["late_share"]
            rows.append(
                (
                    f"{drive['preset']}* {label}",
                    form(figure["got"]),
                    form(figure["cited"]),
                    figure["ratio"],
                    f"{late:.0%} late" if late >= LATE_SHARE_MIN else "",
                    None,
                )
            )
    notes = [
        f"measured beside {result['reference']} on {result['path']}, seed {result['seed']}: the "
        f"ratio is the median of {result['rounds']} rounds; both read into the same memory, base "
        "pages or huge ones",
        "* emulated, beside the figures published for the drive; late: reads that ended later than "
        "the model says; where many did, the figure is this machine's",
    ]
    return drawn(rows), notes


def fabric_table(result: Mapping[str, Any]) -> Drawn:
    """A staged hit beside memcpy; the command ring beside two threads that bounce one word."""
    aims = result["aims"]
    rows: list[Row] = []
    for row in result["reads"]:
        name, memcpy = format_size(row["block_bytes"]), format_time(row["memcpy_ns"])
        aim, met = _aim(aims, f"hit / memcpy at {row['block_bytes'] // 1024} KiB")
        rows.append(
            (
                f"{name} hit, checksum included",
                format_time(row["hit_ns"]),
                memcpy,
                row["ratio"],
                aim,
                met,
            )
        )
        rows.append(
            (
                f"{name} hit, checksum left out",
                format_time(row["hit_unchecked_ns"]),
                memcpy,
                row["ratio_unchecked"],
                "",
                None,
            )
        )
    ring = result["ring"]
    aim, met = _aim(aims, "round trip / floor")
    floor = format_time(ring["floor_ns_p50"])
    rows.append(
        (
            "command round trip p50, C",
            format_time(ring["rtt_ns_p50"]),
            floor,
            ring["ratio_to_floor"],
            aim,
            met,
        )
    )
    rows.append(
        (
            "command round trip p99, C",
            format_time(ring["rtt_ns_p99"]),
            format_time(ring["floor_ns_p99"]),
            ring["rtt_ns_p99"] / ring["floor_ns_p99"],
            "",
            None,
        )
    )
    rows.append(
        (
            "command round trip p50, Python",
            format_time(ring["python_rtt_ns_p50"]),
            floor,
            ring["python_rtt_ns_p50"] / ring["floor_ns_p50"],
            "",
            None,
        )
    )
    for row in result["stage_timers"]:
        name = f"{row['blocks']} x {format_size(row['block_bytes'])}"
        aim, met = _aim(
            aims, f"stage timers on over off at {row['blocks']} x {row['block_bytes'] // 1024} KiB"
        )
        rows.append(
            (
                f"{name} fetch, timers on",
                format_time(row["on_ns"]),
                format_time(row["off_ns"]),
                row["ratio"],
                aim,
                met,
            )
        )
    layer = result["layer"]
    rows.append(
        (
            f"layer of {layer['sessions']} sessions, together",
            format_time(layer["together_ns"]),
            format_time(layer["one_by_one_ns"]),
            layer["ratio"],
            "",
            None,
        )
    )
    notes = [
        "hits beside memcpy of as many bytes out of the same region; round trips beside two threads"
        f" that bounce one word; measured, {result['rounds']} rounds, seed {result['seed']}",
        f"one layer of {layer['sessions']} sessions, together over one by one:"
        f" {layer['demands']} misses of {format_size(layer['block_bytes'])} in each,"
        " from an emulated gen-5 drive",
    ]
    return drawn(rows), notes


def core_table(result: Mapping[str, Any]) -> Drawn:
    """Accesses per second beside libCacheSim; what decode and replay cost in virtual time."""
    aims = result["aims"]
    rows: list[Row] = []
    for row in result["rows"]:
        aim, met = ("", None)
        if row["eviction"] == "lru":
            aim, met = _aim(aims, "flat LRU")
            least = float(aim.split()[1])
            aim, met = f">= {least}x", row["ratio"] >= least
        reference = row.get("reference_per_s")
        rows.append(
            (
                f"{row['eviction']} on {row['name']}",
                _per_s(row["ours_per_s"]),
                _per_s(reference) if reference else "",
                row.get("ratio"),
                aim,
                met,
            )
        )
    decode, replay = result["decode"], result["replay"]
    aim, met = _aim(aims, "decode")
    aim = f">= {_per_s(float(aim.split()[1]))}" if aim else ""
    rows.append(
        (
            f"decode, {decode['prefetchers']}, {decode['selected']} of {decode['blocks']}",
            _per_s(decode["accesses_per_s"]),
            "",
            None,
            aim,
            met,
        )
    )
    rows.append(("replay of a log", _per_s(replay["decisions_per_s"]), "", None, "", None))
    lab = result["lab"]
    aim, met = _aim(aims, "lab")
    what = f"lab, {lab['layers']} by {lab['steps']:,} steps"
    rows.append((what, f"{lab['seconds']:.1f} s", "", None, aim, met))
    equal = sum("reference_hits" in row for row in result["rows"])
    notes = [
        f"accesses and decisions per second, measured, beside {result['reference']}; "
        f"{result['rounds']} rounds, seed {result['seed']}; hit counts are equal in all "
        f"{equal} rows that have a reference",
        f"lab: {lab['layers']} layers of {lab['blocks']:,} blocks for {lab['steps']:,} steps, "
        f"seconds of one core from the draw of the selections to the ledger, policy "
        f"{lab['policy']}; {_per_s(lab['accesses_per_s'])} accesses without the drawing; at most "
        f"{format_size(lab['memory_peak_bytes'])} of memory",
    ]
    return drawn(rows), notes


def qos_table(result: Mapping[str, Any]) -> Drawn:
    """Shares of the line and the victim's waits by the scheduler, beside one queue for all."""
    ours, fifo = result["disciplines"]["qos"], result["disciplines"]["fifo"]
    weights = result["weights"]
    rows: list[Row] = [
        (
            f"share at weight {weight} of {sum(weights)}, offers {offered:g}x",
            f"{ours['shares'][tenant]:.3f}",
            f"{fifo['shares'][tenant]:.3f}",
            None,
            "",
            None,
        )
        for tenant, (weight, offered) in enumerate(zip(weights, result["offered"], strict=True))
    ]
    aim, met = _aim(result["aims"], "Jain")
    rows.append(
        (
            "Jain's index of bytes by weight",
            f"{ours['jain']:.4f}",
            f"{fifo['jain']:.4f}",
            ours["jain"] / fifo["jain"],
            aim,
            met,
        )
    )
    for quantile in ("p50", "p99"):
        key = f"victim_wait_ps_{quantile}"
        rows.append(
            (
                f"wait of a light tenant, {quantile}",
                format_time(ours[key] / 1000),
                format_time(fifo[key] / 1000),
                ours[key] / fifo[key],
                "",
                None,
            )
        )
    served = [each["victim_served"] for each in (ours, fifo)]
    rows.append(("blocks of it that were served", f"{served[0]}", f"{served[1]}", None, "", None))
    notes = [
        f"modelled: {result['services']:,} services of {format_size(result['block_bytes'])} at "
        f"{format_rate(result['line_bytes_per_s'])}, seed {result['seed']}; the reference is one "
        "queue in order of arrival, as long as the queues of the scheduler together",
    ]
    return drawn(rows), notes


def tenants_table(result: Mapping[str, Any]) -> Drawn:
    """The victim attacked, beside itself alone; and what two floods of unlike weights moved."""
    phases, shares = result["phases"], result["shares"]
    alone = max((phases[name] for name in ("alone", "alone again")), key=lambda one: one["ns_p99"])
    busy = phases["compute"]
    rows: list[Row] = [
        (
            f"cores busy, {which}",
            format_time(busy[f"ns_{which}"]),
            format_time(alone[f"ns_{which}"]),
            busy[ratio_of],
            "",
            None,
        )
        for which, ratio_of in (("p99", "ratio"), ("p50", "ratio_p50"))
    ]
    for name in ("demands", "all ways"):
        phase = phases[name]
        aim, met = _aim(result["aims"], f"{name}: p99")
        rows.append(
            (
                f"{name}, p99",
                format_time(phase["ns_p99"]),
                format_time(alone["ns_p99"]),
                phase["ratio"],
                aim,
                met,
            )
        )
        rows.append(
            (
                f"{name}, p50",
                format_time(phase["ns_p50"]),
                format_time(alone["ns_p50"]),
                phase["ratio_p50"],
                "",
                None,
            )
        )
        aim, met = _aim(result["aims"], f"{name}: hits")
        rows.append(
            (
                f"{name}, hits",
                f"{phase['hit_percent']:.1f} %",
                f"{alone['hit_percent']:.1f} %",
                None,
                aim,
                met,
            )
        )
    aim, met = _aim(result["aims"], "bytes by weight")
    for name, weight, part in zip(
        shares["tenants"], shares["weights"], shares["by_weight"], strict=True
    ):
        rows.append((f"{name}: bytes, weight {weight}", f"{part:.3f}", "1.000", part, aim, met))
    rows.append(("Jain's index of them", f"{shares['jain']:.4f}", "", None, "", None))
    for name, part in zip(shares["tenants"], shares["idle"], strict=True):
        rows.append((f"{name}: nothing waited", f"{100 * part:.0f} %", "", None, "", None))
    notes = [
        f"measured on {result['storage']}, {result['seconds']:g} s a phase, seed {result['seed']}: "
        f"a fetch of {result['cold_blocks']} blocks of {format_size(result['block_bytes'])} that "
        "are not staged; the reference is the same tenant alone, before or after, the slower",
    ]
    return Group(drawn(rows), where_time_went(phases)), notes


def codec_table(result: Mapping[str, Any]) -> Drawn:
    """What KV shrinks to beside zlib, least and most of all layers; rates beside memcpy and zlib;
    lossy modes apart."""
    rows: list[Row] = []
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in result["ratios"]:
        groups.setdefault(f"{row['source']} {row['dtype']} {row['half']}", []).append(row)
    for name, layers in groups.items():
        ours, zlib = ([row[key] for row in layers] for key in ("ratio", "zlib_ratio"))
        rows.append(
            (
                name,
                f"{min(ours):.3f}-{max(ours):.3f}",
                f"{min(zlib):.3f}-{max(zlib):.3f}",
                sum(ours) / sum(zlib),
                "",
                None,
            )
        )
    for row in result["rates"]:
        for way in ("encode", "decode"):
            rate, zlib_rate = row[f"{way}_bytes_per_s"], row[f"zlib_{way}_bytes_per_s"]
            rows.append(
                (
                    f"{way} {row['dtype']}",
                    format_rate(rate),
                    format_rate(zlib_rate),
                    rate / zlib_rate,
                    "",
                    None,
                )
            )
    for row in result["store"]:
        plain, coded = row["plain"], row["coded"]
        name = f"{row['dtype']} {row['drive']}"
        ours, theirs = coded["read_bytes_per_block"], plain["read_bytes_per_block"]
        rows.append(
            (
                f"{name} bytes**",
                format_size(round(ours)),
                format_size(round(theirs)),
                ours / theirs,
                "",
                None,
            )
        )
        rows.append(
            (
                f"{name} get**",
                format_time(coded["get_s"] * 1e9),
                format_time(plain["get_s"] * 1e9),
                coded["get_s"] / plain["get_s"],
                "",
                None,
            )
        )
        rows.append(
            (
                f"{name} gets/s**",
                _plain(coded["gets_per_s"]),
                _plain(plain["gets_per_s"]),
                coded["gets_per_s"] / plain["gets_per_s"],
                "",
                None,
            )
        )
    for row in result["lossy"]:
        errors = f"{row['relative_mean']:.2g}, {row['relative_max']:.2g}"
        rows.append(
            (
                f"{row['source']} {row['half']} {row['mode']}*",
                f"{row['ratio']:.3f}",
                "",
                None,
                errors,
                None,
            )
        )
    memcpy = max(row["memcpy_bytes_per_s"] for row in result["rates"])
    notes = [
        "ratios: coded size over size, least and most of the layers, beside zlib level 6; rates of "
        f"{result['rates'][0]['source']} beside zlib level 1, {result['rounds']} rounds; memcpy "
        f"of the same bytes {format_rate(memcpy)}; measured, seed {result['seed']}",
        "synthetic: the demo's own KV, whose V has one exponent by construction",
        "** a store with store.codec beside one without, blocks of 32 KiB: bytes read, a get "
        "alone, gets 16 at a time by one thread; emulated drive, real codec",
        "* lossy, never used by the store: size over bfloat16's, then mean and greatest error of "
        "values that are not zero, relative to themselves",
    ]
    return drawn(rows), notes


def asic_table(result: Mapping[str, Any]) -> Drawn:
    """Events per second beside SimPy; blocks per second on a whole chip; memory of a long run."""
    aims, long = result["aims"], result["long"]
    stages = result["rows"][0]
    rows: list[Row] = [
        (
            "three stages, events",
            _per_s(stages["events_per_s"]),
            _per_s(stages["reference_events_per_s"]),
            stages["ratio"],
            *_aim(aims, "three stages"),
        ),
        (
            "three stages, requests",
            _per_s(stages["requests_per_s"]),
            _per_s(stages["reference_requests_per_s"]),
            stages["requests_ratio"],
            "",
            None,
        ),
    ]
    for row in result["rows"][1:]:
        what = f"{row['name']}, requests"
        aim, met = _aim(aims, row["name"])
        aim = f">= {_per_s(float(aim.split()[1]))}" if aim else ""
        rows.append((what, _per_s(row["requests_per_s"]), "", None, aim, met))
    rows.append(
        (
            "memory more after a tenth",
            format_size(long["growth_bytes"]),
            "",
            None,
            *_aim(aims, "memory grows"),
        )
    )
    per = ", ".join(
        f"{row['events_per_request']:.1f} ({row['name']})" for row in result["rows"][1:]
    )
    notes = [
        f"measured, beside {result['reference']} on the same network; {result['rounds']} rounds, "
        f"seed {result['seed']}; both come to the mean that theory has",
        f"{result['preset']}: {result['rows'][1]['units']} units, blocks of "
        f"{format_size(result['rows'][1]['block_bytes'])}; events for each request: {per}",
        f"{long['requests']:,} hits took {long['seconds']:.0f} s for {long['simulated_s']:.1f} "
        f"simulated s, their chip {format_size(long['chip_bytes'])}",
    ]
    return drawn(rows), notes


def _per_s(value: float) -> str:
    return f"{value / 1e6:.3g} M/s"


def _aim(aims: Mapping[str, bool], key: str) -> tuple[str, bool | None]:
    for text, met in aims.items():
        if text.startswith(key):
            return text.removeprefix(key).strip(), met
    return "", None


def _plain(value: float) -> str:
    return f"{value:,.0f}"


LATE_SHARE_MIN = 0.01
EMULATED: dict[str, tuple[str, Show]] = {
    "read_bytes_per_s": ("bandwidth", format_rate),
    "read_iops": ("reads/s", _plain),
    "read_latency_ns_p50": ("latency p50", format_time),
}


def spdk_table(result: Mapping[str, Any]) -> Drawn:
    """Reads of one target, by ours and by SPDK's own."""
    rows: list[Row] = []
    for row in result["rows"]:
        name = f"{row['transport']} {format_size(row['block_bytes'])} depth {row['queue_depth']}"
        aim, met = _aim(row["aims"], "ratio")
        rows.append(
            (
                name,
                f"{row['ours_iops']:,.0f}/s",
                f"{row['perf_iops']:,.0f}/s",
                row["ratio"],
                aim,
                met,
            )
        )
    notes = [
        f"measured beside {result['reference']}, on a drive in the memory of one target, seed "
        f"{result['seed']}: the ratio is the median of {result['rounds']} rounds",
    ]
    return drawn(rows), notes


def engine_table(result: Mapping[str, Any]) -> Drawn:
    """Each arm's times to the first token beside those without the tier."""
    rows: list[Row] = []
    arms = result["arms"]
    for name in arms:
        for share, which in ((0.5, "p50"), (0.9, "p90")):
            ours, alone = (below(arms[one]["first_s"], share) for one in (name, "recompute"))
            rows.append(
                (
                    f"{name}, {which}",
                    format_time(ours * 1e9),
                    format_time(alone * 1e9),
                    ours / alone,
                    "",
                    None,
                )
            )
    notes = [
        f"{result['provenance']} on {result['storage']}: {result['requests']} requests of "
        f"{result['trace']}, a token is {1 / result['scale']:.1f} of the trace's, a second "
        f"{result['hurry']:.0f}; {100 * result['reuse']:.0f} % of the tokens were a prefix before"
    ]
    for name, arm in result["arms"].items():
        hits, regret = hits_of(arm), regret_of(arm)
        if sum(hits.values()):
            told = ", ".join(f"{word} {count:.0f}" for word, count in hits.items())
            lost = f"{regret['regret_s'] * 1e3:.0f} of {regret['took_s'] * 1e3:.0f} ms"
            notes.append(f"{name}: objects {told.replace('_', ' ')}; regret {lost}")
    return drawn(rows), notes


def l2_table(result: Mapping[str, Any]) -> Drawn:
    """LMCache's bench: each of our adapters beside its files."""
    rows: list[Row] = []
    aim = f">= {result['aim']:g}"
    for state, each in result["median_mb_per_s"].items():
        for name in (one for one in each if one != "fs"):
            for operation, rate in each[name].items():
                ratio = result["over_files"][state][name][operation]
                rows.append(
                    (
                        f"{state}, {operation}: {name}",
                        f"{rate:,.0f} MB/s",
                        f"{each['fs'][operation]:,.0f} MB/s",
                        ratio,
                        aim,
                        ratio >= result["aim"],
                    )
                )
    return drawn(rows), [
        f"measured beside LMCache's own adapter of files: {result['in_flight']} objects of "
        f"{result['size_kib']} KiB in flight, the median round of {result['rounds']}, the median "
        f"of {result['turns']} turns; every byte verified, nothing flushed by either",
    ]


TABLES: dict[str, Callable[[Mapping[str, Any]], Drawn]] = {
    "asic": asic_table,
    "codec": codec_table,
    "core": core_table,
    "engine": engine_table,
    "fabric": fabric_table,
    "l2": l2_table,
    "links": links_table,
    "pod": pod_table,
    "schedule": schedule_table,
    "qos": qos_table,
    "soak": soak_table,
    "spdk": spdk_table,
    "storage": storage_table,
    "tenants": tenants_table,
}
