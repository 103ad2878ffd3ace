"""One element of markup; attributes are escaped here."""

import html
import re

from offstage.bindings.errors import printable

__all__ = ["attributes", "escape", "tag", "with_code"]


def escape(text: str, quote: bool = True) -> str:
    """Text escaped for markup. Control characters in outside names cannot reverse or hide text."""
    return html.escape(printable(text, "\n\t\xa0\u2009\u202f\u200b\xad"), quote)


def with_code(text: str) -> str:
    """Text escaped for markup, with what stands in backquotes as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def attributes(**values: object) -> str:
    """` a="b" ...`, escaped; `_` in a name stands for `-`, a trailing one is dropped."""
    shown = []
    for name, value in values.items():
        if value is None or value == "":
            continue
        value = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
        name = name.rstrip("_").replace("_", "-")
        shown.append(f' {name}="{escape(str(value), quote=True)}"')
    return "".join(shown)


def tag(element: str, content: str | None = None, /, **values: object) -> str:
    """One element; `content` is markup already. Without it the element is empty."""
    start = f"<{element}{attributes(**values)}"
    return f"{start}/>" if content is None else f"{start}>{content}</{element}>"
