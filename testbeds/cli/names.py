"""Names that a shell completes after an option or for an argument: those that come with Offstage.

A function gives all names of a kind that begin with what is typed. A file is no name: where none
fits, the shell offers files.
"""

from collections.abc import Callable, Iterable

__all__ = ["devices", "drives", "gpus", "kv_models", "models", "presets", "profiles", "specs"]

Complete = Callable[[str], list[str]]


def _begun(names: Callable[[], Iterable[str]]) -> Complete:
    def complete(incomplete: str) -> list[str]:
        return [one for one in names() if one.startswith(incomplete)]

    return complete


def _of_class(name: str) -> Callable[[], list[str]]:
    def found() -> list[str]:
        from offstage.testbeds.prices import catalog

        return catalog().of_class(name)

    return found


def _presets() -> list[str]:
    from offstage.asic_model.parameters import names

    return names()


def _drives() -> list[str]:
    from offstage.bindings.drives import presets

    return presets()


def _specs() -> list[str]:
    from offstage.testbeds.lab.spec.load import SPECS

    return sorted(one.stem for one in SPECS.glob("*.toml"))


def _kv_models() -> Iterable[str]:
    from offstage.host.model.models import GEOMETRIES

    return GEOMETRIES


def _models() -> Iterable[str]:
    from offstage.testbeds.models.known import KNOWN

    return KNOWN


def _profiles() -> Iterable[str]:
    from offstage.testbeds.workloads.selections.profiles import PROFILES

    return PROFILES


gpus = _begun(_of_class("gpu"))
"""GPUs with a price."""
devices = _begun(_of_class("dpu"))
"""DPUs with a price."""
presets = _begun(_presets)
"""Presets of the chip model."""
drives = _begun(_drives)
"""Drives of the NVMe model."""
specs = _begun(_specs)
"""Specs of the laboratory."""
kv_models = _begun(_kv_models)
"""Models whose KV is known, of `plan` and `model show`."""
models = _begun(_models)
"""Models that a command can fetch and run."""
profiles = _begun(_profiles)
"""Profiles of drawn selections."""
