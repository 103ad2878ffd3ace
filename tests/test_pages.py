"""Do the generated parts of the pages agree with the definitions?"""

import pytest
from pages import PARTS, around


@pytest.mark.parametrize(("page", "part"), PARTS)
def test_a_generated_part_is_what_the_definitions_say(page: str, part: str) -> None:
    """If not, run `python tests/reference/pages.py` and review its changes."""
    before, shown, after = around(page, part)
    assert before.endswith("begin -->\n") and after.startswith("<!--"), f"{page} has no {part}"
    assert shown == PARTS[page, part](), "run `python tests/reference/pages.py`"
