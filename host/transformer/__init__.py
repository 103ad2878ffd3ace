"""A Hugging Face model whose KV lives in the tier: prefill, decode steps, foretold queries.

The model is transformers' own, with its own weights and code; only what its attention does in a
decode step is ours (`attention`). A layer's query exists when the layer before has run, so a step
goes to the tier layer by layer (`tiered`); `resident` is the same kernel over the same blocks in
memory, to compare with. torch and transformers are imported where they are used.
"""
