"""A vLLM engine that is asked by lines of JSON, in the environment that has vLLM.

`vllm_engine.py MODEL CONNECTOR`: the second is the KV transfer configuration, or nothing. A line
has `prompts`, lists of tokens, and `tokens`, how many are to follow each. The answer has those
tokens, and how many of each prompt were not computed. Only lines that begin with MARK are answers.

`truncate` makes the object of that block of the first prompt one byte long before. The answer to
`read` is how a read of such an object ends.
"""

import json
import sys
from typing import Any

MARK = "ENGINE "


def scheduler_side(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core.scheduler.connector


def key_of(llm: Any, place: int, tokens: list[int]) -> bytes:
    from types import SimpleNamespace

    from offstage.host.connectors.vllm import chain, salt_of

    plain = SimpleNamespace(cache_salt=None, lora_request=None)
    block_tokens = llm.llm_engine.vllm_config.cache_config.block_size
    return chain(tokens, block_tokens, salt_of(plain))[place]


def truncate(llm: Any, place: int, tokens: list[int]) -> None:
    client = scheduler_side(llm)._client
    [state] = client.wait(client.put, [key_of(llm, place, tokens)], [bytes(1)]).states
    assert state.value == "done", state


def read(llm: Any, place: int, tokens: list[int]) -> str:
    client, buffer = scheduler_side(llm)._client, bytearray(scheduler_side(llm)._plans._size)
    [state] = client.wait(client.get, [key_of(llm, place, tokens)], [buffer]).states
    return str(state.value)


def main() -> None:
    from vllm import LLM, SamplingParams, TokensPrompt

    config = json.loads(sys.argv[2]) if sys.argv[2:] else None
    llm = LLM(model=sys.argv[1], enforce_eager=True, max_model_len=2048, max_num_seqs=4,
              block_size=32, kv_transfer_config=config, enable_prefix_caching=False,
              disable_log_stats=True)  # fmt: skip
    print(MARK + "{}", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if "truncate" in asked:
            truncate(llm, asked["truncate"], asked["prompts"][0])
        if "read" in asked:
            print(MARK + json.dumps(read(llm, asked["read"], asked["prompts"][0])), flush=True)
            continue
        prompts = [TokensPrompt(prompt_token_ids=one) for one in asked["prompts"]]
        ended = llm.generate(
            prompts, SamplingParams(temperature=0, max_tokens=asked["tokens"]), use_tqdm=False
        )
        answer = {"tokens": [list(one.outputs[0].token_ids) for one in ended],
                  "reused": [one.num_cached_tokens for one in ended]}  # fmt: skip
        print(MARK + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
