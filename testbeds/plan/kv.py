"""Bytes of KV by model and format: of one token, and of a whole session.

Model: the geometry gives a model's cache groups (`host/model/models.py`, or a config.json), and a
format gives their bytes (`host/model/formats.py`), with a range where kernels differ.

What can fail: `BadInput` for a model that is neither published nor described, an unknown format.
"""

from functools import lru_cache
from pathlib import Path

from offstage.asic_model.blocks import Number
from offstage.asic_model.tables.numbers import read_numbers
from offstage.bindings.errors import BadInput, nearest
from offstage.host.model.formats import DTYPES, SOURCES, Stored, growth, held, total
from offstage.host.model.geometry import KvGeometry
from offstage.host.model.models import geometry
from offstage.testbeds.models.config_file import find_config
from offstage.testbeds.plan.model import described

__all__ = ["DTYPES", "parameters", "session_bytes", "token_bytes"]

MODELS = Path(__file__).resolve().parent / "models.toml"


def token_bytes(shape: KvGeometry, dtype: str) -> Number:
    """A session's growth in bytes per token, all layers and index keys."""
    return _number(shape, dtype, total([growth(one, dtype) for one in shape.groups]))


def session_bytes(shape: KvGeometry, dtype: str, tokens: int) -> Number:
    """A session of `tokens` tokens, with windows and states, which do not grow with it."""
    return _number(shape, dtype, total([held(one, dtype, tokens) for one in shape.groups]))


def _number(shape: KvGeometry, dtype: str, stored: Stored) -> Number:
    low, value, high = stored
    source = f"{SOURCES[dtype]}; {shape.source}"
    return Number(value=value, unit="B", low=low, high=high, source=source, tag="derived")


@lru_cache(maxsize=1)
def _parameters() -> dict[str, dict[str, Number]]:
    return read_numbers(MODELS, {"1e9": 1e9})


def parameters(model: str) -> tuple[KvGeometry, Number, Number]:
    """A model's geometry, its parameters, and those that are active for a token. `model`: a name
    of our table, or its id at Hugging Face, in any case; else as `model.find_config`."""
    known = _parameters()
    name = next((one for one in known if model.lower() in _names(one, known[one])), None)
    if name is not None:
        return geometry(name), known[name]["all"], known[name]["active"]
    path = find_config(model)
    if path is None:
        raise BadInput(
            f"no published geometry of {model!r}",
            "model",
            f"{nearest(model, known)}; or give a config.json, or [model] in a SPEC",
        )
    return described(path, model)


def _names(name: str, numbers: dict[str, Number]) -> tuple[str, str]:
    """How a model of our table may be called: its sources begin with its id."""
    return name, numbers["all"].source.split(",")[0].lower()
