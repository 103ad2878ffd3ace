"""Write the texts that the captures read, from this checkout: `python make_texts.py`.

Eight of four kinds, each cut to what context and steps need, two of four times the length, called
*-32k, and one of sixteen times, called *-128k. Those called tune-* are for choosing policies and
parameters, those called judge-* for reporting; of a kind, the two share no source. What is written
is in texts/, so that captures can be repeated after the sources have changed. `python make_texts.py
NAME...` writes those alone.
"""

import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

from offstage.testbeds.models.resolve import resolve
from offstage.testbeds.progress import Silent

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
CONTEXT_TOKENS, TEXT_TOKENS = 7680, 8000
LONG_TEXT_TOKENS = {"32k": 32_800, "128k": 130_700}
"""Of the texts whose names end so, read with 32,640 and 130,560 tokens of context."""
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
CITIES = (
    "Lisbon Osaka Tallinn Quito Nairobi Bergen Perth Lima Cork Turin Hanoi Accra Lyon Sofia Cairo "
    "Malmo Porto Dakar Riga Delhi Leeds Basel Izmir Tunis"
).split()
PEOPLE = (
    "Okafor Lindqvist Moreau Tanaka Rossi Novak Haddad Silva Jensen Kowalski Mbeki Castillo "
    "Schmidt Ivanov Murphy Takala Dubois Nguyen Fischer Alvarez Bianchi Larsen Horvat Costa"
).split()


def read(*names: str) -> str:
    """Files of the checkout or of sources/, one after the other."""
    folders = (HERE / "sources", ROOT)
    paths = [next(one / name for one in folders if (one / name).exists()) for name in names]
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def pages(folder: str, backwards: bool = False) -> list[str]:
    """The prose of a folder's pages: no blocks of code, no tables, links as their words."""
    found = []
    for path in sorted((ROOT / folder).glob("*.md"), reverse=backwards):
        text = re.sub(
            r"^ *```.*?^ *```\s*$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S
        )
        text = re.sub(r"^(\||<!--).*\n", "", text, flags=re.M)
        text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
        found.append(re.sub(r"\n{3,}", "\n\n", text).strip())
    return found


def chat(texts: list[str]) -> str:
    """Turns of the model's chat template: a page's heading asks, what stands below it answers."""
    turns = [("system", SYSTEM)]
    for text in texts:
        title, *sections = re.split(r"^#+ ", text.removeprefix("# "), flags=re.M)
        page = title.partition("\n")[0]
        for section in sections:
            heading, _, answer = section.partition("\n")
            if len(answer.strip()) > 200:
                turns.append(("user", f"{page}: what should I know about {heading.lower()!r}?"))
                turns.append(("assistant", answer.strip()))
    return "".join(f"<|im_start|>{role}\n{said}<|im_end|>\n" for role, said in turns)


def codes() -> Iterator[tuple[str, str]]:
    """Questions about offices, and the sentences that answer them."""
    numbers = random.Random(1)
    for city in CITIES:
        code = f"{numbers.randrange(10_000, 100_000)}"
        question = f"What is the access code of the office in {city}?"
        yield question, f"The access code of the office in {city} is {code}."


def drawers() -> Iterator[tuple[str, str]]:
    """Questions about people, and the sentences that answer them."""
    numbers = random.Random(2)
    for name in PEOPLE:
        drawer, cabinet = numbers.randrange(10, 100), numbers.choice("ABCDEFGH")
        question = f"Where does Professor {name} keep the laboratory notes?"
        answer = (
            f"Professor {name} keeps the laboratory notes in drawer {drawer} of cabinet {cabinet}."
        )
        yield question, answer


def retrieval(tokenizer: Tokenizer, texts: list[str], needles: list[tuple[str, str]]) -> str:
    """A haystack as long as the context with a needle at equal distances, then the questions, in
    another order, each with its answer: the decode steps are the first of them."""
    encoded = tokenizer.encode("\n\n".join(texts), add_special_tokens=False)
    needle_tokens = sum(
        len(tokenizer.encode(f"\n\n{one}", add_special_tokens=False).ids) for _, one in needles
    )
    cut = encoded.offsets[CONTEXT_TOKENS - needle_tokens][0]
    paragraphs = "\n\n".join(texts)[:cut].split("\n\n")
    for number, (_, needle) in reversed(list(enumerate(needles))):
        paragraphs.insert(number * len(paragraphs) // len(needles), needle)
    asked = random.Random(3).sample(needles, len(needles))
    answers = [f"Question: {question}\nAnswer: {answer}" for question, answer in asked]
    return "\n\n".join([*paragraphs, *answers])


def main() -> None:
    """Write all of them, or those that are named."""
    tokenizer = Tokenizer.from_file(str(resolve(Path("smollm2-135m"), Silent()) / "tokenizer.json"))
    python = sorted((ROOT / "testbeds/workloads/selections").glob("*.py"))
    c = {
        folder: sorted((ROOT / "dpu/firmware/src" / folder).glob("*.c"))
        for folder in ("core", "device", "store", "port", "driver", "storage", "fabric")
    }
    decisions = pages("docs/decisions")
    texts = {
        "tune-prose": read(
            "declaration.txt", "testbeds/presets/constitution.txt", "amendments.txt"
        ),
        "judge-prose": "\n\n".join(decisions[: len(decisions) // 2]),
        "tune-code": read(*(str(path.relative_to(ROOT)) for path in python)),
        "judge-code": read(*(str(path.relative_to(ROOT)) for path in c["core"])),
        "tune-chat": chat(pages("docs/how-to")),
        "judge-chat": chat(pages("docs/how-to", backwards=True)),
        "tune-retrieval": retrieval(tokenizer, decisions[len(decisions) // 2 :], list(codes())),
        "judge-retrieval": retrieval(tokenizer, pages("docs/reference"), list(drawers())),
        "judge-prose-32k": "\n\n".join(pages("docs/reference")),
        "judge-code-32k": read(*(str(path.relative_to(ROOT)) for path in c["device"])),
        "judge-code-128k": read(
            *(
                str(path.relative_to(ROOT))
                for folder in ("store", "port", "driver", "storage", "fabric")
                for path in c[folder]
            )
        ),
    }
    for name in sys.argv[1:] or texts:
        text, tokens = texts[name], LONG_TEXT_TOKENS.get(name.rpartition("-")[2], TEXT_TOKENS)
        encoded = tokenizer.encode(text, add_special_tokens=False)
        assert len(encoded.ids) >= tokens, f"{name} has {len(encoded.ids)} tokens"
        end = encoded.offsets[tokens][0]
        (HERE / f"texts/{name}.txt").write_text(text[:end], encoding="utf-8")


if __name__ == "__main__":
    main()
