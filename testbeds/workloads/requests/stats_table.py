"""The figures of a trace as a table for the terminal."""

from rich.table import Table

from offstage.testbeds.workloads.requests.stats import BlockInfo, Quantiles, SessionInfo, TraceInfo

__all__ = ["render"]

Row = tuple[str, str, str]


def render(info: TraceInfo) -> Table:
    """What, value and meaning, one figure a row; what the format does not have is left out."""
    table = Table(title=info.trace, title_justify="left", show_header=False)
    table.add_column("what", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("meaning", style="dim", overflow="fold")
    rows = [
        ("format", info.format, info.licence),
        ("requests", f"{info.request_count:,}", f"{info.tick_count:,} distinct arrival times"),
        ("duration", f"{info.duration_s:,.0f} s", "first to last arrival"),
        ("rate", f"{info.requests_per_s:,.2f} /s", f"{info.requests_per_s_max:,.2f} in a minute"),
    ]
    if info.blocks:
        rows += _block_rows(info.blocks)
    rows += [_spread("input", "tokens", info.input_tokens)]
    rows += [_spread("output", "tokens", info.output_tokens)]
    if info.blocks:
        rows += [_spread("reuse distance", "blocks", info.blocks.reuse_distance_blocks)]
        rows += [_spread("reuse time", "s", info.blocks.reuse_time_s)]
    if info.sessions:
        rows += _session_rows(info.sessions)
    rows += [("note", "", note) for note in info.notes]
    for row in rows:
        table.add_row(*row)
    return table


def _block_rows(info: BlockInfo) -> list[Row]:
    tokens = f"{info.block_tokens} tokens a block"
    share = f"{info.reused_block_fraction:.1%} of them used again"
    rows = [
        ("block accesses", f"{info.block_access_count:,}", tokens),
        ("unique blocks", f"{info.unique_block_count:,}", share),
        ("ideal hit rate, block", f"{info.ideal_block_hit_rate:.4f}", "endless cache"),
        ("ideal hit rate, prefix", f"{info.ideal_prefix_hit_rate:.4f}", "unbroken from the front"),
        ("ideal hit rate, token", f"{info.ideal_token_hit_rate:.4f}", "tokens of blocks seen"),
    ]
    for lru, opt in zip(info.lru, info.opt, strict=True):
        size = f"{lru.capacity_blocks:,} blocks; at best {opt.hit_rate:.4f} (OPT)"
        rows.append((f"LRU hit rate at {lru.fraction:.0%}", f"{lru.hit_rate:.4f}", size))
    return rows


def _session_rows(info: SessionInfo) -> list[Row]:
    rows = [
        ("sessions", f"{info.session_count:,}", ""),
        _spread("turns", "requests of a session", info.turns),
        _spread("gap", "s since the session's last request", info.gap_s),
    ]
    if info.think_s:
        rows.append(_spread("think time", "s, the client's part", info.think_s))
    return rows


def _spread(label: str, unit: str, values: Quantiles) -> Row:
    spread = f"{values.p50:,.0f} / {values.p90:,.0f} / {values.p99:,.0f}"
    return f"{label} p50/90/99", spread, f"{unit}; mean {values.mean:,.0f}"
