"""Where to keep KV and what that costs: the formulas, each with its unit and its source.

Model: pure functions of plain numbers. Every part of Offstage may import this module, so that
`offstage plan`, the daemon and the connector use one formula. The unit ends a name: `_bytes`, `_s`,
`_bytes_per_s`, `_tokens`, dollars as `usd`; GB is 10^9 bytes. A purchase price is spread evenly
over the hours of use. Only counts are rounded.

The letters in the docstrings: b, KV bytes of one token; R, tokens prefilled per second; n, tokens
requested; p, price of a gigabyte. What can fail: nothing for numbers above 0, which the readers of
user input check; a ratio with divisor 0 is infinite.
"""

import math

__all__ = [
    "HOURS_PER_MONTH",
    "LIFE_HOURS",
    "break_even_s",
    "break_even_tokens",
    "capacity_bytes",
    "concurrency",
    "crossover_tokens",
    "cxl_break_even_s",
    "drive_writes_per_day",
    "effective_s",
    "fetch_s",
    "hold_limit_s",
    "hold_usd",
    "least_reuse",
    "life_years",
    "prefill_s",
    "prefill_usd",
    "private_bytes",
    "rate_to_fetch",
    "retention_s",
    "sessions_of_share",
    "tokens_of_share",
    "transfer_s",
    "turn_hit_share",
    "users_fed",
    "visible_s",
    "write_budget_bytes",
    "write_usd",
]

LIFE_HOURS = 26_280.0
"""Three years, over which what is bought is spread."""
HOURS_PER_MONTH = 730.0
DAY_S = 86_400.0
YEAR_DAYS = 365.0
GB = 1e9


def _over(part: float, whole: float) -> float:
    return part / whole if whole else math.inf


# How much.


def capacity_bytes(sessions: float, tokens: float, b: float, shared: float = 0.0) -> float:
    """Bytes of sessions of `tokens` each, of which the share `shared` is stored once for all."""
    return sessions * tokens * b * (1.0 - shared) + (tokens * b * shared if sessions else 0.0)


def private_bytes(kv_bytes: float, shared: float) -> float:
    """Bytes that one session alone has, where the share `shared` is physically one copy for all."""
    return kv_bytes * (1.0 - shared)


def concurrency(memory_bytes: float, session_bytes: float) -> int:
    """Sessions that fit whole; a session that fits in part does not run."""
    return math.floor(memory_bytes / session_bytes)


def tokens_of_share(weight_bytes: float, b: float, share: float = 0.5) -> float:
    """Tokens whose KV is that share of the weights: from there on KV decides about memory."""
    return share * weight_bytes / b


def sessions_of_share(weight_bytes: float, b: float, tokens: float, share: float = 0.5) -> int:
    """Sessions of `tokens` at which that point is reached."""
    return math.ceil(tokens_of_share(weight_bytes, b, share) / tokens)


def turn_hit_share(before_tokens: float, prompt_tokens: float, block_tokens: int = 1) -> float:
    """Share of a prompt that the turn before left behind: whole blocks of it only."""
    return before_tokens // block_tokens * block_tokens / prompt_tokens


# How long.


def transfer_s(size_bytes: float, rate_bytes_per_s: float) -> float:
    """Time on a link; also a cold start, where the bytes are a model's weights."""
    return _over(size_bytes, rate_bytes_per_s)


def fetch_s(
    tokens: float, b: float, rate_bytes_per_s: float, latency_s: float = 0.0, queued: float = 0.0
) -> float:
    """Time until the KV of n tokens is there: L0 + n b (1 + q) / rate. `queued`: as many reads of
    the same size stand before it."""
    return latency_s + transfer_s(tokens * b * (1.0 + queued), rate_bytes_per_s)


def prefill_s(
    tokens: float, tokens_per_s: float, queued: float = 0.0, wait_s: float = 0.0
) -> float:
    """Time until n tokens are prefilled: W + n (1 + q) / R."""
    return wait_s + _over(tokens * (1.0 + queued), tokens_per_s)


def effective_s(hit_rate: float, hit_s: float, miss_s: float) -> float:
    """Mean latency where a share of the accesses is a hit: h t_hit + (1 - h) t_miss."""
    return hit_rate * hit_s + (1.0 - hit_rate) * miss_s


def visible_s(transfer_time_s: float, compute_time_s: float, layers: int) -> float:
    """What of a transfer is seen where each layer leaves while the next is computed: the last
    layer's, or what is longer than the computing. max(Tx / L, Tx - Tp (L - 1) / L)."""
    return max(transfer_time_s / layers, transfer_time_s - compute_time_s * (layers - 1) / layers)


def users_fed(rate_bytes_per_s: float, each_bytes_per_s: float) -> float:
    """GPUs, or readers, that one source serves at their rate."""
    return _over(rate_bytes_per_s, each_bytes_per_s)


# Recompute or fetch.


def rate_to_fetch(
    b: float, tokens_per_s: float, queued: float = 0.0, gpu_queued: float = 0.0
) -> float:
    """Bytes per second above which a long prefix is fetched rather than prefilled: R b (1 + q of
    the drive) / (1 + q of the GPU)."""
    return tokens_per_s * b * (1.0 + queued) / (1.0 + gpu_queued)


def crossover_tokens(
    b: float,
    rate_bytes_per_s: float,
    latency_s: float,
    tokens_per_s: float,
    queued: float = 0.0,
    gpu_queued: float = 0.0,
) -> float:
    """Prefixes longer than this are fetched: L0 / ((1 + q of the GPU) / R - b (1 + q of the drive)
    / rate); infinite where the drive is slower than the GPU at any length."""
    gain_s = (1.0 + gpu_queued) / tokens_per_s - b * (1.0 + queued) / rate_bytes_per_s
    return latency_s / gain_s if gain_s > 0 else math.inf


# What it costs.


def prefill_usd(tokens: float, gpu_usd_per_hour: float, tokens_per_s: float) -> float:
    """Dollars of GPU time for prefilling n tokens: n c / (3600 R), R of one GPU."""
    return tokens * gpu_usd_per_hour / (3_600.0 * tokens_per_s)


def hold_usd(
    size_bytes: float, usd_per_gb: float, seconds: float, life_hours: float = LIFE_HOURS
) -> float:
    """Dollars for keeping bytes that long in what was bought for `life_hours`."""
    return size_bytes / GB * usd_per_gb / life_hours * seconds / 3_600.0


def hold_limit_s(
    b: float,
    usd_per_gb: float,
    prefill_usd_per_token: float,
    move_usd_per_token: float = 0.0,
    life_hours: float = LIFE_HOURS,
) -> float:
    """Keep or drop: a token that is requested again sooner is kept, else dropped. (c_prefill -
    c_fetch - c_write) / rent of its bytes."""
    saved = prefill_usd_per_token - move_usd_per_token
    return max(saved, 0.0) / hold_usd(b, usd_per_gb, 1.0, life_hours)


def break_even_s(
    block_bytes: float,
    drive_usd: float,
    drive_bytes_per_s: float,
    drive_iops: float,
    usd_per_gb: float,
) -> float:
    """Five-minute rule: what is requested again sooner belongs in the memory above. The drive's
    time for one access, max(B / rate, 1 / IOPS), at the drive's price, against the price of B bytes
    of the memory; both are spread over the same life, which cancels. Gray and Putzolu, SIGMOD
    1987."""
    busy_s = max(block_bytes / drive_bytes_per_s, 1.0 / drive_iops)
    return drive_usd * busy_s / (block_bytes / GB * usd_per_gb)


def cxl_break_even_s(
    block_bytes: float,
    drive_usd: float,
    drive_bytes_per_s: float,
    drive_iops: float,
    usd_per_gb: float,
    hosts: float = 1.0,
) -> float:
    """CXL or NVMe: as `break_even_s`, where `hosts` share one copy in CXL memory and its price."""
    return hosts * break_even_s(block_bytes, drive_usd, drive_bytes_per_s, drive_iops, usd_per_gb)


def break_even_tokens(usd_per_month: float, api_usd_per_mtok: float) -> float:
    """Build or API: tokens a month at which a machine of that price costs what the API does."""
    return usd_per_month / api_usd_per_mtok * 1e6


# Wear.


def write_usd(size_bytes: float, drive_usd: float, endurance_bytes: float) -> float:
    """Dollars of drive wear for writing these bytes: price / TBW."""
    return size_bytes * drive_usd / endurance_bytes


def least_reuse(
    write_usd_each: float, rent_usd: float, prefill_usd_each: float, fetch_usd: float = 0.0
) -> float:
    """Admission by wear: write what is requested again with at least this probability. (c_write +
    rent) / (c_prefill - c_fetch); above 1, nothing is worth writing."""
    return _over(write_usd_each + rent_usd, max(prefill_usd_each - fetch_usd, 0.0))


def drive_writes_per_day(
    bytes_per_s: float, capacity: float, amplification: float = 1.0, admitted: float = 1.0
) -> float:
    """DWPD: how often a day the whole capacity is written."""
    return bytes_per_s * DAY_S * amplification * admitted / capacity


def write_budget_bytes(endurance_bytes: float, years: float) -> float:
    """Bytes a day that use up the endurance in these years: `life_years` solved for the rate."""
    return _over(endurance_bytes, years * YEAR_DAYS)


def life_years(endurance_bytes: float, bytes_per_s: float, amplification: float = 1.0) -> float:
    """Years until the written bytes are used up."""
    return _over(endurance_bytes, bytes_per_s * amplification * DAY_S * YEAR_DAYS)


def retention_s(capacity: float, bytes_per_s: float) -> float:
    """How long a block stays at the given write rate when the oldest blocks are evicted."""
    return _over(capacity, bytes_per_s)
