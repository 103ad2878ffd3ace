"""A vLLM engine that takes requests as lines of JSON, in the environment that has vLLM.

`vllm_engine.py MODEL CONNECTOR MORE`: CONNECTOR is the KV transfer configuration or null, MORE has
further arguments of vLLM. A request has `prompts` (lists of tokens), `tokens` (how many to generate
for each) and optionally `params` (transfer parameters for all of them). The answer has those
tokens, how many of each prompt were not computed, and the seconds to each first token. Only lines
that begin with MARK are answers. A request may also have:

- `sampling`: further sampling parameters; the answer has `outputs`, the tokens of each of the
  answers to a prompt, and `logprobs`, how many tokens of each prompt have theirs
- `form`: a regular expression that every answer has
- `adapter`: name, number and path of a LoRA adapter for all its prompts
- `stop`: a daemon's process id; it is stopped when the next load that no step waits for begins, and
  the answer says in which order the prompts ended
- `abort`: as `stop`, but the client of the first prompt leaves then, and the daemon goes on; the
  answer is only how many of vLLM's blocks were free before, just after, and at the end
- `truncate`: a block of the first prompt, whose object (the last worker's) becomes one byte long
- `rot`: a block of the first prompt; the next load of its object fails
- `forget`: empty vLLM's own cache
- `read`: a block of the first prompt; the answer is only how a read of its object ends
- `metrics`, `decisions`: the answer is only this connector's counters in Prometheus and vLLM's of
  preemptions, or what was fetched or computed
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

MARK = "ENGINE "


def scheduler_side(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core.scheduler.connector


def object_of(llm: Any, place: int, tokens: list[int]) -> Any:
    """The object of a unit of these tokens, of the last worker, and of a group with a window where
    one has one."""
    from types import SimpleNamespace

    from offstage.host.connectors.vllm.keys import chain, salt_of

    plain, groups = SimpleNamespace(cache_salt=None, lora_request=None), scheduler_side(llm)._groups
    keys = chain(tokens, groups.unit, salt_of(plain))
    found, each = groups.objects(keys[place : place + 1]), list(groups)
    return ([one for one in found if each[one.group].window] or found)[-1]


def truncate(llm: Any, place: int, tokens: list[int]) -> None:
    client = scheduler_side(llm)._client
    [state] = client.wait(client.put, [object_of(llm, place, tokens).key], [bytes(1)]).states
    assert state.value == "done", state


def read(llm: Any, place: int, tokens: list[int]) -> str:
    client, one = scheduler_side(llm)._client, object_of(llm, place, tokens)
    [state] = client.wait(client.get, [one.key], [bytearray(one.size)]).states
    return str(state.value)


def metrics(llm: Any) -> dict[str, float]:
    found = {one.name: getattr(one, "value", 0) for one in llm.get_metrics()}
    ours = ("offstage", "preemptions")
    return {name: value for name, value in found.items() if value and any(o in name for o in ours)}


def rot(llm: Any, place: int, tokens: list[int]) -> None:
    """Let the next load of the block's object fail, although it is found."""
    client = worker_side()._client
    name, usual = client.name(object_of(llm, place, tokens).key), client.get

    def get(keys: list[bytes], buffers: Any, **more: Any) -> int:
        if name in map(client.name, keys):
            client.get = usual
            keys = [b"none" if client.name(key) == name else key for key in keys]
        return int(usual(keys, buffers, **more))

    client.get = get


def stop(pid: int) -> Callable[[], bool]:
    """Stop the daemon when the next load begins; the answer: whether it has."""
    client = worker_side()._client
    usual = client.get

    def get(*args: Any, **more: Any) -> int:
        client.get = usual
        os.kill(pid, signal.SIGSTOP)
        return int(usual(*args, **more))

    client.get = get
    return lambda: client.get is usual


def abort(llm: Any, pid: int, prompts: list[Any], sampling: Any) -> list[int]:
    """The client of the first prompt leaves while its KV is loaded; the others stay. How many
    blocks are free before, just after, and when all have ended."""
    engine = llm.llm_engine
    pool = engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
    free, begun = [pool.get_num_free_blocks()], stop(pid)
    for number in (1, 0):  # the other one runs, so that no step waits for the load
        engine.add_request(f"left{number}", prompts[number], sampling)
    while not begun():
        engine.step()
    engine.abort_request(["left0"])
    engine.step()
    free.append(pool.get_num_free_blocks())
    os.kill(pid, signal.SIGCONT)
    while engine.has_unfinished_requests():
        engine.step()
    llm.generate(prompts[1:], sampling, use_tqdm=False)
    return [*free, pool.get_num_free_blocks()]


def worker_side() -> Any:
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return get_kv_transfer_group()


def main() -> None:
    from vllm import LLM, SamplingParams, TokensPrompt
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import StructuredOutputsParams

    usual = {
        "enforce_eager": True,
        "max_model_len": 2048,
        "max_num_seqs": 4,
        "block_size": 32,
        "enable_prefix_caching": False,
        "disable_log_stats": False,
    }
    more = usual | json.loads(sys.argv[3])
    if "kv_events_config" in more:
        from vllm.config import KVEventsConfig

        more["kv_events_config"] = KVEventsConfig(**more["kv_events_config"])
    llm = LLM(model=sys.argv[1], kv_transfer_config=json.loads(sys.argv[2]), **more)
    print(MARK + "{}", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if "truncate" in asked:
            truncate(llm, asked["truncate"], asked["prompts"][0])
        if "rot" in asked:
            rot(llm, asked["rot"], asked["prompts"][0])
        if "stop" in asked:
            stop(asked["stop"])
        if "read" in asked:
            print(MARK + json.dumps(read(llm, asked["read"], asked["prompts"][0])), flush=True)
            continue
        if "forget" in asked:
            llm.reset_prefix_cache()
        if "metrics" in asked:
            print(MARK + json.dumps(metrics(llm)), flush=True)
            continue
        if "decisions" in asked:
            made = [vars(one) for one in scheduler_side(llm)._plans.choice.decisions]
            print(MARK + json.dumps(made), flush=True)
            continue
        prompts = [TokensPrompt(prompt_token_ids=one) for one in asked["prompts"]]
        sampling = SamplingParams(
            max_tokens=asked["tokens"],
            **({"temperature": 0} | asked.get("sampling", {})),
            extra_args={"kv_transfer_params": asked["params"]} if "params" in asked else None,
            structured_outputs=StructuredOutputsParams(regex=asked["form"])
            if "form" in asked
            else None,
        )
        if "abort" in asked:
            print(MARK + json.dumps(abort(llm, asked["abort"], prompts, sampling)), flush=True)
            continue
        adapter = LoRARequest(*asked["adapter"]) if "adapter" in asked else None
        ended = llm.generate(prompts, sampling, use_tqdm=False, lora_request=adapter)
        answer = {
            "tokens": [list(one.outputs[0].token_ids) for one in ended],
            "reused": [one.num_cached_tokens for one in ended],
            "first_s": [one.metrics.first_token_latency for one in ended],
        }
        if "sampling" in asked:
            answer["outputs"] = [[list(each.token_ids) for each in one.outputs] for one in ended]
            answer["logprobs"] = [len(one.prompt_logprobs or ()) for one in ended]
        if "stop" in asked:
            at = [one.metrics.last_token_ts for one in ended]
            answer["order"] = sorted(range(len(at)), key=at.__getitem__)
        print(MARK + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
