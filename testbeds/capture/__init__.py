"""Block scores of a real model: taken from its attention, kept in one Parquet format.

`format` is what a file holds, `writer` and `reader` are its two ends; `model`, `attention`,
`scores` and `run` make one from a model's folder and a text.
"""
