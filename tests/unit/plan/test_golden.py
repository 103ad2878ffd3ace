"""Do the formulas give the known figures of the field, each within half a percent?

The figures were worked out by hand from published shapes, prices and rates, and appear in pages and
talks; where those differ, docs/understanding-published-figures.md has both.
"""

from dataclasses import replace

import pytest

from offstage.bindings import tradeoffs as at
from offstage.host.model.geometry import KvGeometry
from offstage.host.model.models import geometry
from offstage.testbeds.plan.inputs import gather
from offstage.testbeds.plan.kv import session_bytes, token_bytes
from offstage.testbeds.plan.question import Question, read_spec
from offstage.testbeds.plan.rules import figures
from offstage.testbeds.plan.sizing import Place
from offstage.testbeds.prices import catalog

K, M = 1 << 10, 1 << 20
GIB = 2.0**30
LLAMA_70B = 327_680


def near(value: float, rel: float = 0.005) -> object:
    """Match within half a percent by default."""
    return pytest.approx(value, rel=rel)


def gib(model: str, tokens: int) -> float:
    return session_bytes(geometry(model), "fp16", tokens).value / GIB


def per_token(model: str) -> float:
    return token_bytes(geometry(model), "fp16").value


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("llama-3-70b", LLAMA_70B),
        ("qwen2.5-72b", 327_680),
        ("llama-3-8b", 131_072),
        ("llama-3.1-405b", 516_096),
        ("llama-2-7b", 524_288),
    ],
)
def test_1_bytes_of_a_token_with_grouped_heads(model: str, expected: int) -> None:
    """2 planes x layers x KV heads x head size x 2 B, to the byte."""
    assert per_token(model) == expected == geometry(model).bytes_per_token()


def all_heads(shape: KvGeometry) -> KvGeometry:
    layers = tuple(replace(layer, kv_heads=shape.q_heads) for layer in shape.layers)
    return replace(shape, layers=layers)


def test_1_bytes_of_a_token_if_every_head_had_its_own() -> None:
    """A 70B model without grouping takes 8 times as much, to the byte."""
    assert token_bytes(all_heads(geometry("llama-3-70b")), "fp16").value == 2_621_440


def test_2_bytes_of_a_latent() -> None:
    """It takes 61 x 1,152 B; index keys add 256 B a layer."""
    assert per_token("deepseek-v3") == 70_272
    assert per_token("deepseek-v3.2") == 85_888


def test_3_a_hybrid_of_two_compressions() -> None:
    """30 layers at ratio 4, 31 at 128, and windows that do not grow; published are 9.62 and 1.20
    GiB, a state of 17.84 MiB beside them, and 83.88 GiB for the model before it. A plan counts the
    state, since a session that comes back needs it."""
    assert per_token("deepseek-v4-pro") == 9_848
    assert per_token("deepseek-v4-pro") * M / GIB == near(9.617)
    state = geometry("deepseek-v4-pro").state_bytes / GIB
    assert state * 1024 == near(17.84)
    assert gib("deepseek-v4-pro", M) - state == near(9.617 + 0.007)
    assert gib("deepseek-v4-pro", 128 * K) - state == near(1.20, rel=0.01)
    assert gib("deepseek-v3.2", M) == near(83.88)


def test_4_the_same_in_8_and_4_bits() -> None:
    """Published are 4.8 GiB; values alone take less, rows with scales more."""
    number = token_bytes(geometry("deepseek-v4-pro"), "fp8")
    assert number.low * M / GIB == near(4.34)
    assert number.high * M / GIB == near(4.91)
    assert number.value * M / GIB == near(4.8, rel=0.05)


@pytest.mark.parametrize(
    ("model", "tokens", "gigabytes"),
    [
        ("llama-3-70b", 128 * K, 42.95),
        ("llama-3-70b", M, 343.6),
        ("llama-3-70b", 100_000, 32.8),
        ("llama-3-70b", 16 * K, 5.37),
        ("deepseek-v3", M, 73.7),
    ],
)
def test_5_bytes_of_a_context(model: str, tokens: int, gigabytes: float) -> None:
    assert at.capacity_bytes(1, tokens, per_token(model)) / 1e9 == near(gigabytes)


def test_5_one_context_in_both_units() -> None:
    """40.0 GiB equal 42.95 GB, and 320 GiB equal 343.6 GB."""
    assert gib("llama-3-70b", 128 * K) == 40.0
    assert gib("llama-3-70b", M) == 320.0


@pytest.mark.parametrize(
    ("model", "users", "tokens", "terabytes"),
    [
        ("llama-3-70b", 100, M, 34.4),
        ("llama-3-70b", 100, 128 * K, 4.29),
        ("llama-3-70b", 100, 32 * K, 1.07),
        ("llama-3-8b", 100, 32 * K, 0.429),
    ],
)
def test_6_bytes_of_users(model: str, users: int, tokens: int, terabytes: float) -> None:
    found = at.capacity_bytes(users, tokens, per_token(model)) / 1e12
    assert found == near(terabytes)


@pytest.mark.parametrize(
    ("weights", "b", "tokens", "sessions"),
    [
        (70e9, LLAMA_70B, 106.8e3, {8 * K: 14, 32 * K: 4, 128 * K: 1}),
        (671e9, 70_272, 4.77e6, {32 * K: 146, 128 * K: 37}),
        (800e9, 9_848, 40.6e6, {32 * K: 1_240, 128 * K: 310}),
        (170e9, 328e3, 259e3, {32 * K: 8, 128 * K: 2}),
    ],
)
def test_7_where_kv_is_half_the_weights(
    weights: float, b: float, tokens: float, sessions: dict[int, int]
) -> None:
    assert at.tokens_of_share(weights, b) == near(tokens)
    assert {n: at.sessions_of_share(weights, b, n) for n in sessions} == sessions


def test_8_kv_over_weights() -> None:
    """A 70B model has weights in 8 bits and KV in 16."""
    shares = [
        LLAMA_70B * n / at.tokens_of_share(70e9, 1, 1.0)
        for n in (8 * K, 32 * K, 128 * K, 512 * K, M)
    ]
    assert [round(100 * share, 1) for share in shares] == [3.8, 15.3, 61.4, 245.4, 490.9]


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        (100, [333, 83, 41, 20, 10]),
        (108, [360, 90, 44, 22, 11]),
        (110, [366, 91, 45, 22, 11]),
    ],
)
def test_9_sessions_that_fit(memory: float, expected: list[int]) -> None:
    """DeepSeek-V4-Pro at 32K to 1M, from its published sizes, which are rounded to 0.01; the exact
    sizes agree within one session in a hundred."""
    published = (0.30, 1.20, 2.41, 4.81, 9.62)
    assert [at.concurrency(memory, size) for size in published] == expected
    contexts = (32 * K, 128 * K, 256 * K, 512 * K, M)
    exact = [at.concurrency(memory, per_token("deepseek-v4-pro") * n / GIB) for n in contexts]
    assert exact == near_all(expected)


def near_all(values: list[int]) -> object:
    return pytest.approx(values, rel=0.0125)


def test_9_sessions_that_fit_in_8_bits() -> None:
    found = [at.concurrency(100, size) for size in (0.15, 0.60, 1.20, 2.41, 4.81)]
    assert found == [666, 166, 83, 41, 20]


def test_10_savings_on_top_of_each_other() -> None:
    """A hybrid, 8 bits and a shared prefix of 85 % each reduce a session of 170 GB; the prefix
    saves memory only if live requests share one physical copy."""
    assert at.private_bytes(4.8, 0.85) == near(0.72)
    sizes = [9.62, 4.8, at.private_bytes(4.8, 0.85)]
    assert [at.users_fed(170, size) for size in sizes] == [near(17.7), near(35.4), near(236)]
    assert at.concurrency(110_000, 0.7) == near(157_143)


def test_11_build_or_api() -> None:
    """$1.17M a month breaks even with $0.87 a million tokens at trillions of them, not billions."""
    tokens = at.break_even_tokens(1.17e6, 0.87)
    assert tokens == near(1.345e12)
    assert tokens / 30 == near(44.8e9)
    assert tokens / 30 / 10_000 == near(4.48e6)
    assert 1.17e6 / at.HOURS_PER_MONTH == near(1_603)


def test_12_fetching_beats_waiting_for_decode() -> None:
    """One drive fetches 4,096 tokens of a 70B model faster than they are decoded."""
    size = at.capacity_bytes(1, 4_096, LLAMA_70B)
    fetch_s = at.fetch_s(4_096, LLAMA_70B, 14e9)
    decode_s = [at.prefill_s(4_096, 1 / pace_s) for pace_s in (0.010, 0.030)]
    assert size / 1e9 == near(1.342)
    assert fetch_s == near(95.9e-3)
    assert decode_s == [near(41), near(123)]
    assert [one / fetch_s for one in decode_s] == [near(427), near(1_282)]


@pytest.mark.parametrize(
    ("hit", "microseconds"), [(0.90, 10.1), (0.95, 5.1), (0.99, 1.10), (0.999, 0.20)]
)
def test_13_what_a_hit_rate_leaves_of_a_miss(hit: float, microseconds: float) -> None:
    """0.1 us a hit, 100 us a miss: even 99 % takes ten times a hit."""
    assert at.effective_s(hit, 0.1e-6, 100e-6) == near(microseconds * 1e-6)


def test_14_a_session_moves() -> None:
    """4.8 GB move at 400 and at 800 Gb/s."""
    assert [at.transfer_s(4.8e9, rate) for rate in (50e9, 100e9)] == [near(96e-3), near(48e-3)]


def test_15_what_a_storage_node_feeds() -> None:
    """180 nodes with two links of 200 Gb/s each deliver 6.6 TiB/s."""
    node = 6.6 * 2**40 / 180
    assert node == near(40.3e9)
    assert node / 50e9 == near(0.81)
    assert 40 * GIB / 50e9 == near(0.86)
    fed = [at.users_fed(180 * node, each) for each in (3e9, 1e9)]
    assert fed == [near(2.4e3, rel=0.01), near(7.3e3, rel=0.01)]
    assert [round(at.users_fed(1_000 * each, node) + 0.5) for each in (1e9, 3e9)] == [25, 75]


def test_16_what_a_turn_finds() -> None:
    """A turn of 48.5K tokens is followed by one of 51.5K: by token, and by blocks of 512."""
    hits = [at.turn_hit_share(48_500, 51_500, block) for block in (1, 512, 1_000)]
    assert hits == [near(0.942), near(0.9345), near(0.932)]
    assert [51_500 * (1 - hit) for hit in (hits[0], hits[2])] == [near(3.0e3), near(3.5e3)]


@pytest.mark.parametrize(
    ("rate", "seconds"),
    [(0.25, 280), (0.5, 140), (1, 70), (14, 5.0), (40, 1.75), (320, 0.22)],
)
def test_17_a_cold_start(rate: float, seconds: float) -> None:
    """The weights are 70 GB."""
    assert at.transfer_s(70e9, rate * 1e9) == near(seconds, rel=0.006)


def test_18_what_memory_costs() -> None:
    """32 TB of HBM at $15 to 40 a GB, a TB in H100s, and flash at $0.3 to 0.5."""
    whole = at.LIFE_HOURS * 3_600
    assert at.hold_usd(32e12, 15, whole) == near(0.48e6)
    assert at.hold_usd(32e12, 40, whole) == near(1.28e6)
    assert at.users_fed(1e12, 80e9) == near(12.5)
    assert [at.hold_usd(1e12, p, whole) for p in (0.3, 0.5)] == [near(300), near(500)]


def test_19_ratios() -> None:
    """Ratios between forms of attention, sizes and links."""
    mla, gqa = 61 * 1_152, 61 * 4_096
    assert at.users_fed(mla, gqa) == near(0.281)
    seventy = geometry("llama-3-70b")
    assert per_token("llama-3-70b") / token_bytes(all_heads(seventy), "fp16").value == 0.125
    assert [at.users_fed(*pair) for pair in ((135, 8), (61, 11.7), (900, 128), (343, 9.62))] == [
        near(16.9),
        near(5.2),
        near(7.0),
        near(35.7),
    ]


def test_20_reads_a_second_of_a_sparse_model() -> None:
    """DeepSeek-V3.2 selects 2,048 of each of 61 layers: 144 MB a step, and where a fifth of it is
    read at 30 ms a token 0.83 million reads a second of one session. A drive of 3.3 million reads
    serves 4 sessions, one of 10 million 12, one of 100 million 120."""
    layers = geometry("deepseek-v3.2").layers
    selected = sum(layer.top_k for layer in layers)
    assert selected * 1_152 == near(144e6)
    asked = 0.2 * selected / 0.030
    assert asked == near(0.83e6)
    served = [at.users_fed(drive, asked) for drive in (3.3e6, 10e6, 100e6)]
    assert served == [near(4.0, rel=0.02), near(12.0), near(120.0)]


def test_21_drives_behind_a_dpu() -> None:
    """Four drives of 14 GB/s fill 400 Gb/s and eight 800: 3.6 and 7.1. Said to have 150 TB behind
    four DPUs, a box has 1.2 drives of 30.72 TB to each; 16 TB of each GPU are half a drive."""
    assert [at.users_fed(link, 14e9) for link in (50e9, 100e9)] == [near(3.57), near(7.14)]
    assert 150 / 4 / 30.72 == near(1.22)
    assert 1_152 / 72 / 30.72 == near(0.52)


def test_22_a_million_tokens_of_a_thousand_gpus() -> None:
    """$1.60 an hour each are $1.17M a month; at $0.87 a million tokens each GPU must decode 511 a
    second, day and night. A thousand H100 at $2.95 that do so take $1.60 a million."""
    month = 1_000 * 1.60 * at.HOURS_PER_MONTH
    assert month == near(1.17e6)
    each = at.break_even_tokens(month, 0.87) / (at.HOURS_PER_MONTH * 3_600 * 1_000)
    assert each == near(511)
    assert 1e6 * at.prefill_usd(1.0, 2.95, each) == near(1.60)


def test_23_reuse_that_pays_for_a_write() -> None:
    """A write of 70B's KV wears a drive by 29 % of prefilling it again, if flash wrote as for the
    random writes of its rating; by the modelled amplification of a store that leaves room it is
    3.6 %, and of a full one 16 %."""
    prefill = at.prefill_usd(1e6, 2.0, 2_500)
    numbers = {name: one.value for name, one in catalog().numbers("wear").items()}
    found = [
        at.least_reuse(at.write_usd(1e6 * LLAMA_70B * wears, 10_950, 56_064e12), 0.0, prefill)
        for wears in (1.0, numbers["roomy"] / numbers["rated"], numbers["full"] / numbers["rated"])
    ]
    assert found == [near(0.288), near(0.0356), near(0.164)]


def test_24_sessions_that_a_drive_and_a_core_carry() -> None:
    """One drive serves 46,233 reads of 256 KiB a second until tokens wait a fifth of their time. A
    token of 70B reads 186 and takes 40 ms of the GPU, 50 with the wait: 12.4 sessions. A core that
    takes 17.5 us for a layer of a token is full at 36."""
    numbers = {name: one.base for name, one in catalog().numbers("sparse").items()}
    assert numbers["carried"] / 262_144 == near(46_233) and 80 * numbers["missed"] == near(186)
    rate = (1 - numbers["waits"]) / 0.040
    assert rate == near(20)
    drive = at.users_fed(numbers["carried"], rate * 80 * numbers["missed"] * 262_144)
    assert drive == near(12.4) and at.users_fed(1 / numbers["core"], rate * 80) == near(35.7)
    values = gather(read_spec(None, {}), catalog()).values
    found = figures(Question(), geometry("llama-3-70b"), values, Place("dpu", gpus=8))
    assert found["sparse_drive"] == near(12.4) and found["sparse_core"] == near(35.7)
