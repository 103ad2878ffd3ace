"""Rotary positions scaled to a longer context than a model was trained on: `--rope yarn:4`.

A model whose config.json already names a scaling keeps it: transformers computes it. This module
adds one to a model that has none. Raises BadInput; changes nothing but the configuration.
"""

from dataclasses import dataclass
from typing import Any

from offstage.bindings.errors import BadInput

__all__ = ["KINDS", "Rope", "parse_rope"]

KINDS = ("linear", "ntk", "yarn", "llama3")
"""linear: positions divided by the factor (Chen et al., arXiv:2306.15595). ntk: the base raised by
factor^(d / (d - 2)), d rotated dimensions (bloc97, 2023). yarn: Peng et al., arXiv:2309.00071.
llama3: by wavelength, with Llama 3.1's factors of 1 and 4 (arXiv:2407.21783)."""

FACTOR_MAX = 64.0


@dataclass(frozen=True)
class Rope:
    """A scaling: one of `KINDS`, and how many times longer the context becomes."""

    kind: str
    factor: float

    def __str__(self) -> str:
        return f"{self.kind}:{self.factor:g}"

    def scale(self, config: Any, where: str) -> None:
        """Change a transformers configuration in place: its rotary parameters and the context it
        takes. BadInput where it has no rotary positions, or has scaled ones already."""
        given = dict(getattr(config, "rope_parameters", None) or {})
        if any(isinstance(one, dict) for one in given.values()):
            raise BadInput("layers of two kinds rotate differently", where, "leave --rope out")
        if "rope_theta" not in given:
            raise BadInput("the model has no rotary positions", where, "leave --rope out")
        if given.get("rope_type", "default") != "default":
            raise BadInput(
                f"config.json already scales rotary positions ({given['rope_type']})",
                where,
                "leave --rope out",
            )
        trained = config.max_position_embeddings
        if self.kind == "ntk":
            given["rope_theta"] *= self.factor ** _ntk_exponent(config, given)
        else:
            given |= {"rope_type": self.kind, "factor": self.factor}
            given |= {"original_max_position_embeddings": trained}
        if self.kind == "llama3":
            given |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
        config.rope_parameters = given
        config.max_position_embeddings = int(trained * self.factor)


def parse_rope(text: str) -> Rope | None:
    """`yarn:4` as a scaling, "" as none. Raises BadInput otherwise."""
    if not text:
        return None
    kind, _, factor = text.partition(":")
    try:
        number = float(factor)
    except ValueError:
        number = 0.0
    if kind not in KINDS or not 1 < number <= FACTOR_MAX:
        raise BadInput(
            f"{text!r} is not a scaling of rotary positions",
            "--rope",
            f"write TYPE:FACTOR, with one of {', '.join(KINDS)} and above 1 to {FACTOR_MAX:g}",
        )
    return Rope(kind, number)


def _ntk_exponent(config: Any, given: dict[str, float]) -> float:
    heads = config.num_attention_heads
    dimensions = getattr(config, "head_dim", None) or config.hidden_size // heads
    rotated = int(dimensions * given.get("partial_rotary_factor", 1.0))
    return rotated / (rotated - 2)
