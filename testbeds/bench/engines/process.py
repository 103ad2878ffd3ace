"""A vLLM engine driven by lines of JSON; the only module that loads vLLM for a bench.

`python -m ... MODEL CONNECTOR ARGUMENTS`, the last two as JSON: the KV transfer configuration or
null, and vLLM's arguments. A line in is `{"id", "prompt", "outputs"}`, optionally with `salt`,
vLLM's `cache_salt`, `params`, transfer parameters, and `hints`, actions of vLLM's `kv_hints` by
name; `{"forget": 1}`, which empties vLLM's own cache; or `{"told": 1}`, which requests counters and
decisions. `{"hint", "held", "in_s"}` is a router's: a prompt, of whose tokens the engine holds the
first, and in how many seconds it is needed; it waits for no step and has no answer. A line out is
`{"id", "first_s", "reused", "tokens"}`, times of the machine's monotonic clock; only lines that
begin with MARK are answers. It exits at the end of its input.
"""

import json
import queue
import sys
import threading
import time
from typing import Any

import msgspec

MARK = "ENGINE "
IDLE_S = 0.0005


class Asked(msgspec.Struct, frozen=True):
    """A line in."""

    id: int = 0
    prompt: list[int] = []
    outputs: int = 0
    salt: str | None = None
    params: dict[str, Any] | None = None
    hints: dict[str, Any] | None = None
    hint: list[int] | None = None
    held: int = 0
    in_s: float = 0.0
    forget: int = 0
    told: int = 0


class Counted(msgspec.Struct, frozen=True):
    """The answer to `told`."""

    counters: dict[str, float]
    decisions: list[Any]


def say(value: Any) -> None:
    print(MARK + msgspec.json.encode(value).decode(), flush=True)


def read(llm: Any, lines: "queue.Queue[Asked | None]") -> None:
    plans = plans_of(llm)
    for line in sys.stdin:
        asked = msgspec.json.decode(line, type=Asked)
        if asked.hint is None:
            lines.put(asked)
        elif plans is not None:
            plans.hint(asked.hint, asked.held, asked.in_s)
    lines.put(None)


def plans_of(llm: Any) -> Any:
    connector = llm.llm_engine.engine_core.engine_core.scheduler.connector
    return getattr(connector, "_plans", None)


def counted(llm: Any) -> Counted:
    metrics = {one.name: getattr(one, "value", 0) for one in llm.get_metrics()}
    plans = plans_of(llm)
    decisions = [vars(one) for one in plans.choice.decisions] if plans is not None else []
    counters = {
        name.removeprefix("vllm:offstage_"): value
        for name, value in metrics.items()
        if "offstage" in name
    }
    return Counted(counters, decisions)


def begin(llm: Any, asked: Asked) -> None:
    from vllm import SamplingParams, TokensPrompt

    params = {"kv_transfer_params": asked.params} if asked.params else None
    sampling = SamplingParams(
        temperature=0, max_tokens=asked.outputs, ignore_eos=True, extra_args=params
    )
    prompt = TokensPrompt(prompt_token_ids=asked.prompt)
    if asked.salt:
        prompt["cache_salt"] = asked.salt
    more = {} if asked.hints is None else {"kv_hints": envelope(asked.hints)}
    llm.llm_engine.add_request(str(asked.id), prompt, sampling, **more)


def envelope(hints: dict[str, Any]) -> Any:
    from vllm.v1.kv_hints import KvHintAction, KvHintsEnvelope

    actions = [KvHintAction(name, name, "1", payload) for name, payload in hints.items()]
    return KvHintsEnvelope("1", "bench", actions)


def main() -> None:
    from vllm import LLM

    llm = LLM(
        model=sys.argv[1], kv_transfer_config=json.loads(sys.argv[2]), **json.loads(sys.argv[3])
    )
    lines: queue.Queue[Asked | None] = queue.Queue()
    threading.Thread(target=read, args=(llm, lines), daemon=True).start()
    first: dict[str, float] = {}
    say({"ready": 1})
    while True:
        idle = not llm.llm_engine.has_unfinished_requests()
        while not lines.empty() or idle:
            asked = lines.get()
            if asked is None:
                return
            idle = False
            if asked.forget:
                llm.reset_prefix_cache()
                say({"forgot": 1})
            elif asked.told:
                say(counted(llm))
            else:
                begin(llm, asked)
        if not llm.llm_engine.has_unfinished_requests():
            continue
        ended = llm.llm_engine.step()
        for one in ended:
            if one.outputs and one.outputs[0].token_ids:
                first.setdefault(one.request_id, time.monotonic())
            if one.finished:
                say(
                    {
                        "id": int(one.request_id.split("-")[0]),
                        "first_s": first.pop(one.request_id),
                        "reused": one.num_cached_tokens,
                        "tokens": list(one.outputs[0].token_ids),
                    }
                )
        if not ended:
            time.sleep(IDLE_S)


if __name__ == "__main__":
    main()
