"""The ratios and rates of `offstage bench codec` as `asic_model/codec/measured.toml` has them."""

from collections.abc import Iterator

from offstage.testbeds.bench.codec import CodecResult

__all__ = ["table_text"]

HEAD = """\
# What the codec makes of KV: `offstage bench codec --model M --text T --table FILE` wrote this.
# A ratio is coded size over size: the mean of all layers, with the least and the most, and each.
# `heads`: by layer, of each KV head coded by itself.
# Rates are bytes of KV a second on one core of the machine named below.
"""


def table_text(result: CodecResult) -> str:
    """The file: origins of KV, a ratio for each origin, dtype and half, a rate for each dtype."""
    lines = [HEAD]
    for source in result.sources:
        lines.append("[[origin]]")
        lines += [f"{key} = {_value(value)}" for key, value in source.items()]
        lines.append("")
    for row in _ratios(result):
        lines.append("[[ratio]]")
        lines += [f"{key} = {_value(value)}" for key, value in row.items()]
        lines.append("")
    for rate in result.rates:
        lines.append("[[rate]]")
        shown: dict[str, object] = {
            "dtype": rate.dtype,
            "origin": rate.source,
            "encode_mb_per_s": round(rate.encode_bytes_per_s / 1e6),
            "decode_mb_per_s": round(rate.decode_bytes_per_s / 1e6),
            "memcpy_mb_per_s": round(rate.memcpy_bytes_per_s / 1e6),
            "tag": "measured",
            "source": f"offstage bench codec, {result.machine.processor}",
        }
        lines += [f"{key} = {_value(value)}" for key, value in shown.items()]
        lines.append("")
    return "\n".join(lines)


def _ratios(result: CodecResult) -> Iterator[dict[str, object]]:
    groups: dict[tuple[str, str, str], list[float]] = {}
    heads: dict[tuple[str, str, str], list[list[float]]] = {}
    for row in result.ratios:
        key = (row.source, row.dtype, row.half)
        groups.setdefault(key, []).append(round(row.ratio, 4))
        heads.setdefault(key, []).append([round(one, 4) for one in row.heads])
    for (origin, dtype, half), layers in groups.items():
        yield {
            "origin": origin,
            "form": "gqa",
            "dtype": dtype,
            "half": half,
            "value": round(sum(layers) / len(layers), 4),
            "unit": "1",
            "low": min(layers),
            "high": max(layers),
            "tag": "measured",
            "source": "offstage bench codec",
            "layers": layers,
            "heads": heads[origin, dtype, half],
        }


def _value(value: object) -> str:
    """TOML of a text, number or list."""
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return repr(value)
