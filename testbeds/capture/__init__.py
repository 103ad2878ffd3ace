"""Block scores of a real model, taken from its attention and stored in one Parquet format.

`format` defines a file's content, `writer` and `reader` write and read it; `model`, `attention`,
`scores` and `run` make one from a model's folder and a text.
"""
