"""Manual pages of the command line, for `man`: one of each command, made from its parser.

Each is written in the macros of man(7), whose few rules need no library. No wheel carries them: to
make them the parser has to be imported, and a build has nothing installed that it imports.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import offstage
from offstage.bindings.durable import write_text
from offstage.testbeds.cli.described import Described, Parameter, described

__all__ = ["SECTION", "page", "pages", "write_pages"]

SECTION = "man1"
"""The folder, below one that `man` looks into, of the pages about commands."""
_CODE = re.compile(r"`([^`]+)`")
_OPTIONS = "OPTIONS"


def write_pages(folder: Path) -> list[Path]:
    """Every page, in the folder's `man1`; their paths. RunFailed if one cannot be written, BadInput
    if the path is no folder."""
    found = {folder / SECTION / name: text for name, text in pages().items()}
    for path, text in found.items():
        write_text(path, text)
    return list(found)


def pages() -> dict[str, str]:
    """Every page by its file name: `offstage.1`, `offstage-lab-run.1`."""
    return {f"{_page(one)}.1": page(one) for one in described().all()}


def page(one: Described) -> str:
    """One page."""
    return "\n".join(_lines(one)) + "\n"


def _page(one: Described) -> str:
    """Its name, as for `man`."""
    return "-".join(one.words)


def _lines(one: Described) -> Iterator[str]:
    name, release = _page(one), f"offstage {offstage.__version__}"
    yield f'.TH {name.upper()} 1 "" "{release}" "Offstage"'
    yield from (".SH NAME", f"{_text(name)} \\- {_text(one.summary)}")
    yield from (".SH SYNOPSIS", _line(_synopsis(one)))
    yield ".SH DESCRIPTION"
    for at, paragraph in enumerate(one.text):
        yield from ([".PP"] if at else [])
        yield _line(_text(paragraph))
    placed = [each for each in one.parameters if not each.is_option]
    yield from _listed("ARGUMENTS", ((_italic(each.word), _told(each)) for each in placed))
    yield from _listed(
        "COMMANDS", ((_bold(_short(each)), _text(each.summary) + ".") for each in _below(one))
    )
    named = [each for each in one.parameters if each.is_option]
    usual = (_bold("-h, --help"), "show the help in short.")
    yield from _listed(_OPTIONS, [*((_named(each), _told(each)) for each in named), usual])
    above = ["-".join(one.words[:at]) for at in range(1, len(one.words))]
    if also := [*above, *map(_page, one.commands.values())]:
        yield from (".SH SEE ALSO", ",\n".join(f"{_bold(each)}(1)" for each in also))


def _below(one: Described) -> Iterable[Described]:
    """Of a group its commands; of the whole command line all that can be run."""
    whole = (each for each in one.all() if not each.commands)
    return one.commands.values() if one.words[1:] else whole


def _short(one: Described) -> str:
    return " ".join(one.words[1:])


def _synopsis(one: Described) -> str:
    if one.commands:
        return f"{_bold(one.name)} {_italic('COMMAND')} ..."
    shown = [_italic(each.word) for each in one.parameters if not each.is_option]
    return " ".join([_bold(one.name), f"[{_italic(_OPTIONS)}]", *shown])


def _listed(title: str, entries: Iterable[tuple[str, str]]) -> Iterator[str]:
    """A section of names and what each is; nothing if there is none."""
    for at, (name, told) in enumerate(entries):
        yield from ([] if at else [f".SH {title}"])
        yield from (".TP", name, _line(told))


def _named(one: Parameter) -> str:
    names = ", ".join(map(_bold, one.names))
    return f"{names} {_italic(one.word)}" if one.word else names


def _told(one: Parameter) -> str:
    fact = "needed" if one.needed and one.is_option else one.default and f"default: {one.default}"
    told = f"{one.meaning} ({fact})" if one.meaning and fact else one.meaning or fact
    return _text(f"{told}.") if told else ""


def _text(text: str) -> str:
    """What is code in bold, and signs of roff as themselves."""
    return _CODE.sub(lambda found: f"\\fB{found[1]}\\fR", _escaped(text))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-")


def _line(text: str) -> str:
    """No request of roff, however it begins."""
    return f"\\&{text}" if text[:1] in (".", "'") else text


def _bold(text: str) -> str:
    return f"\\fB{_escaped(text)}\\fR"


def _italic(text: str) -> str:
    return f"\\fI{_escaped(text)}\\fR"
