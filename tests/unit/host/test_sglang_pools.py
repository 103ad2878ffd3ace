"""Which prefixes a pool of SGLang covers: as a plain reading of each policy says?"""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offstage.host.connectors.sglang import Storage
from offstage.host.connectors.sglang_pools import ALL_PAGES, TRAILING_PAGES, covered, lengths


@given(st.lists(st.booleans(), max_size=12), st.integers(1, 5))
def test_a_prefix_is_covered_by_all_pages_or_by_the_last(has: list[bool], last: int) -> None:
    """Every page of it, or those of its last few that it has, whichever are fewer."""
    every = range(1, len(has) + 1)
    assert covered(has, ALL_PAGES, last) == [n for n in every if all(has[:n])]
    assert covered(has, TRAILING_PAGES, last) == [
        n for n in every if all(has[max(0, n - last) : n])
    ]


def test_a_usable_prefix_is_covered_by_every_pool() -> None:
    assert lengths(5, [[1, 2, 3, 4], [2, 4, 5]]) == [2, 4]
    assert lengths(2, []) == [1, 2] and lengths(3, [[], [1]]) == []


def test_another_policy_is_refused_as_by_sglangs_own_files() -> None:
    with pytest.raises(ValueError, match="Unsupported pool hit policy: block_groups"):
        covered([True], "block_groups", 1)


@pytest.mark.parametrize("came", [True, False])
def test_a_page_in_pieces_is_filled_where_it_is(came: bool) -> None:
    """SGLang may give a target whose bytes do not follow each other: do the bytes of the tier get
    there, and not only into a copy?"""
    torch = pytest.importorskip("torch")

    def wait(call: Any, names: list[bytes], buffers: list[Any]) -> Any:
        for one in buffers:
            one[:] = 7
        return SimpleNamespace(done=[came] * len(names))

    storage: Any = object.__new__(Storage)
    storage._client = SimpleNamespace(wait=wait, get=None, release=lambda names: None)
    pool: Any = SimpleNamespace(size=8, key=lambda page: page.encode())
    pages = [torch.zeros((4, 4), dtype=torch.uint8)[:, :2], torch.zeros(8, dtype=torch.uint8)]
    found = storage._get([(pool, "a"), (pool, "b")], pages)
    assert [one is None for one in found] == [not came] * 2
    assert not came or all(bool((one == 7).all()) for one in pages)
