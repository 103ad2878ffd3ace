"""SGLang's pools beside the KV: does a prefix count where every pool has what it needs, and no
further, and do pages of all pools come back as they were?"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from live_daemon import Daemon, daemon
from sglang_bed import PAGE, Pool, config, in_sglang

from offstage.bindings.errors import BadInput
from offstage.host.connectors.sglang import Storage

torch = pytest.importorskip("torch")

ALL, LAST = "all_pages", "trailing_pages"
KEYS = [f"{i:064x}" for i in range(6)]


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon(tmp_path_factory.mktemp("sglang"), limits__sessions="64") as running:
        yield running


class Result(SimpleNamespace):
    """Stands in for SGLang's PoolTransferResult."""

    def __init__(self, kv: int, pools: dict[str, int], lengths: list[int]) -> None:
        super().__init__(kv=kv, pools=pools, lengths=lengths)


class Hybrid(Storage):
    """Made like OffstageStorage, but over the stand-in."""

    pool_result = Result


class Small(Pool):
    """Stands in for a pool beside the KV: pages of one place each, of 7 to 100 bytes."""

    page_size = 1

    def __init__(self, count: int, **more: Any) -> None:
        self.__dict__ |= more
        self.count, self.dtype = count, torch.uint8
        self.pages = torch.randint(0, 255, (6, count), dtype=torch.uint8)

    def get_data_page(self, index: int) -> Any:
        return self.pages[index]

    def get_dummy_flat_data_page(self) -> Any:
        return torch.zeros(self.count, dtype=torch.uint8)

    def set_from_flat_data_page(self, index: int, page: Any) -> None:
        self.pages[index] = page


class Logical(Pool):
    """Stands in for the KV of a model whose KV lies in other pools."""

    count: ClassVar[int] = 0

    def get_data_page(self, index: int) -> Any:
        return torch.empty(0, dtype=torch.uint8)

    def get_dummy_flat_data_page(self) -> Any:
        return torch.empty(0, dtype=torch.uint8)

    def set_from_flat_data_page(self, index: int, page: Any) -> None:
        assert not len(page)


def transfer(name: str, policy: str, keys: Any = None, places: Any = None) -> Any:
    indices = None if places is None else torch.tensor(places)
    return SimpleNamespace(name=name, hit_policy=policy, keys=keys, host_indices=indices)


def opened(tier: Daemon, kv: Any, model: str, **pools: Any) -> Hybrid:
    storage = Hybrid(config(tier, model_name=model, **pools.pop("more", {})))
    storage.register_mem_pool_host(kv)
    for name, pool in ({"kv": kv} | pools).items():
        storage.register_mem_host_pool_v2(pool, name)
    return storage


def found(storage: Hybrid, *asked: Any) -> Any:
    return storage.batch_exists_v2(KEYS, list(asked))


def test_a_prefix_ends_where_every_pool_has_what_it_needs(tier: Daemon) -> None:
    """Of six pages of KV: an indexer with five, states after the second and the fourth, and three
    pages of a window of two. The longest prefix of all is four pages, and it alone is leased, with
    what it needs of each pool."""
    storage = opened(tier, Pool(), "prefix", indexer=Small(9), mamba=Small(100), swa=Small(30))
    stored = {"kv": range(6), "indexer": range(5), "mamba": (1, 3), "swa": (2, 3, 4)}
    pool = storage._pools
    for name, pages in stored.items():
        keys, step = [KEYS[i] for i in pages], pool[name].memory.page_size
        places = [i * step + j for i in pages for j in range(step)]
        assert storage.batch_set_v2([transfer(name, ALL, keys, places)]) == {
            name: [True] * len(keys)
        }
    asked = [
        transfer("indexer", ALL),
        transfer("mamba", LAST, ["?"]),
        transfer("swa", LAST, ["?"] * 2),
    ]
    result = found(storage, *asked)
    assert vars(result) == {
        "kv": 4,
        "pools": {"kv": 6, "indexer": 5, "mamba": 4, "swa": 5},
        "lengths": [4],
    }
    values = storage._ready()._mover._link.values
    assert values.held == 4 + 4 + 1 + 2
    assert found(storage, *asked[:2]).lengths == [2, 4]
    assert found(storage, asked[2]).lengths == [4, 5]
    assert found(storage, asked[0], transfer("draft", ALL)).kv == 0, "a pool that is not registered"
    assert storage.batch_exists(KEYS) == 6, "without pools only the KV counts"
    storage.close()


def test_pages_of_every_pool_come_back(tier: Daemon) -> None:
    """One call stores pages of several pools, another loads them to other places; what is absent
    leaves the memory as it is. A pool that is not registered, or with another number of places,
    moves nothing, and the others do."""
    swa, mamba = Small(30), Small(100)
    storage = opened(tier, Pool(), "back", swa=swa, mamba=mamba)
    stores = [transfer("swa", LAST, KEYS[2:4], [2, 3]), transfer("mamba", LAST, KEYS[3:4], [3])]
    assert storage.batch_set_v2(stores) == {"swa": [True] * 2, "mamba": [True]}
    before = swa.pages.clone(), mamba.pages.clone()
    loads = [
        transfer("mamba", LAST, KEYS[3:4], [0]),
        transfer("swa", LAST, KEYS[2:5], [5, 4, 0]),
        transfer("draft", ALL, KEYS[:2], [0, 1]),
    ]
    gone = storage.batch_get_v2(loads)
    assert gone == {"mamba": [True], "swa": [True, True, False], "draft": [False] * 2}
    assert torch.equal(mamba.pages[0], before[1][3]) and torch.equal(swa.pages[0], before[0][0])
    assert torch.equal(swa.pages[4:], before[0][2:4].flip(0))
    loads = [transfer("swa", LAST, KEYS[2:4], [0]), transfer("mamba", LAST, KEYS[3:4], [1])]
    assert storage.batch_get_v2(loads) == {"swa": [False] * 2, "mamba": [True]}
    assert storage.batch_get_v2([transfer("swa", LAST, KEYS[2:4])]) == {"swa": [False] * 2}
    assert storage._ready()._mover._link.values.held == 0
    storage.close()


def test_kv_without_bytes_is_there_as_far_as_its_pools(tier: Daemon) -> None:
    """Where the KV lies in other pools, a pool that needs every page decides; with none nothing is
    found. The KV's own pages move without an object."""
    storage = opened(tier, Logical(), "logical", deepseek_v4_c4=Small(64), swa=Small(30))
    assert storage.batch_set_v1(KEYS, torch.arange(6 * PAGE)) == [True] * 6
    assert storage.batch_set_v2(
        [
            transfer("deepseek_v4_c4", ALL, KEYS[:3], [0, 1, 2]),
            transfer("swa", LAST, KEYS[1:4], [1, 2, 3]),
        ]
    ) == {"deepseek_v4_c4": [True] * 3, "swa": [True] * 3}
    swa = transfer("swa", LAST, ["?"] * 2)
    assert found(storage, transfer("deepseek_v4_c4", ALL), swa).lengths == [3]
    assert found(storage, swa).kv == 0 and storage.batch_exists(KEYS) == 0
    assert storage.batch_get_v1(KEYS, torch.arange(6 * PAGE)) == [True] * 6
    storage.close()


def test_a_pool_is_of_its_rank_and_its_form(tier: Daemon) -> None:
    """In a model whose KV all ranks have, recurrent states and the KV of a draft by heads are of
    one rank, the keys of an indexer of all. A pool in another form is absent."""
    latent, pages = {"is_mla_model": True}, [0, 1]

    def pools(**more: Any) -> dict[str, Any]:
        draft = Small(40, head_num=2)
        return {"mamba": Small(100, **more), "indexer": Small(9), "draft": draft}

    def there(storage: Hybrid) -> list[int]:
        ends = [found(storage, transfer(name, ALL)).kv for name in ("mamba", "indexer", "draft")]
        storage.close()
        return ends

    first = opened(tier, Pool(), "rank", **pools(temporal_dtype="fp32"), more=latent)
    assert first.batch_set_v1(KEYS[:2], torch.arange(2 * PAGE)) == [True] * 2
    for name in ("mamba", "indexer", "draft"):
        assert first.batch_set_v2([transfer(name, ALL, KEYS[:2], pages)])[name] == [True] * 2
    assert there(first) == [2, 2, 2]
    second = latent | {"tp_rank": 1}
    other = opened(tier, Pool(), "rank", **pools(temporal_dtype="fp32"), more=second)
    assert there(other) == [0, 2, 0]
    assert there(opened(tier, Pool(), "rank", **pools(temporal_dtype="bf16"), more=latent))[0] == 0


def test_a_pool_without_pages_is_refused_at_the_start(tier: Daemon) -> None:
    """SGLang has pools of which it gives a backend no pages: one error, which names the pool."""

    class Scaled(Small):
        def get_dummy_flat_data_page(self) -> Any:
            raise RuntimeError("its scales lie elsewhere")

    with pytest.raises(BadInput, match=r"draft: .*no pages of Scaled .*its scales lie elsewhere"):
        opened(tier, Pool(), "scaled", draft=Scaled(9))
    with pytest.raises(BadInput, match=r"kv: .*no pages of Scaled"):
        opened(tier, Scaled(9), "scaled")


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_sglangs_own_controller_keeps_every_pool(tier: Daemon) -> None:
    """SGLang's host pools (heads, latents, a window's, states, index keys, DeepSeek-V4's) in three
    layouts, stored, asked for and loaded by the methods of its controller: as over its own files,
    and each loaded page is the one that was stored."""
    found = in_sglang("sglang_hybrid.py", config(tier).extra_config)
    assert len(found) == 12
    for model, each in found.items():
        assert each["ours"] == each["file"], model
        pages = [one for asked in each["ours"].values() for one in asked["right"].values()]
        assert all(all(one) for one in pages), model
        hits = [asked["hit"] for asked in each["ours"].values()]
        expected = {"sliding": [0, 4, 5, 6], "recurrent": [0, 4, 4, 6], "latents": [3, 4, 5, 6]}
        assert hits == (expected | {"DeepSeek-V4": [0, 4, 5, 6]})[model.split()[0].strip(",")], (
            model
        )
