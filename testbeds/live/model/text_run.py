"""A real model decodes a text through the tier, compared with its own dense attention.

The model reads the context once; its blocks are written to the daemon, its KV stays as the
reference. Then, for each length of the context, each type of KV, each selector and each selection,
the same tokens are decoded from the same context through the tier, and their logits are compared
with those of the model's attention. If every block was selected, or what the model's indexers say,
the same kernel runs over them in memory, and must agree to the bit. Blocks may be quantized.
"""

import hashlib
import importlib.metadata
import json
import time
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

import offstage
from offstage.bindings.notes import Note
from offstage.host.arrays import Arrays
from offstage.host.arrays.quantized import QuantizedArrays
from offstage.host.decode.layer import Decoder, SelectionRule
from offstage.host.decode.pool import HbmPool
from offstage.host.decode.prefill import BlockWriter, MissingWriter, compute_context
from offstage.host.decode.record import AgentRecord
from offstage.host.decode.session import Context
from offstage.host.endpoint import Endpoint
from offstage.host.fabrics import Fabric
from offstage.host.gpu.selector import selectors_of
from offstage.host.link.control import Control
from offstage.host.link.tier_sessions import append_chunks
from offstage.host.model.identity import Weights
from offstage.host.model.index_blocks import with_index_blocks
from offstage.host.model.quantized_rows import Quantizer
from offstage.host.transformer.attention import Foresight, installed, sink_logits_of
from offstage.host.transformer.batch import going_on
from offstage.host.transformer.dense import DenseKv, kv_geometry
from offstage.host.transformer.index_keys import IndexedKv
from offstage.host.transformer.quantized import QuantizedKv
from offstage.host.transformer.resident import ResidentAttention
from offstage.host.transformer.sensitivity import Choice, Probe, choose, measured
from offstage.host.transformer.tiered import TieredAttention
from offstage.testbeds.capture.model import Loaded
from offstage.testbeds.live.model.fit import (
    Quantizers,
    bits_of,
    fitted,
    model_identity,
    pool_sizes,
    quantizers_of,
    value_type,
)
from offstage.testbeds.live.model.kept_prefill import prefill_once
from offstage.testbeds.live.model.options import KvType, ModelOptions
from offstage.testbeds.live.model.states import ContextStates, in_pieces, keeps_states
from offstage.testbeds.live.model_results import (
    KvStored,
    ModelMachine,
    ModelPass,
    ModelSummary,
    StatesKept,
    TextWorkload,
    TierUsed,
)
from offstage.testbeds.machine import machine
from offstage.testbeds.progress import Progress

__all__ = ["TextRun"]


class TextRun:
    """One model and one text, at one daemon after another."""

    def __init__(
        self,
        options: ModelOptions,
        loaded: Loaded,
        weights: Weights,
        block_tokens: int,
        progress: Progress,
    ) -> None:
        """Raises BadInput for a model that the kernel cannot compute."""
        self.options, self.loaded, self.weights = options, loaded, weights
        kept = keeps_states(loaded.shape, options)
        if kept:
            self.options = in_pieces(options, block_tokens)
        self.progress, self.arrays = progress, options.arrays()
        own = self.geometry = kv_geometry(
            loaded.shape.name, loaded.model.config, block_tokens, value_type(loaded)
        )
        if options.index_keys == "tier":
            self.geometry = with_index_blocks(own)
        HbmPool(self.geometry, 1, self.arrays).blocks()  # refuses what the library cannot hold
        sinks = sink_logits_of(loaded.model)
        self.sink_logits = {own.parts[one][0]: sinks[one] for one in sinks}
        self.kv = self._whole = DenseKv(loaded.model, own)
        self.states = ContextStates(self.options, self._whole, progress) if kept else None
        self.tokens: list[int] = []
        self._read: list[int] = []  # by `_whole`: the tokens, and those of longer contexts
        self._held: tuple[KvType, int] = "model", 0
        self.context: Context
        self.selector = ""
        self.blocks_written = 0
        self.link: Endpoint
        self.control: Control
        self.fabric: Fabric
        self.tier: TierUsed
        self.record = AgentRecord()
        """Of the selection decoded last."""
        self.quantizer: Quantizer | None = None
        self._alone: Quantizers = {}  # each in the smallest blocks
        self.choice: Choice | None = None

    def attach(self, link: Endpoint, control: Control, fabric: Fabric) -> None:
        """Use this daemon from now on. Raises BadInput where its blocks are not the model's."""
        self._alone |= quantizers_of(self.options.kv_dtypes, self.geometry, control)
        self.link, self.control, self.fabric = link, control, fabric
        self.tier = TierUsed(fabric=link.fabric, storage=control.storage, policy=control.policy())

    def summary(
        self, passes: list[ModelPass], notes: list[Note], states: StatesKept | None = None
    ) -> ModelSummary:
        """The results of `passes`. `states`: of all sessions."""
        options, geometry = self.options, self.geometry
        return ModelSummary(
            model=model_identity(options, self.loaded, self.weights, geometry),
            workload=TextWorkload(
                text=options.text.name,
                sessions=options.sessions,
                context_tokens=len(self._read),
                steps=options.steps,
                block_tokens=geometry.block_tokens,
                block_bytes=self.control.geometry.payload_size_bytes,
                selector=", ".join(dict.fromkeys(one.selector for one in passes)),
                kernel=options.kernel,
                device=options.device,
                sink_blocks=options.sink_blocks,
                window_blocks=options.window_blocks,
                generated=options.generate,
                ahead=options.ahead,
                index_keys=options.index_keys if self.loaded.shape.top_k else "",
                prefill_blocks_written=self.blocks_written,
            ),
            kv=[
                KvStored.of(
                    kind,
                    geometry,
                    self._alone[kind] if len(options.kv_dtypes) > 1 else self.quantizer,
                    self.choice if kind == "auto" else None,
                    options.max_kl,
                )
                for kind in options.kv_dtypes
            ],
            states=states,
            tier=self.tier,
            dense_perplexity=passes[0].dense_perplexity,
            passes=passes,
            notes=list(dict.fromkeys(notes)),
            machine=ModelMachine(
                **msgspec.structs.asdict(machine()),
                torch=importlib.metadata.version("torch"),
                transformers=importlib.metadata.version("transformers"),
            ),
            command=options.command,
            version=offstage.__version__,
        )

    @property
    def kv_type(self) -> KvType:
        """Of the context that is held."""
        return self._held[0]

    @property
    def length(self) -> int:
        """Tokens of the session when the last one is decoded."""
        return len(self.tokens) + self.options.steps

    @property
    def room(self) -> int:
        """Blocks of a layer by then."""
        return self.geometry.block_count(self.length)

    @property
    def blocks_read(self) -> int:
        """Blocks of all layers that hold what attention can read by then, and index keys."""
        held = self.source.geometry
        index = (n for n, one in enumerate(held.layers) if one.form == "index")
        keys = sum(held.block_count(self.length, one) for one in index)
        return held.blocks_read(self.length) + keys

    def prefill(self, tokens: list[int], *, keep: bool = False) -> None:
        """Read the longest context, and hold all of it in the first type. `keep`: from the user's
        cache, and into it."""
        kv, piece = self._whole, self.options.prefill_piece
        self.tokens = self._read = tokens
        self.progress.start("prefill", len(tokens), "tokens")
        self._bits, size = self._bits_of(None), self.geometry.block_tokens
        last = len(tokens) // size - 1
        if self.states is not None:
            names = [self._name_of([], ordinal) for ordinal in range(last + 1)]
            tier = self.link, self.control, self.fabric, self.geometry
            self.states.read(tokens, *tier, names, self._states_key)
        elif keep:
            prefill_once(kv, f"{self._name_of([], last):032x}", tokens, piece, self.progress)
        else:
            kv.prefill(tokens, piece, self.progress.advance)
        if self.options.max_kl is not None:
            self._choose(self.options.max_kl)
        self.hold(self.options.kv_dtypes[0], len(tokens))

    def hold(self, kind: KvType, context_tokens: int) -> None:
        """A context of this many tokens, in this type, from now on: writes what the tier lacks."""
        if (kind, context_tokens) == self._held:
            return
        self._held = kind, context_tokens
        geometry, pad = self.geometry, kind == "auto" or len(self.options.kv_dtypes) > 1
        if context_tokens != len(self.tokens):
            self.tokens = self._read[:context_tokens]
            whole = context_tokens == len(self._read)
            front = self._whole.front if self.states is None else self.states.front
            self.kv = self._whole if whole else front(context_tokens)
        self.quantizer = fitted(geometry, self._alone[kind], self.control, pad=pad)
        self._bits = self._bits_of(self.quantizer)
        geometry = self.source.geometry
        ordinals = range(context_tokens // geometry.block_tokens)
        identities = [self._name_of([], ordinal) for ordinal in ordinals]
        handle = self.control.session_open(select_blocks=1)
        appended = append_chunks(self.control, handle, identities, geometry.layer_count)
        layers = range(geometry.layer_count)
        kept_from = [geometry.first_block(layer, context_tokens + 1) for layer in layers]
        spans = [geometry.chunks_per_block(layer) for layer in layers]
        write = MissingWriter(self.fabric, handle, appended.stored_layers, kept_from, spans)
        blocks = sum(len(identities) // span for span in spans)
        self.progress.start("write to the tier", blocks, "blocks")

        def written(layer: int, first: int, blocks: NDArray[np.uint8]) -> None:
            write(layer, first, blocks)
            self.progress.advance(len(blocks))

        self.select_by(self.options.selectors[0], identities, written)
        self.control.session_close(handle, keep=True)
        self.blocks_written += write.blocks_written

    def select_by(
        self, name: str, identities: list[int] | None = None, written: BlockWriter | None = None
    ) -> None:
        """Score blocks by this selector from now on. `identities`: of a new context, whose blocks
        `written` takes."""
        if identities is None and name == self.selector:
            return
        make = selectors_of(self.options.kernel, self.options.device)
        known = self.context.identities if identities is None else identities
        self.context = compute_context(self.source, known, name, written, make)
        self.selector = name

    def _choose(self, max_kl: float) -> None:
        """Types of the KV heads, by measurement, and a quantizer that fits the daemon."""
        layers, heads = self.geometry.layer_count, self.geometry.layers[0].kv_heads
        self.progress.start("measure KV types", layers * heads, "heads")
        probe = Probe(self._whole, self._read)
        effects = measured(probe, self.progress.advance)
        self.choice = choose(probe, effects, max_kl, self.control.geometry.lba_size_bytes)
        self._alone["auto"] = self.choice.quantizer
        fitted(self.geometry, self.choice.quantizer, self.control, pad=True)

    def _bits_of(self, quantizer: Quantizer | None) -> str:
        return bits_of(self.options, self.loaded, self.weights, self.geometry, quantizer)

    @property
    def source(self) -> DenseKv | QuantizedKv | IndexedKv:
        """The context's blocks as the tier holds them."""
        quantizer = self.quantizer
        held = self.kv if quantizer is None else QuantizedKv(self.kv, quantizer)
        if self.options.index_keys == "resident":
            return held
        geometry = self.geometry if quantizer is None else quantizer.geometry
        return IndexedKv(held, self.kv, geometry, self.control.geometry.payload_size_bytes)

    def open_block(self, layer: int) -> NDArray[np.uint8]:
        """As `DenseKv.open_block`, of the tier's layers."""
        source = self.source
        return (source if isinstance(source, IndexedKv) else self.kv).open_block(layer)

    @property
    def _pool_arrays(self) -> Arrays:
        quantizer = self.quantizer
        return self.arrays if quantizer is None else QuantizedArrays(self.arrays, quantizer)

    def dense_text(self) -> str:
        """What the model writes after the context with its own dense attention, greedily."""
        self.progress.start("the same by dense attention", self.options.steps, "steps")
        found = self.kv.generate(self.chosen_token, self.options.steps, self.progress.advance)
        return str(self.loaded.tokenizer.decode(found))

    def decoded(
        self, chosen: int, following: list[int], pool: HbmPool, arm: str
    ) -> tuple[TieredAttention, NDArray[np.float32], list[int]]:
        """The attention that read from the tier, the logits after each token, `[steps,
        vocabulary]`, and the tokens: those of `following`, or the model's."""
        options = self.options
        rule = SelectionRule(self.selector, chosen, options.sink_blocks, options.window_blocks)
        decoder = Decoder(
            self.fabric, pool, self.source, rule, options.kernel, sink_logits=self.sink_logits
        )
        self.fabric.register(pool.memory.landing)
        grown: list[int] = []
        try:
            attention = TieredAttention(
                self.control,
                decoder,
                self.context,
                lambda ordinal: self.grown_name(grown, ordinal, chosen),
                options.time_per_token_s,
                self.quantizer,
                (self.control.geometry.slot_count, options.traffic),
                self.open_block,
            )
            attention.ahead = options.ahead
            foresight = Foresight(attention.told) if options.predict else None
            phase = f"{arm or 'decode'}, {chosen} of {self.room} blocks in each"
            self.progress.start(phase, options.steps, "steps")
            given = [] if options.generate else following[: options.steps + 1]
            begun = time.monotonic()
            logits = self._steps(attention, given, grown, foresight)
            attention.record.wall_s = time.monotonic() - begun
            return attention, logits, grown
        finally:
            self.fabric.unregister(pool.memory.landing)

    def pool(self, chosen: int, sessions: int) -> HbmPool:
        """The HBM pool for a selection of `chosen` blocks of each of some sessions."""
        geometry = self.source.geometry
        sizes = pool_sizes(self.options, geometry, chosen, self.length)
        return HbmPool(geometry, sessions * sizes[0], self._pool_arrays, sessions * sizes[1])

    def _steps(
        self,
        attention: TieredAttention | ResidentAttention,
        following: Sequence[int],
        grown: list[int],
        foresight: Foresight | None = None,
    ) -> NDArray[np.float32]:
        """Decode token by token into `grown`: the logits after each, `[steps, vocabulary]`.
        Without `following` the model chooses the tokens, except its end of text."""
        model, first = self.loaded.model, len(self.tokens)
        token = following[0] if following else self.chosen_token(self.kv.last_logits)
        found = np.empty((self.options.steps, self.loaded.shape.vocabulary_size), np.float32)
        in_tier = self.options.index_keys == "tier"
        keys, layers = going_on([self.kv], attention.index_keys if in_tier else None)
        with installed(model, attention, foresight, keys, layers) as decode:
            for step, row in enumerate(found):
                grown.append(token)
                attention.begin_token()
                row[:] = decode(token, first + step).cpu().numpy()
                attention.end_token()
                if following:
                    token = following[min(step + 1, len(following) - 1)]
                else:
                    token = self.chosen_token(row)
                self.progress.advance(1)
        attention.close()
        return found

    def chosen_token(self, logits: NDArray[np.float32]) -> int:
        """The likeliest token, `[vocabulary]`, except the end of text."""
        allowed = logits.copy()
        allowed[list(self.loaded.end_tokens)] = -np.inf
        return int(allowed.argmax())

    def bit_equal(self, logits: NDArray[np.float32], grown: Sequence[int]) -> bool:
        """Decode the same tokens with the same kernel, with all blocks in memory."""
        geometry = self.source.geometry
        attention = ResidentAttention(
            self._pool_arrays,
            self.options.kernel,
            geometry,
            lambda layer: self.source.blocks(layer, 0, self.context.names_of(geometry, layer)),
            self.length,
            self.quantizer,
            self.sink_logits,
            self.open_block,
        )
        self.progress.start("the same in memory", self.options.steps, "steps")
        return bool(np.array_equal(self._steps(attention, grown, []), logits))

    def _states_key(self, tokens: int) -> bytes:
        """Names the states of recurrent layers after so many tokens of the context."""
        last = tokens // self.geometry.block_tokens - 1
        return self._name_of([], last, "states").to_bytes(16, "little")

    def grown_name(self, grown: Sequence[int], ordinal: int, chosen: int, *more: object) -> int:
        """Names a block that decoding has filled, by a selection, kernel, and what `more` says."""
        kernel, length = self.options.kernel, len(self.tokens)
        return self._name_of(grown, ordinal, length, chosen, kernel, self.selector, *more)

    def _name_of(self, grown: Sequence[int], ordinal: int, *more: object) -> int:
        """Names the full block at an ordinal by everything that determines its bytes. The last
        piece of a prefill is shorter, and sums of other shapes round differently."""
        end, piece = (ordinal + 1) * self.geometry.block_tokens, self.options.prefill_piece
        tokens = np.array([*self.tokens, *grown][:end], np.int64).tobytes()
        behind = min(end, len(self.tokens))
        together = min(len(self._read), -(-behind // piece) * piece)
        text = json.dumps([self._bits, together, *more]).encode()
        digest = hashlib.blake2b(text + tokens, digest_size=16).digest()
        return int.from_bytes(digest, "little")
