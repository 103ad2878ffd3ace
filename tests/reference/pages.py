"""The generated parts of the pages: between `<!-- NAME: begin -->` and `<!-- NAME: end -->`.

    python tests/reference/pages.py    write all of them, after a definition or a page has changed

`tests/test_pages.py` compares them, and the JSON Schemas, which are written too. The text around a
generated part is written by hand.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from schemas import printed, schema_name, schemas, written

if TYPE_CHECKING:
    from offstage.testbeds.cli.described import Parameter

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SCHEMAS = DOCS / "reference/schemas"
BY_HAND = ("index.md", "tutorial.md")
"""Pages that the index names above its list."""
SHARED_BY = 4
"""Options that this many commands share go into one table."""
HOW_TO = {
    "offstage accept": "how-to/run-host-and-dpu.md",
    "offstage asic": "how-to/model-a-chip.md",
    "offstage asic validate": "reference/asic-validation.md",
    "offstage bench": "reference/reproduce.md",
    "offstage bench asic": "reference/asic-engine.md",
    "offstage bench cmx": "how-to/cmx.md",
    "offstage bench codec": "reference/codec.md",
    "offstage bench core": "reference/work.md",
    "offstage bench engine": "how-to/engines.md",
    "offstage bench fabric": "reference/fabrics.md",
    "offstage bench l2": "reference/engines.md",
    "offstage bench pod": "reference/pod.md",
    "offstage bench prefetch": "reference/prefetch-pays.md",
    "offstage bench qos": "reference/qos.md",
    "offstage bench schedule": "reference/pod-lab.md",
    "offstage bench soak": "reference/soak.md",
    "offstage bench sparse": "reference/sparse-decode.md",
    "offstage bench tenants": "reference/qos.md",
    "offstage bottleneck": "how-to/tune-prefetch.md",
    "offstage compare": "how-to/model-a-chip.md",
    "offstage config": "reference/config.md",
    "offstage demo": "tutorial.md",
    "offstage doctor": "how-to/links-and-drives.md",
    "offstage drive": "reference/drives.md",
    "offstage drive wear": "reference/write-amplification.md",
    "offstage dpu": "how-to/watch-a-daemon.md",
    "offstage dpu erase": "how-to/links-and-drives.md",
    "offstage dpu fabric": "how-to/change-a-running-daemon.md",
    "offstage dpu policy": "how-to/change-a-running-daemon.md",
    "offstage dpu purge": "how-to/recover-a-store.md",
    "offstage dpu storage": "how-to/change-a-running-daemon.md",
    "offstage dpu store": "how-to/recover-a-store.md",
    "offstage host": "how-to/run-host-and-dpu.md",
    "offstage host calibrate": "how-to/real-model.md",
    "offstage keys": "how-to/run-host-and-dpu.md",
    "offstage lab": "how-to/run-an-experiment.md",
    "offstage lab pod": "reference/pod-lab.md",
    "offstage man": "tutorial.md",
    "offstage model": "reference/cache-groups.md",
    "offstage models": "how-to/real-model.md",
    "offstage plan": "how-to/plan-a-tier.md",
    "offstage pod": "how-to/pod.md",
    "offstage report": "reference/lab-results.md",
    "offstage requests": "reference/requests.md",
    "offstage results": "how-to/run-an-experiment.md",
    "offstage rivals": "reference/rivals.md",
    "offstage testbed": "how-to/testbeds.md",
    "offstage trace": "how-to/run-on-your-trace.md",
    "offstage trace capture": "how-to/capture-a-trace.md",
    "offstage trace generate": "reference/workloads.md",
}
"""The page about each command; the longest prefix of its name decides."""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    names = list(head)
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines) + "\n"


def index() -> str:
    """Every page by its title and first sentence, folder by folder, as in docs/.nav.yml."""
    kinds = {
        "how-to": "How-to",
        "reference": "Reference",
        "": "Understanding",
        "decisions": "Decisions: what holds, why, and what was rejected",
    }
    pieces = []
    for folder, title in kinds.items():
        pages = (page for page in (DOCS / folder).glob("*.md") if page.name not in BY_HAND)
        rows = sorted(
            f"- [{name}]({page.relative_to(DOCS)}): {said}"
            for page in pages
            for name, said in [title_of(page)]
        )
        pieces.append(f"## {title}\n\n" + "\n".join(rows) + "\n")
    return "\n".join(pieces)


def title_of(page: Path) -> tuple[str, str]:
    """The title of a page and its first sentence, without links."""
    text = page.read_text(encoding="utf-8")
    title, _, rest = text.removeprefix("# ").partition("\n\n")
    first = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(rest.partition("\n\n")[0].split()))
    return title, re.split(r"(?<=[.?]) (?=[A-Z`])", first)[0]


def commands() -> str:
    """Every command with its options, from the command line's own definitions."""
    from offstage.testbeds.cli.described import described

    whole = described()
    found = {one.name: one for one in whole.all() if not one.commands}
    options = {name: list(map(option_row, one.parameters)) for name, one in found.items()}
    count = Counter(row for rows in options.values() for row in rows)
    shared = [row for row in sorted(count) if count[row] >= SHARED_BY and row[0].startswith("`--")]
    groups = ([f"`{one.name}`", one.summary] for one in whole.commands.values())
    pieces = [
        table(("command", "does"), groups),
        "\n## Options of several commands\n\n"
        "A command that takes some of these names them after its own.\n\n",
        table(("option", "default", "what it is"), shared),
    ]
    for name, one in found.items():
        own = [row for row in options[name] if row not in shared]
        also = [row[0] for row in options[name] if row in shared]
        page = max((key for key in HOW_TO if name.startswith(key)), key=len)
        see = f"See [{title_of(DOCS / HOW_TO[page])[0]}](../{HOW_TO[page]})."
        see += f" Also {', '.join(also)}." if also else ""
        pieces.append(f"\n## {name}\n\n" + "\n".join([*one.text, see]) + "\n")
        if own:
            pieces.append("\n" + table(("option", "default", "what it is"), own))
    return "".join(pieces).replace("(../reference/", "(")


def option_row(one: "Parameter") -> tuple[str, str, str]:
    """Name, default and meaning of an argument or option."""
    if one.is_option and one.names[0].startswith("--"):
        names = f"`{'`, `'.join(one.names)}{' ' * bool(one.word)}{one.word}`"
    else:
        names = ", ".join(f"`{name}`" for name in one.names or [one.word])
    default = "needed" if one.needed else f"`{one.default}`" if one.default else ""
    default = "on" if one.default == "on" else default
    return names, default, one.meaning.replace("|", "\\|")


def options() -> str:
    """Every key of the daemon's configuration, from its declarations."""
    from offstage.bindings.settings import declared
    from offstage.dpu.config.options import Tenant
    from offstage.dpu.config.values import SECTIONS

    pieces = []
    for section, kind in [*SECTIONS.items(), ("[tenant]", Tenant)]:
        rows = (key_row(key, one, getattr(kind(), one.name)) for key, one in declared(kind).items())
        head = ("key", "default", "values", "what it is")
        pieces.append(f"## [{section}]\n\n{kind.__doc__}\n\n{table(head, rows)}")
    return "\n".join(pieces)


def key_row(key: str, one: Any, default: Any) -> list[str]:
    """One key: default, type or range, meaning."""
    from offstage.bindings.settings import show

    values = {str: "text", bool: "flag", tuple: "list of names"}.get(one.kind, "")
    if one.choices:
        values = "list of " * (one.kind is tuple) + ", ".join(one.choices).removeprefix(", ")
        values = '"", ' * ("" in one.choices) + values
    if one.low is not None and one.high is not None:
        values = f"{show(one, one.low)} to {show(one, one.high)}"
    if one.unit is not None:
        noun = one.unit.parse.__name__.removeprefix("parse_")
        values = noun if noun == "rate" else f"{noun}, {values}"
    shown = show(one, default) or '""'
    return [f"`{key}`", f"`{shown}`", values, one.help]


def zeros(kind: type[msgspec.Struct], **others: Any) -> Any:
    """Return a struct of figures, all 0."""
    figures: dict[str, Any] = {}
    for one in msgspec.structs.fields(kind):
        if one.type in (int, float | None):
            figures[one.name] = 0
        elif isinstance(one.type, type(msgspec.Struct)):
            figures[one.name] = zeros(one.type)
    return kind(**figures | others)


def metrics() -> str:
    """Every metric by who may see it, from the exporter's own tables."""
    from offstage.bindings.figures import EventWork
    from offstage.bindings.ledger import Ledger
    from offstage.dpu.pod.exceptions import Exceptions
    from offstage.dpu.protocol import OPERATOR
    from offstage.dpu.protocol.status import DeviceReport, TenantFigures
    from offstage.dpu.watch.telemetry import DAEMON_COUNTERS, DAEMON_GAUGES, Snapshot, View

    full = Snapshot(
        tenants={"a": Ledger()},
        shares={"a": zeros(TenantFigures, pod=Exceptions().counts(0))},
        status=zeros(DeviceReport, work={"open": EventWork()}),
        daemon=dict.fromkeys((*DAEMON_COUNTERS, *DAEMON_GAUGES), 0),
    )
    seen: set[str] = set()
    pieces = []
    for who, title in (
        ("", "Shown to all"),
        ("a", "Shown to a tenant, and to the operator of all tenants"),
        (OPERATOR, "Shown to the operator"),
    ):
        rows = []
        for family in View(full, who).collect():
            if family.name not in seen and (who or family.samples):
                name = family.name + "_total" * (family.type == "counter")
                labels = ", ".join(getattr(family, "_labelnames", ()))
                rows.append([f"`{name}`", family.type, labels, family.documentation])
                seen.add(family.name)
        head = ("metric", "type", "labels", "what it counts")
        pieces.append(f"## {title}\n\n" + table(head, rows))
    return "\n".join(pieces)


def calls() -> str:
    """Every control call with its fields, its reply, its permitted callers and its class's
    docstring."""
    from offstage.dpu.protocol import CALLS

    rows = (
        [fields_of(one), fields_of(one.reply()), one.by, " ".join((one.__doc__ or "").split())]
        for one in CALLS
    )
    return table(("call", "reply", "who", "what happens"), rows)


def fields_of(message: Any) -> str:
    """A message's name and its fields, except its number."""
    names = ", ".join(name for name in message.__struct_fields__ if name != "id")
    return f"`{message.__name__}({names})`" if names else f"`{message.__name__}`"


def figures(definitions: Iterable[Any]) -> str:
    """Return a table of what each key of a result means."""
    rows = []
    for one in definitions:
        formula = f" `{one.formula}`" if one.formula else ""
        rows.append([f"`{one.key}`", one.text + formula, one.better])
    return table(("key", "is", "better"), rows)


def demo_figures() -> str:
    """The figures of `summary.json` of a run."""
    from offstage.testbeds.report import DEFINITIONS

    return figures(DEFINITIONS)


def lab_figures() -> str:
    """The figures of `summary.json` of the laboratory."""
    from offstage.testbeds.report.lab.definitions import LAB_DEFINITIONS

    return figures(LAB_DEFINITIONS)


def schemas_of_commands() -> str:
    """The schema of what each command prints."""
    rows = ([f"`offstage {name}`", schema_link(name)] for name in sorted(printed()))
    return table(("command", "schema"), rows)


def schemas_of_files() -> str:
    """The schema of each file that a run leaves."""
    rows = (
        [f"`{name}`", by, schema_link(f"file {key}")] for key, (name, by, _) in written().items()
    )
    return table(("file", "of", "schema"), rows)


def schema_link(name: str) -> str:
    """A link from a reference page to a schema."""
    return f"[{schema_name(name)}](schemas/{schema_name(name)})"


def chip_commands() -> str:
    """The command set of the chip."""
    from offstage.asic_model.commands import rows

    return table(rows()[0], (row.values() for row in rows()))


def synthesized() -> str:
    """What synthesis made of each block of the chip in Verilog."""
    from offstage.asic_model.hardware import synthesis

    rows = (
        [
            f"`{row.block}`",
            f"`{row.size}`" if row.size else "",
            f"{row.area_um2:,.0f}",
            f"{row.flops:,}",
            f"{row.path_ps:.0f}",
            f"{row.clock_ghz:.2f}",
            "" if row.cycle_pj is None else f"{row.cycle_pj:.1f}",
        ]
        for row in synthesis().rows
    )
    head = (
        "block",
        "size",
        "µm²",
        "flops",
        "longest path, ps",
        "GHz at most",
        "pJ a cycle at least",
    )
    return table(head, rows)


def cached_models() -> str:
    """The cache of every published model, as `offstage model show` has it."""
    from offstage.bindings.units import format_size
    from offstage.host.model.models import caches
    from offstage.testbeds.models.shown import shown

    def size(of: Any, stored: Any) -> str:
        if of.beyond_context:
            return ""
        return "not published" if stored is None else format_size(round(stored.value))

    rows = []
    for name, shape in caches().items():
        if shape.source.startswith("no model"):
            continue
        found = shown(shape, "bf16")
        *_, at, _, longest = found.lengths
        kinds = ", ".join(dict.fromkeys(one.kind for one in found.groups))
        state = format_size(found.state_bytes) if found.state_bytes else ""
        token = format_size(round(found.token.value))
        sizes = [size(at, at.cache), size(longest, longest.cache)]
        sizes += [size(at, at.read), size(at, at.resident)]
        rows.append([f"`{name}`", kinds, token, state, *sizes, found.source])
    head = ("model", "groups", "a token", "state", "at 128K", "at 1M", "read at 128K")
    return table((*head, "resident at 128K", "source"), rows)


def steps_of_a_run() -> str:
    """What may bind a run: its figure, from when on it binds, and what a re-run changes."""
    from offstage.bindings.units import format_share
    from offstage.testbeds.report.bottleneck.tree import CHANGED, DEFINED, STEPS, binds_from

    rows = ([one, DEFINED[one], format_share(binds_from(one)), CHANGED[one]] for one in STEPS)
    return table(("step", "its figure", "binds from", "a re-run has"), rows)


def limits_of_a_tier() -> str:
    """What `offstage accept` holds a tier to."""
    from offstage.testbeds.report.accept.rules import IN_WORDS, RULES

    rows = (
        [f"`{rule.name}`", rule.text, f"{IN_WORDS[rule.comparison]} {rule.shown(rule.limit)}"]
        for rule in RULES.values()
    )
    return table(("limit", "its figure", "built in"), rows)


PARTS: dict[tuple[str, str], Callable[[], str]] = {
    ("index.md", "pages"): index,
    ("reference/asic.md", "commands"): chip_commands,
    ("reference/cache-groups.md", "models"): cached_models,
    ("reference/cli.md", "commands"): commands,
    ("reference/config.md", "options"): options,
    ("reference/figures.md", "limits"): limits_of_a_tier,
    ("reference/figures.md", "steps"): steps_of_a_run,
    ("reference/json.md", "commands"): schemas_of_commands,
    ("reference/json.md", "files"): schemas_of_files,
    ("reference/lab-results.md", "figures"): lab_figures,
    ("reference/metrics.md", "metrics"): metrics,
    ("reference/protocol.md", "calls"): calls,
    ("reference/rtl.md", "synthesis"): synthesized,
    ("reference/summary-json.md", "figures"): demo_figures,
}


def around(page: str, part: str) -> tuple[str, str, str]:
    """The text of a page before a generated part, that part, and the text after it."""
    text = (DOCS / page).read_text(encoding="utf-8")
    before, begin, rest = text.partition(f"<!-- {part}: begin -->\n")
    shown, end, after = rest.partition(f"<!-- {part}: end -->")
    return before + begin, shown, end + after


def main() -> None:
    """Write every schema and every generated part."""
    SCHEMAS.mkdir(exist_ok=True)
    for name, text in schemas().items():
        (SCHEMAS / name).write_text(text, encoding="utf-8")
    for path in SCHEMAS.iterdir():
        if path.name not in schemas():
            path.unlink()
    for (page, part), made in PARTS.items():
        before, _, after = around(page, part)
        (DOCS / page).write_text(before + made() + after, encoding="utf-8")


if __name__ == "__main__":
    main()
