"""The fields of a model's config.json: by name, with what a model's class has where one is missing.

A file of a nested or an old model leaves out what its class has as default, so a field that is not
there is that of `config_defaults.toml` for its `model_type`; those are transformers' own (tests
compare them). Without a known `model_type` nothing is assumed, and null is none.

Immutable, any thread. `BadInput` names the field and what to write in it.
"""

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from offstage.bindings.errors import BadInput

__all__ = ["COUNT_MAX", "Fields", "read_fields"]

COUNT_MAX = 1 << 40
"""Beyond any number that a model has."""
DEFAULTS = Path(__file__).resolve().parent / "config_defaults.toml"
TEXT = "text_config"


@lru_cache(maxsize=1)
def _defaults() -> dict[str, dict[str, Any]]:
    return tomllib.loads(DEFAULTS.read_text(encoding="utf-8"))


class Fields:
    """One model's fields. `where`: its file, for errors."""

    def __init__(self, given: Mapping[str, Any], where: str, outer_type: object = None) -> None:
        self.given, self.where = given, where
        named = given.get("model_type") or (f"{outer_type}_text" if outer_type else None)
        self.model_type = named if isinstance(named, str) else ""
        """As transformers names it; "" where the file does not say."""
        self._assumed = _defaults().get(self.model_type, {})

    def bad(self, what: str, fix: str) -> BadInput:
        """The error of this file."""
        return BadInput(what, self.where, fix)

    @property
    def names(self) -> set[str]:
        """Every field that the file or its class has."""
        return {*self.given, *self._assumed}

    def has(self, name: str) -> bool:
        """Whether the file itself says it."""
        return self.given.get(name) is not None

    def get(self, name: str) -> Any:
        """The value of a field, or of its class; None where neither has one."""
        return self.given[name] if name in self.given else self._assumed.get(name)

    def find(self, *names: str) -> Any:
        """The first of these that the file has; else the first that its class has."""
        own = (self.given[name] for name in names if self.has(name))
        assumed = (self.get(name) for name in names if self.get(name) is not None)
        return next(own, next(assumed, None))

    def count(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of at least `least`. BadInput for one that is missing, or is none."""
        found = self.find(*names)
        found = default if found is None else found
        name = next((one for one in names if self.has(one)), names[0])
        if not isinstance(found, int) or isinstance(found, bool):
            was = "" if found is None else f", but {found!r:.40}"
            raise self.bad(
                f"no whole number {name} in it{was}", f"write {name} as the model has it"
            )
        if not least <= found < COUNT_MAX:
            bound = f"{least} or more" if found < least else f"less than {COUNT_MAX:,}"
            raise self.bad(f"{name} is {found!s:.40}", f"write {bound}, as the model has it")
        return found

    def flag(self, name: str) -> bool | None:
        """True or false, None where neither is said. BadInput for anything else: a class would
        take the word "false" for true."""
        found = self.get(name)
        if found is not None and not isinstance(found, bool):
            raise self.bad(f"{name} is {found!r:.40}", "write true or false")
        return found

    def words(self, name: str) -> list[str] | None:
        """A list of words, None where there is none. BadInput for anything else."""
        found = self.get(name)
        if found is None:
            return None
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise self.bad(f"{name} is not a list of words", "write a word for each layer")
        return list(found)

    def numbers(self, name: str) -> list[int] | None:
        """A list of whole numbers of 0 or more, None where there is none. BadInput for anything
        else."""
        found = self.get(name)
        if found is None:
            return None
        plain = isinstance(found, list) and all(
            isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in found
        )
        if not plain:
            raise self.bad(f"{name} is not a list of whole numbers", "write one for each layer")
        return list(found)

    def inside(self, name: str) -> "Fields | None":
        """The fields of a table in it, None where there is none. BadInput for anything else."""
        found = self.get(name)
        if found is None:
            return None
        if not isinstance(found, dict):
            raise self.bad(f"{name} is not an object", "write its fields in braces")
        return Fields(found, f"{self.where}: {name}")


def read_fields(config: object, where: str) -> Fields:
    """The fields of a model's text part. BadInput for what is no object."""
    if not isinstance(config, dict):
        raise BadInput(
            "not a model's config.json",
            where,
            "give the config.json of a model, an object with num_hidden_layers and its like",
        )
    text = config.get(TEXT)
    if text is None:
        return Fields(config, where)
    if not isinstance(text, dict):
        raise BadInput(
            f"{TEXT} is not an object", where, "write the fields of the text model in it"
        )
    return Fields(text, where, outer_type=config.get("model_type"))
