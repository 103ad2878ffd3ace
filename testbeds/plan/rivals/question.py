"""The question to the rivals: a use, its model, users and context, and the budget of a GPU."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from offstage.bindings.errors import BadInput, nearest
from offstage.bindings.settings import check_given, check_known
from offstage.host.model.geometry import KvGeometry
from offstage.testbeds.plan.kv import DTYPES, parameters
from offstage.testbeds.plan.question import parse_tokens
from offstage.testbeds.plan.rivals.design import RIVALS
from offstage.testbeds.prices import Catalog
from offstage.testbeds.workloads.selections.scores_file import open_capture

__all__ = ["USES", "Asked", "Use", "of_capture", "of_use"]

Use = Literal["tokens", "blocks", "prefix"]
ASKED_MAX = 1e9
"""Dollars of a budget, and seconds of a token: more buys nothing, and need not be computed."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked. `users`: sessions of one GPU; `k`: units of a selection; `unit`: tokens of
    one; `pool`: units that stay in HBM over k; `pace_s`: the slowest token; `turns`: over which a
    context grows; `budget`: dollars a GPU for what holds KV."""

    use: Use
    model: str
    dtype: str = "fp8"
    weights: str = "fp8"
    gpu: str = "h200"
    dpu: str = "bluefield3"
    context: str = "128K"
    users: Annotated[int, Meta(ge=1, le=10**6)] = 64
    k: Annotated[int, Meta(ge=1, le=10**5)]
    unit: int
    pool: Annotated[float, Meta(ge=1, le=100)] = 2.0
    pace_s: float = 0.1
    turns: Annotated[int, Meta(ge=1, le=10**4)] = 10
    budget: float = 10_000.0
    rivals: tuple[str, ...] = tuple(RIVALS)
    reuse: tuple[tuple[float, float], ...] = ()
    """Of a request trace: shares of its blocks that are kept, and of its hits that they give by
    LRU. Empty: contexts are alike, and a part of them that is kept gives that part of the hits."""

    @property
    def tokens(self) -> int:
        """Tokens of a context."""
        return parse_tokens(self.context)

    def shape(self) -> KvGeometry:
        """The model's geometry."""
        return parameters(self.model)[0]

    def check(self, catalog: Catalog) -> None:
        """BadInput for a name that is not known, and for a selection that is the whole context."""
        check_known(self.gpu, catalog.of_class("gpu"), "rivals", "GPU")
        for name in self.rivals:
            check_known(name, RIVALS, "rivals", "rival")
        if len(set(self.rivals)) < 2 or len(set(self.rivals)) < len(self.rivals):
            raise BadInput(
                f"rivals {','.join(self.rivals)}", "rivals", "name two or more, each of them once"
            )
        check_known(self.dpu, catalog.of_class("dpu"), "rivals", "DPU")
        for what, name in (("dtype", self.dtype), ("weights", self.weights)):
            if name not in DTYPES:
                raise BadInput(f"unknown {what} {name!r}", "rivals", nearest(name, DTYPES))
        for what, value in (("budget", self.budget), ("pace", self.pace_s)):
            if not 0 < value <= ASKED_MAX:
                fix = f"give one above 0, and at most {ASKED_MAX:g}"
                raise BadInput(f"{what} = {value:g}", "rivals", fix)
        groups = {one.kind for one in self.shape().groups}
        if not groups <= {"full", "latent", "indexer"}:
            raise BadInput(
                f"{self.model} has layers without selections ({', '.join(sorted(groups))})",
                "rivals",
                "choose a model whose layers all have full attention, or a latent",
            )
        if self.use != "prefix" and self.k * self.unit * 4 > self.tokens:
            raise BadInput(
                f"k = {self.k:,} of {self.unit} tokens is over a quarter of {self.tokens:,}",
                "rivals",
                "select fewer, or ask for a longer context",
            )


USES: dict[str, dict[str, object]] = {
    "tokens": {"model": "deepseek-v3.2", "k": 2048, "unit": 1},
    "blocks": {"model": "llama-3-70b", "k": 128, "unit": 16},
    "prefix": {"model": "llama-3-70b", "k": 1, "unit": 1},
}
"""What each use asks by default. V3.2 selects 2,048 tokens; 128 blocks of 16 are as many tokens."""


def of_use(use: str, given: dict[str, object]) -> Asked:
    """The question of a use, with values of the command line, None for those not given. BadInput as
    `Asked.check` but for names of the catalog."""
    check_known(use, USES, "rivals", "use")
    check_given(given, Asked)
    words = {"use": use, **USES[use], **{k: one for k, one in given.items() if one is not None}}
    try:
        return msgspec.convert(words, Asked)
    except msgspec.ValidationError as error:
        raise BadInput(str(error), "rivals", "see offstage rivals --help") from None


def of_capture(path: Path, k: int | None) -> dict[str, object]:
    """The unit and k of a question on a capture: its blocks, and as many of them as have the tokens
    of the use's own k, unless k is given. BadInput as `open_capture`."""
    unit = open_capture(path).header.block_tokens
    own = USES["blocks"]
    tokens = msgspec.convert(own["k"], int) * msgspec.convert(own["unit"], int)
    return {"unit": unit, "k": k or max(1, tokens // unit)}
