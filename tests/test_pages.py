"""Do the generated parts of the pages and the schemas agree with the definitions?"""

import pytest
from pages import PARTS, SCHEMAS, around
from schemas import schemas


@pytest.mark.parametrize(("page", "part"), PARTS)
def test_a_generated_part_is_what_the_definitions_say(page: str, part: str) -> None:
    """If not, run `python tests/reference/pages.py` and review its changes."""
    before, shown, after = around(page, part)
    assert before.endswith("begin -->\n") and after.startswith("<!--"), f"{page} has no {part}"
    assert shown == PARTS[page, part](), "run `python tests/reference/pages.py`"


def test_the_schemas_are_what_the_types_say() -> None:
    """One file for each document, and no other. If not, as above."""
    kept = {path.name: path.read_text(encoding="utf-8") for path in SCHEMAS.iterdir()}
    differ = [name for name in schemas() if kept.get(name) != schemas()[name]]
    assert differ == [], "run `python tests/reference/pages.py`"
    assert sorted(kept) == sorted(schemas())
