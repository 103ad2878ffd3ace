"""The question: which model, how many users with how much context, on which GPU, with which tiers.

Model: every part of a question has a default, so that a few flags suffice. A SPEC file has a table
`[plan]` with the same words, optionally tables of prices and devices (`prices.py`), whose numbers
replace ours, and for a user-defined model `[model]`:

    [plan]
    model = "llama-3-70b"
    users = 100
    context = "128K"

What can fail: `BadInput` for a word, model, device or format that is not known, a number out of its
range, and more KV than a tier can name.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from offstage.asic_model.blocks import Number
from offstage.bindings.errors import BadInput
from offstage.bindings.settings import check_given, check_known, convert, read_toml
from offstage.bindings.units import parse_time
from offstage.host.model.geometry import KvGeometry
from offstage.testbeds.plan.kv import DTYPES, parameters
from offstage.testbeds.plan.model import Model
from offstage.testbeds.prices import Catalog

__all__ = ["DRIVES", "ENGINES", "PLACES", "Question", "Spec", "parse_tokens", "read_spec"]

PLACES = ("hbm", "ddr5", "cxl", "tlc", "qlc", "xl-flash", "dpu", "object")
"""Where a session's KV may wait for its next turn, from near to far."""
DRIVES = ("tlc", "qlc", "xl-flash", "dpu")
"""Of them, those whose drives can hold weights too."""
ENGINES = ("vllm", "lmcache", "sglang", "cmx")
"""What a plan may be for; `cmx` is LMCache over `libdoca_kv`."""
NAMES_MAX = 2**32 - 1
"""Chunks that one decision core can name: they are numbered in 32 bits (ofs_core.h)."""
TOKENS = re.compile(r"\s*([0-9]{1,15}(?:\.[0-9]+)?)\s*([KkMm]?)\s*")
SCALES = {"": 1, "k": 1 << 10, "m": 1 << 20}


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """The question. `shared`: the share of each context that all sessions begin with. `engine`:
    what is to run on the tier, one of ENGINES or empty. `cold_start`: drives hold the weights too,
    and read them within this time beside KV; empty: they do not. `tenants` share each daemon, which
    may have `memory`, a size; empty: most of the DPU's."""

    model: str = "llama-3-70b"
    dtype: str = "fp16"
    weights: str = "fp8"
    users: Annotated[int, Meta(ge=1, le=10**9)] = 100
    context: str | int = "128K"
    turns: Annotated[int, Meta(ge=1, le=10**6)] = 10
    shared: Annotated[float, Meta(ge=0, le=1)] = 0.0
    gpu: str = "h100"
    dpu: str = "bluefield3"
    tiers: tuple[str, ...] = ("hbm", "ddr5", "cxl", "tlc", "dpu", "object")
    cold_start: str = ""
    engine: str = ""
    tenants: Annotated[int, Meta(ge=1, le=254)] = 1
    memory: str | int = ""

    @property
    def tokens(self) -> int:
        """The context in tokens."""
        return parse_tokens(self.context)

    @property
    def cold_start_s(self) -> float | None:
        """The time in seconds; None: the weights are elsewhere."""
        if not self.cold_start:
            return None
        return parse_time(self.cold_start, "cold_start") / 1e9

    def check(self, catalog: Catalog) -> None:
        """BadInput for an unknown word, or more than a tier can name."""
        for what, dtype in (("dtype", self.dtype), ("weights", self.weights)):
            check_known(dtype, DTYPES, what, "format")
        for what, name, known in (
            ("gpu", self.gpu, catalog.of_class("gpu")),
            ("dpu", self.dpu, catalog.of_class("dpu")),
            *(("tiers", one, PLACES) for one in self.tiers),
        ):
            if name not in known:
                raise BadInput(f"no {name!r}", what, f"choose one of {', '.join(known)}")
        if len(set(self.tiers)) < len(self.tiers):
            raise BadInput(f"{','.join(self.tiers)!r}", "tiers", "name each tier once")
        if self.cold_start_s == 0:
            raise BadInput("a cold start in no time", "cold_start", "give a time such as 30s")
        if self.cold_start and not set(self.tiers) & set(DRIVES):
            raise BadInput(
                "no tier has drives that could hold the weights",
                "cold_start",
                f"add one of {', '.join(DRIVES)} to the tiers, or leave it out",
            )
        if not self.tokens:
            raise BadInput("a context of 0 tokens", "context", "give 1 or more")
        if self.turns > self.tokens:
            raise BadInput(
                f"a context of {self.tokens:,} tokens grows over {self.turns:,} turns",
                "turns",
                "give no more turns than tokens, or a longer context",
            )
        if self.engine:
            check_known(self.engine, ENGINES, "engine", "engine")
        elif self.tenants > 1 or self.memory:
            raise BadInput(
                "tenants and memory are of an engine's daemon, and none is asked for",
                "plan",
                "give an engine, or leave them out",
            )


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """A file: the question, a user-defined model, and numbers in place of ours by device and
    key."""

    plan: Question = Question()
    model: Model | None = None
    numbers: dict[str, Any] = {}
    where: str = ""

    def shape(self) -> tuple[KvGeometry, Number, Number]:
        """The geometry of the question's model, all of its parameters, and the active ones."""
        if self.model is not None:
            return self.model.shape(self.plan.model)
        return parameters(self.plan.model)

    def check(self, catalog: Catalog) -> None:
        """BadInput as `Question.check`, and for more chunks than a decision core can name."""
        self.plan.check(catalog)
        shape, _, _ = self.shape()
        if 0 < shape.context_tokens < self.plan.tokens:
            raise BadInput(
                f"{self.plan.tokens:,} tokens, and {self.plan.model} takes "
                f"{shape.context_tokens:,}",
                "context",
                "give at most as many",
            )
        chunks = self.plan.users * shape.block_count(self.plan.tokens)
        if chunks > NAMES_MAX:
            raise BadInput(
                f"{self.plan.users:,} users of {self.plan.tokens:,} tokens are {chunks:,} chunks, "
                f"and a tier can name {NAMES_MAX:,}",
                "plan",
                "plan for a part of them: tiers side by side do not share",
            )


def parse_tokens(text: str | int, where: str = "context") -> int:
    """Tokens of `131072`, `128K` (of 1,024) or `1M`."""
    match = TOKENS.fullmatch(str(text))
    if match is None or isinstance(text, bool) or (not match[2] and "." in match[1]):
        raise BadInput(f"{text!r} is not a number of tokens", where, "write one such as 128K")
    return round(float(match[1]) * SCALES[match[2].lower()])


def read_spec(path: Path | None, given: Mapping[str, Any]) -> Spec:
    """The file's question, or the default one; values from the command line win."""
    tables = read_toml(path, "give a SPEC with a table [plan]") if path is not None else {}
    where = path.name if path is not None else "command line"
    if path is not None and "plan" not in tables:
        raise BadInput("no table [plan]", where, "write the question in [plan]")
    plan = tables.pop("plan", {})
    if not isinstance(plan, dict):
        raise BadInput("plan is a value", where, "write it as a table [plan]")
    check_given(given, Question)
    words = {"plan": {**plan, **given}, "model": tables.pop("model", None)}
    spec = convert(words, Spec, where)
    return msgspec.structs.replace(spec, numbers=tables, where=where)
