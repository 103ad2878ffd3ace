"""Captures block scores from a model's decoding: prefill, then step by step, into a file.

One forward pass gives the scores of its last query, or none. The context is read in pieces. Its
last windows, one block of tokens each, are recorded passes (steps below 0); each decode step is a
pass of one token. A second session begins where the windows begin, so that the long part of the
context is computed once. Memory: the model, its KV cache, block summaries, one step's scores and
the current row group.
"""

import hashlib
import importlib.metadata
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput, RunFailed
from offstage.host.model.identity import digest_of, files_of
from offstage.testbeds.capture.attention import Hook, KvCache, installed
from offstage.testbeds.capture.draft_model import DraftModel
from offstage.testbeds.capture.model import Loaded, Shape, load, look, text_tokens
from offstage.testbeds.capture.rope import parse_rope
from offstage.testbeds.progress import Progress, Silent
from offstage.testbeds.workloads.selections.scores_file import COLUMNS, Header, Session
from offstage.testbeds.workloads.selections.scores_writer import (
    ROW_GROUP_BYTES,
    Writer,
    check_path,
)

__all__ = ["WINDOWS", "Options", "Result", "capture", "parse_layers"]

WINDOWS = 32
"""Recorded passes of one block each at the prefill's end: the number of windows with which ESS
(arXiv:2512.10576) warms its pool."""


THREADS_MAX = 4096
"""More than a machine has cores; the library ends the process where it cannot start them."""

LOOKUP_TOKENS = 3
"""For prompt lookup (Saxena, 2023): this many newest tokens are searched in the text before."""


@dataclass(frozen=True)
class Options:
    """What to capture. `context_tokens` None: all of the text, less room for the steps."""

    model: Path
    text: Path
    out: Path
    mode: Literal["teacher", "free", "both"] = "both"
    steps: int = 256
    context_tokens: int | None = None
    block_tokens: int = 64
    windows: int = WINDOWS
    """Recorded passes before the first step; fewer where the context has fewer blocks."""
    prefill_piece: int = 2048
    layers: str | None = None
    """As `parse_layers` reads it; None: all."""
    dtype: str = "auto"
    device: str = "cpu"
    temperature: float = 0.0
    """Temperature of free running; 0 takes the most likely token."""
    seed: int = 0
    threads: int | None = None
    """Torch threads on the CPU; None: torch's default."""
    row_group_bytes: int = ROW_GROUP_BYTES
    rope: str = ""
    """Scaling of rotary positions, as `parse_rope` reads it; empty: the config's own."""
    draft_model: Path | None = None
    """A second, smaller model with the same tokenizer, whose drafts replace early exit's."""


@dataclass(frozen=True)
class Result:
    """What was written."""

    path: Path
    header: Header
    row_count: int
    held_bytes_max: int
    """Maximum bytes of scores waiting to be written."""
    size_bytes: int
    wall_s: float
    drafts_accepted: float | None
    """The share of steps in which early exit's likeliest draft was the next token; None without
    drafts."""
    some_draft_accepted: float | None
    """The share in which one of the drafts was, prompt lookup's included."""
    lookups_accepted: float | None
    """The share for prompt lookup's drafts, where it had one."""
    model_drafts_accepted: float | None
    """The share for the draft model's likeliest token; None without one."""
    perplexity: float | None
    """Of the text's tokens in the steps of `teacher`, by dense attention; None without them."""


def capture(options: Options, progress: Progress | None = None) -> Result:
    """Run the model over the text and write the file.

    Raises BadInput for options, model, text and path as the parts do, Missing without the extra
    `capture`, RunFailed if memory or disk run out or scores are not finite, and Interrupted on
    Ctrl-C if steps were kept.
    """
    begun = time.monotonic()
    progress = progress or Silent()
    _check(options)
    shape = look(options.model, parse_rope(options.rope))
    layers = parse_layers(options.layers, shape.layer_count)
    import torch

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    progress.start("load the model", 1, "")
    loaded = load(shape, options.device, options.dtype)
    tokens, text_sha256 = text_tokens(loaded, options.text)
    context_tokens = _context_tokens(options, shape, len(tokens))
    header = _header(options, loaded, layers, text_sha256, tokens[:context_tokens])
    draft = None
    if options.draft_model is not None:
        draft = DraftModel(
            options.draft_model,
            options.text,
            tokens,
            context_tokens + options.steps,
            options.device,
            options.dtype,
        )
    hook = Hook(layers, options.block_tokens, context_tokens + options.steps)
    try:
        with (
            torch.inference_mode(),
            installed(loaded.model, hook),
            Writer(options.out, header, COLUMNS, options.row_group_bytes) as writer,
        ):
            run = _Run(options, loaded, hook, tokens, context_tokens, writer, progress, draft)
            run.prefill()
            for index, session in enumerate(header.sessions):
                run.session(index, session.mode)
            if run.perplexity is not None:
                writer.tell(perplexity=round(run.perplexity, 4))
    except (torch.OutOfMemoryError, MemoryError):
        fix = "use fewer --context-tokens, a smaller --prefill-piece or --dtype bfloat16"
        raise RunFailed("out of memory", options.device, fix) from None
    wall_s = time.monotonic() - begun
    size_bytes = options.out.stat().st_size
    return Result(
        options.out,
        writer.header,
        writer.row_count,
        writer.held_bytes_max,
        size_bytes,
        wall_s,
        _share(run.drafts),
        _share(run.some_drafts),
        _share(run.lookups),
        _share(run.model_drafts),
        run.perplexity,
    )


def _share(found: list[bool]) -> float | None:
    return float(np.mean(found)) if found else None


def parse_layers(text: str | None, layer_count: int) -> tuple[int, ...]:
    """`0-3,8` as (0, 1, 2, 3, 8); None as all layers. Raises BadInput for an invalid layer."""
    if text is None:
        return tuple(range(layer_count))
    chosen: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise BadInput(f"{part!r} is not a layer", "--limit-layers", "write for example 0-3,8")
        span = range(int(first), int(last if dash else first) + 1)
        if not span or span[-1] >= layer_count:
            fix = f"the model has layers 0 to {layer_count - 1}"
            raise BadInput(f"no layers {part.strip()}", "--limit-layers", fix)
        chosen.update(span)
    return tuple(sorted(chosen))


class _Run:
    """The passes of one capture."""

    def __init__(
        self,
        options: Options,
        loaded: Loaded,
        hook: Hook,
        tokens: list[int],
        context_tokens: int,
        writer: Writer,
        progress: Progress,
        draft: DraftModel | None,
    ) -> None:
        self.draft = draft
        self.options, self.loaded, self.hook = options, loaded, hook
        self.tokens, self.writer, self.progress = tokens, writer, progress
        self.context_tokens = context_tokens
        self.drafts: list[bool] = []
        self.some_drafts: list[bool] = []
        self.lookups: list[bool] = []
        self.model_drafts: list[bool] = []
        self.nll: list[float] = []
        self.chance = 0.5  # that prompt lookup's next draft is right: moves by a sixteenth a step
        blocks = context_tokens // options.block_tokens
        self.windows = min(options.windows, blocks)
        self.bulk_tokens = (blocks - self.windows) * options.block_tokens
        self.cache = KvCache(loaded.shape.layer_count, context_tokens + options.steps)

    @property
    def perplexity(self) -> float | None:
        """Of the text's tokens so far, by the model's own output before each."""
        return math.exp(float(np.mean(self.nll))) if self.nll else None

    def prefill(self) -> None:
        """Read the context up to its last windows."""
        self.progress.start("prefill", self.bulk_tokens, "tokens")
        begun, all_work = time.monotonic(), self._work(self.bulk_tokens)
        for begin in range(0, self.bulk_tokens, self.options.prefill_piece):
            piece = self.tokens[begin : min(begin + self.options.prefill_piece, self.bulk_tokens)]
            self._pass(piece, False)
            work = self._work(begin + len(piece))
            took = time.monotonic() - begun
            left = took * (all_work / work - 1)
            self.progress.note(f"{work / took / 1e9:.1f} GFLOP/s, about {left:,.0f} s left")
            self.progress.advance(len(piece))
        for begin in range(0, self.context_tokens if self.draft else 0, self.options.prefill_piece):
            assert self.draft is not None
            end = min(begin + self.options.prefill_piece, self.context_tokens)
            self.draft.read(self.tokens[begin:end])

    def _work(self, tokens: int) -> float:
        """Floating-point operations of reading the first `tokens` of a text: two for each weight of
        the layers and token, four for each channel of each query head and pair of tokens."""
        config = self.loaded.model.config
        head_dim = getattr(config, "head_dim", None)
        width: int = config.num_attention_heads * (
            head_dim or config.hidden_size // config.num_attention_heads
        )
        weights: int = sum(
            one.numel() for one in self.loaded.model.get_decoder().layers.parameters()
        )
        pairs = tokens * (tokens + 1) / 2
        return 2.0 * weights * tokens + 4.0 * width * self.loaded.shape.layer_count * pairs

    def session(self, index: int, mode: str) -> None:
        """Run the last windows and the steps of one session."""
        steps, size = self.options.steps, self.options.block_tokens
        self.progress.start(mode, self.windows + steps, "steps")
        self.cache.truncate(self.bulk_tokens)
        self.hook.second = None
        if self.draft is not None:
            self.draft.back_to(self.context_tokens)
        logits: Any = None
        for window in range(self.windows):
            begin = self.bulk_tokens + window * size
            logits = self._pass(self.tokens[begin : begin + size], True)
            self._record(index, window - self.windows)
        random = np.random.default_rng(self.options.seed)
        told = self.tokens[: self.context_tokens]
        for step in range(steps):
            if mode == "teacher":
                token = self.tokens[self.context_tokens + step]
                self.nll.append(-float(logits.log_softmax(dim=-1)[token]))
            else:
                token = self._next_token(logits, random)
            self._drafted(token)
            told.append(token)
            self.hook.lookup = self._looked_up(told)
            self.hook.second = None if self.draft is None else self.draft.read([token])
            logits = self._pass([token], True)
            self._record(index, step)

    def _drafted(self, token: int) -> None:
        """Compare the drafts of the pass before with the token."""
        if not self.hook.drafts:
            return
        self.drafts.append(self.hook.drafts[0] == token)
        some = self.hook.drafts
        if self.hook.second is not None:
            self.model_drafts.append(next(iter(self.hook.second)) == token)
            some = (*some, *self.hook.second)
        if self.hook.lookup is not None:
            self.lookups.append(self.hook.lookup[0] == token)
            self.chance += (self.lookups[-1] - self.chance) / 16
            some = (*some, self.hook.lookup[0])
        self.some_drafts.append(token in some)

    def _looked_up(self, told: list[int]) -> tuple[int, float] | None:
        """The token after the last earlier occurrence of the newest `LOOKUP_TOKENS`."""
        newest = told[-LOOKUP_TOKENS:]
        for at in range(len(told) - LOOKUP_TOKENS - 1, -1, -1):
            if told[at : at + LOOKUP_TOKENS] == newest:
                return told[at + LOOKUP_TOKENS], self.chance
        return None

    def _pass(self, tokens: list[int], wanted: bool) -> Any:
        """One forward pass; returns the last token's logits, float32 `[vocabulary]`."""
        import torch

        self.hook.wanted = wanted
        ids = torch.tensor([tokens], device=self.loaded.model.device)
        found = self.loaded.model(
            input_ids=ids, past_key_values=self.cache, use_cache=True, logits_to_keep=1
        )
        return found.logits[0, -1].float()

    def _record(self, index: int, step: int) -> None:
        scores = self.hook.take()
        for name, values in scores.items():
            finite = np.isfinite(values).all(axis=(1, 2))
            if not finite.all():
                layer = self.writer.header.layers[int(np.flatnonzero(~finite)[0])]
                raise RunFailed(
                    f"{name} of layer {layer} is not finite at step {step}",
                    f"dtype {self.loaded.dtype}",
                    "use --dtype bfloat16 or float32"
                    if self.loaded.dtype == "float16"
                    else "copy the model again: its weights or rotary positions overflow",
                )
        self.writer.step(index, step, scores)
        self.progress.advance(1)

    def _next_token(self, logits: Any, random: np.random.Generator) -> int:
        """The most likely token, or one drawn at the temperature; never an end-of-text token."""
        values: npt.NDArray[np.float64] = logits.cpu().numpy().astype(np.float64)
        values[list(self.loaded.end_tokens)] = -np.inf
        if self.options.temperature == 0:
            return int(np.argmax(values))
        scaled = (values - values.max()) / self.options.temperature
        weights = np.exp(scaled)
        return int(random.choice(len(weights), p=weights / weights.sum()))


def _check(options: Options) -> None:
    """BadInput for a number out of range and a path that cannot be written."""
    least = {
        "--steps": (options.steps, 1),
        "--block-tokens": (options.block_tokens, 1),
        "--prefill-piece": (options.prefill_piece, 1),
        "--threads": (1 if options.threads is None else options.threads, 1),
        "--context-tokens": (
            options.block_tokens if options.context_tokens is None else options.context_tokens,
            options.block_tokens,
        ),
    }
    for name, (value, bound) in least.items():
        if value < bound:
            raise BadInput(f"{name} = {value}", "trace capture", f"give {bound} or more")
    if (options.threads or 1) > THREADS_MAX:
        fix = f"give 1 to {THREADS_MAX}"
        raise BadInput(f"--threads = {options.threads}", "trace capture", fix)
    if not 0 <= options.temperature <= 100:
        raise BadInput(f"--temperature = {options.temperature}", "trace capture", "give 0 to 100")
    if (options.context_tokens or 0) % options.block_tokens:
        near = (options.context_tokens or 0) // options.block_tokens * options.block_tokens
        raise BadInput(
            f"--context-tokens = {options.context_tokens} is not a whole number of blocks of "
            f"{options.block_tokens} tokens",
            "trace capture",
            f"give {near}",
        )
    check_path(options.out)


def _context_tokens(options: Options, shape: Shape, text_tokens: int) -> int:
    """Tokens of the context. BadInput if text, model or window are too short for it."""
    behind = 0 if options.mode == "free" else options.steps
    context = options.context_tokens
    if context is None:
        room = min(text_tokens - behind, shape.tokens_max - options.steps)
        context = max(options.block_tokens, room // options.block_tokens * options.block_tokens)
    if context + behind > text_tokens:
        raise BadInput(
            f"the text has {text_tokens} tokens; {context} of context and {behind} steps need more",
            str(options.text),
            "give a longer text, or fewer tokens",
        )
    total = context + options.steps
    if total > shape.tokens_max:
        raise BadInput(
            f"{context} tokens of context and {options.steps} steps; the model supports "
            f"{shape.tokens_max}",
            str(options.model),
            "give fewer",
        )
    if shape.window_tokens is not None and total > shape.window_tokens:
        raise BadInput(
            f"layers with a sliding window of {shape.window_tokens} tokens read nothing before it",
            str(options.model),
            f"keep --context-tokens and --steps together within {shape.window_tokens}",
        )
    return context


def _header(
    options: Options,
    loaded: Loaded,
    layers: tuple[int, ...],
    text_sha256: str,
    context: list[int],
) -> Header:
    shape = loaded.shape
    modes: tuple[Literal["teacher", "free"], ...]
    modes = ("teacher", "free") if options.mode == "both" else (options.mode,)
    # Equal contexts of one model have the same KV, whatever text follows.
    ids = hashlib.sha256(np.array(context, np.int64).tobytes()).hexdigest()
    weights = digest_of(files_of(str(shape.folder)), str(shape.folder)).digest
    content = hashlib.sha256(f"{weights} {options.rope} {ids}".encode()).hexdigest()
    return Header(
        model=shape.name,
        config_sha256=shape.config_sha256,
        text_sha256=text_sha256,
        tokenizer=type(loaded.tokenizer).__name__,
        dtype=loaded.dtype,
        synthetic=False,
        block_tokens=options.block_tokens,
        layer_count=len(layers),
        group_count=shape.group_count,
        layers=layers,
        index_source=tuple(range(len(layers))),
        sessions=tuple(
            Session(
                name=f"{options.text.stem}/{mode}",
                mode=mode,
                context_tokens=len(context),
                steps=options.steps,
                content=content,
            )
            for mode in modes
        ),
        parameters={
            "architecture": shape.model_type,
            "device": options.device,
            "prefill_piece": options.prefill_piece,
            "seed": options.seed,
            "temperature": options.temperature,
            "text": options.text.name,
            **({"rope": options.rope} if options.rope else {}),
            **({"draft_model": options.draft_model.name} if options.draft_model else {}),
            **{name: importlib.metadata.version(name) for name in ("torch", "transformers")},
        },
    )
