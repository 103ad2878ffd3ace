"""Whether a model, its text and a daemon fit each other."""

from offstage.bindings.errors import BadInput
from offstage.host.link.control import Control
from offstage.host.model.geometry import KvGeometry
from offstage.testbeds.capture.model import Loaded
from offstage.testbeds.live.host_run import serve_with
from offstage.testbeds.live.model.options import ModelOptions

__all__ = ["check_fit", "context_tokens_of"]


def check_fit(geometry: KvGeometry, control: Control) -> None:
    """BadInput, naming both, if the daemon's blocks are not the model's."""
    theirs, payload = control.geometry, geometry.block_bytes(0)
    if (theirs.layer_count, theirs.payload_size_bytes) == (geometry.layer_count, payload):
        return
    raise BadInput(
        f"the model has {geometry.layer_count} layers and blocks of {payload:,} B for "
        f"{geometry.block_tokens} tokens of {geometry.value_type}, the daemon "
        f"{theirs.layer_count} layers and blocks of {theirs.payload_size_bytes:,} B",
        control.endpoint,
        serve_with(geometry.layer_count, payload, geometry.block_tokens, theirs.lba_size_bytes),
    )


def context_tokens_of(
    options: ModelOptions, loaded: Loaded, geometry: KvGeometry, text_tokens: int, control: Control
) -> int:
    """The context's length in tokens: as given, or as much as the text, the model and the daemon
    allow."""
    size, shape = geometry.block_tokens, loaded.shape
    behind = 0 if options.generate else options.steps + 1
    daemon_tokens = control.limits.session_chunk_max * size
    bounds = {
        "the text": (text_tokens - behind, "give a longer --text, or fewer of them"),
        "the model": (shape.tokens_max - options.steps, "give fewer"),
        "the daemon": (daemon_tokens - options.steps, "raise [limits] context_tokens there"),
    }
    if shape.window_tokens is not None:
        bounds["its sliding window"] = (
            shape.window_tokens - options.steps,
            "give fewer, or a model without a window",
        )
    least = min(bound for bound, _ in bounds.values()) // size * size
    chosen = options.context_tokens or least
    for name, (bound, fix) in bounds.items():
        if max(chosen, size) > bound:
            raise BadInput(
                f"{max(chosen, size):,} tokens of context and {options.steps:,} steps are more "
                f"than {name} has room for: {max(bound, 0):,} of context",
                options.where,
                fix,
            )
    if chosen % size:
        raise BadInput(
            f"--context-tokens {chosen}", options.where, f"give a multiple of {size}, a block"
        )
    return chosen
