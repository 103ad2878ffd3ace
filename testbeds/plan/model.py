"""A model that our table does not have: given in a SPEC's `[model]`, or described by a config.json.

A config.json says what the cache of a session is (`host/model/config.py`); its parameters are
counted from the matrices it describes (`parameters.py`).

What can fail: `BadInput` for a table or a file that describes no model.
"""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from offstage.asic_model.blocks import Number
from offstage.bindings.errors import BadInput
from offstage.host.model.config_fields import read_fields
from offstage.host.model.geometry import KvGeometry, LayerKv
from offstage.testbeds.models.config_file import read_config
from offstage.testbeds.plan.parameters import counted

__all__ = ["Model", "described"]

ROTARY = 64
"""Values of a latent that are rotary, in every model with MLA that we know."""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A user-defined model. `head`: values of one KV head, or of the latent. Parameters in 10^9."""

    layers: Annotated[int, Meta(ge=1, le=10**4)]
    form: str = "gqa"
    heads: Annotated[int, Meta(ge=1, le=10**5)]
    kv_heads: Annotated[int, Meta(ge=0, le=10**5)] = 0
    head: Annotated[int, Meta(ge=1, le=10**5)]
    index: Annotated[int, Meta(ge=0, le=10**5)] = 0
    parameters: Annotated[float, Meta(gt=0, le=1e6)]
    active: Annotated[float, Meta(ge=0, le=1e6)] = 0.0

    def shape(self, name: str) -> tuple[KvGeometry, Number, Number]:
        """As `kv.parameters` gives it for a published one."""
        source = "given in [model]"
        if self.form not in ("gqa", "mha", "mla"):
            raise BadInput(f"form = {self.form!r}", "[model]", "choose gqa, mha or mla")
        form = {"mla": "mla"}.get(self.form, "gqa")
        heads = 1 if form == "mla" else self.heads if self.form == "mha" else self.kv_heads
        if not heads:
            raise BadInput("kv_heads is missing", "[model]", "give the heads that have K and V")
        rotary = ROTARY if form == "mla" and self.head > ROTARY else 0
        layer = LayerKv(
            "mla" if form == "mla" else "gqa",
            heads,
            self.head,
            index_dim=self.index,
            rotary_dim=rotary,
        )
        shape = KvGeometry(name, self.heads, (layer,) * self.layers, 64, source=source)
        return (
            shape,
            _given(self.parameters, source),
            _given(self.active or self.parameters, source),
        )


def _given(value: float, source: str) -> Number:
    return Number(
        value=value, unit="1e9", low=value, high=value, source=source, tag="cited", scale=1e9
    )


def described(path: Path, name: str) -> tuple[KvGeometry, Number, Number]:
    """The model of a config.json, as `kv.parameters` gives it."""
    shape, config = read_config(path, name)
    everything, active = counted(read_fields(config, str(path)), shape)
    return (
        shape,
        _given(everything / 1e9, shape.source),
        _given(active / 1e9, shape.source),
    )
