"""A Hugging Face model with its KV in the tier: prefill, decode steps, predicted queries.

The model runs transformers' code with its own weights; only the attention of a decode step is
ours (`attention`). A layer's query exists once the previous layer has run, so a step fetches from
the tier layer by layer (`tiered`). `resident` runs the same kernel over the same blocks in memory,
as a reference. What a model's compressors keep stays with its session (`compressed`). The tier may
hold KV in fewer bits (`quantized`); which ones a model's heads bear is measured (`sensitivity`).
torch and transformers are imported where they are used.
"""
