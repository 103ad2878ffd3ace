"""Does the tenants' scheduler keep the guarantees of qos.h and decide like its plain model?"""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qos_model import PlainQos

from offstage.bindings.errors import BadInput
from offstage.bindings.qos import NO_SESSION, Item, Qos, QosConfig, Refusal, TenantShare
from offstage.testbeds.bench.qos import bench_qos, jain_index

QUANTUM = 4096
PS_PER_S = 10**12
SEEDS = st.integers(0, 2**32 - 1)


def random_tenants(draw: random.Random, count: int) -> list[TenantShare]:
    """Return tenants of weights 1 to 9; about half have limits that bite, a few have floors."""
    found = [
        TenantShare(draw.randint(1, 9))
        if draw.random() < 0.5
        else TenantShare(
            draw.randint(1, 9), draw.randint(300, 10**9), draw.randint(QUANTUM, 3 * QUANTUM)
        )
        for _ in range(count)
    ]
    for at in draw.sample(range(count), draw.choice([0, 1, min(count, 3)])):
        most = found[at].rate_bytes_per_s or 10**10
        found[at] = replace(found[at], floor_bytes_per_s=draw.randint(256, most))
    return found


def random_item(draw: random.Random, tag: int, busy: list[int], now_ps: int) -> Item:
    """Return an item of a busy tenant and one of its three sessions."""
    tenant = draw.choice(busy)
    return Item(
        tag,
        draw.randint(1, QUANTUM),
        tenant,
        3 * tenant + draw.randrange(3),
        max(now_ps + draw.randint(-(10**6), 10**8), 0),
    )


def change_terms(draw: random.Random, qos: Qos, plain: PlainQos, now_ps: int, tenant: int) -> None:
    """Hold the tenant, release it, or change its weight."""
    if draw.random() < 0.7:
        held = draw.random() < 0.5
        qos.hold(now_ps, tenant, held)
        plain.hold(now_ps, tenant, held)
        return
    weight = draw.randint(1, 9)
    qos.set(now_ps, tenant, replace(plain.tenants[tenant], weight=weight))
    plain.weigh(now_ps, tenant, weight)


@settings(max_examples=60)
@given(seed=SEEDS)
def test_it_decides_what_the_plain_model_decides(seed: int) -> None:
    """All answers agree: which item is taken, which is refused and why, and when the next is due.

    So the scheduler serves whenever a tenant is ready and loses nothing, as the model does.
    """
    draw = random.Random(seed)
    count = draw.choice([1, 2, 5, 70, 150])
    tenants = random_tenants(draw, count)
    rounds = draw.choice([0, QUANTUM, draw.randint(QUANTUM, 5 * QUANTUM)])
    config = QosConfig(QUANTUM, 3 * count, 8, draw.randint(1, 8), 5 * 10**7, rounds)
    qos, plain = Qos(config, tenants), PlainQos(config, tenants)
    busy = draw.sample(range(count), min(count, 8))
    now_ps = 0
    for tag in range(250):
        now_ps += draw.choice([0, 0, 1, draw.randrange(10**7)])
        if draw.random() < 0.55:
            item = random_item(draw, tag, busy, now_ps)
            assert qos.put(now_ps, item) == plain.put(now_ps, item)
        else:
            assert qos.take(now_ps) == plain.take(now_ps)
        if draw.random() < 0.1:
            change_terms(draw, qos, plain, now_ps, draw.choice(busy))
        next_ps = qos.next_ps()
        assert (None if next_ps is None else max(next_ps, now_ps)) == plain.next_ps(now_ps)
    for tenant in busy:
        qos.hold(now_ps, tenant, False)
        plain.hold(now_ps, tenant, False)
    while (next_ps := plain.next_ps(now_ps)) is not None:
        assert qos.take(next_ps - 1) is None if next_ps > now_ps else True
        now_ps = next_ps
        assert qos.take(now_ps) == plain.take(now_ps)
    assert qos.waiting == 0 and qos.next_ps() is None


@settings(max_examples=30)
@given(seed=SEEDS)
def test_bytes_are_as_weights_within_one_quantum(seed: int) -> None:
    """Over any interval, two tenants that always have work get bytes by weight.

    The allowance is one extra turn of either, and the rest of a turn: less than a quantum for each.
    """
    draw = random.Random(seed)
    tenants = [TenantShare(draw.randint(1, 9)) for _ in range(draw.randint(2, 6))]
    qos = Qos(QosConfig(QUANTUM, 1, 32, 32), tenants)
    largest = [draw.randint(1, QUANTUM) for _ in tenants]

    def refill(tenant: int) -> None:
        assert qos.put(0, Item(0, draw.randint(1, largest[tenant]), tenant)) is None

    for _ in range(4):
        for tenant in range(len(tenants)):
            refill(tenant)
    sums = [[0] * len(tenants)]
    for _ in range(400):
        item = qos.take(0)
        assert item is not None
        refill(item.tenant)
        sums.append(
            [each + item.cost_bytes * (one == item.tenant) for one, each in enumerate(sums[-1])]
        )
    for one, a in enumerate(tenants):
        for other, b in enumerate(tenants):
            apart = [each[one] / a.weight - each[other] / b.weight for each in sums]
            bound = QUANTUM * (1 + 1 / a.weight + 1 / b.weight)
            assert max(apart) - min(apart) <= bound


@settings(max_examples=30)
@given(seed=SEEDS)
def test_no_window_sees_more_than_burst_and_rate(seed: int) -> None:
    """The limit holds in every window from one taken item to another, with a taker always ready."""
    draw = random.Random(seed)
    share = TenantShare(1, draw.randint(300, 10**10), draw.randint(QUANTUM, 8 * QUANTUM))
    qos = Qos(QosConfig(QUANTUM, 1, 64, 64), [share, TenantShare(3)])
    taken: list[tuple[int, int]] = []
    now_ps = 0
    for tag in range(200):
        qos.put(now_ps, Item(tag, draw.randint(1, QUANTUM), draw.randrange(2)))
        now_ps = max(now_ps, qos.next_ps() or 0) + draw.choice([0, 0, draw.randrange(10**6)])
        item = qos.take(now_ps)
        if item is not None and item.tenant == 0:
            taken.append((now_ps, item.cost_bytes))
    assert len(taken) > 20
    for begin, (begin_ps, _) in enumerate(taken):
        window_bytes = 0
        for end_ps, cost_bytes in taken[begin:]:
            window_bytes += cost_bytes
            most = share.burst_bytes * PS_PER_S + share.rate_bytes_per_s * (end_ps - begin_ps)
            assert window_bytes * PS_PER_S <= most


@settings(max_examples=30)
@given(seed=SEEDS)
def test_a_floor_holds_in_every_window(seed: int) -> None:
    """A tenant with a floor below the line gets it in every window in which it waits, whatever the
    weights of the others, whether it is held, and whatever it got before; only its cap is above."""
    draw = random.Random(seed)
    line_ps = 1_000  # for one byte: a line of 10^9 bytes/s
    floor, held = draw.randint(10**6, 6 * 10**8), draw.random() < 0.5
    cap = draw.choice([0, 7 * 10**8])
    share = TenantShare(1, cap, QUANTUM if cap else 0, floor)
    qos = Qos(QosConfig(QUANTUM, 1, 64, 64), [TenantShare(draw.randint(1, 50)), share])
    qos.hold(0, 1, held)
    taken, now_ps = [(0, 0)], 0
    for _ in range(400):
        for tenant in (0, 1):
            while qos.put(now_ps, Item(0, draw.randint(1, QUANTUM), tenant)) is None:
                pass
        item = qos.take(now_ps)
        assert item is not None
        now_ps += line_ps * item.cost_bytes
        taken.append((now_ps, taken[-1][1] + (item.cost_bytes if item.tenant == 1 else 0)))
    for begin, (begin_ps, before) in enumerate(taken):
        for end_ps, after in taken[begin:]:
            owed = floor * (end_ps - begin_ps) // PS_PER_S
            assert after - before >= owed - 2 * QUANTUM
    assert qos.stats(1)["floor_bytes"] > 0 and qos.stats(0)["floor_bytes"] == 0


def test_time_without_anything_waiting_earns_no_floor() -> None:
    """After a second of nothing, a tenant with a floor is served one item first, and then by turns
    until its floor is due again."""
    share = TenantShare(1, floor_bytes_per_s=QUANTUM)  # one item a second
    qos = Qos(QosConfig(QUANTUM, 1, 64, 64, ahead_ps_max=PS_PER_S), [TenantShare(20), share])
    for tag in range(8):
        assert qos.put(5 * PS_PER_S, Item(tag, QUANTUM, tag % 2)) is None
    order = [one.tenant for _ in range(5) if (one := qos.take(5 * PS_PER_S)) is not None]
    assert order == [1, 0, 0, 0, 0]


@settings(max_examples=30)
@given(seed=SEEDS)
def test_nothing_overtakes_a_deadline_that_has_passed(seed: int) -> None:
    """An item goes before all items of its tenant that are put after its deadline."""
    draw = random.Random(seed)
    qos = Qos(QosConfig(QUANTUM, 1, 64, 64, ahead_ps_max=10**6), [TenantShare()])
    now_ps, order, served = 0, [], []
    for tag in range(150):
        now_ps += draw.randrange(20_000)
        deadline_ps = draw.choice([0, now_ps + draw.randrange(2 * 10**6)])
        item = Item(tag, draw.randint(1, QUANTUM), deadline_ps=deadline_ps)
        if qos.put(now_ps, item) is None:
            order.append((min(max(deadline_ps, now_ps), now_ps + 10**6), now_ps, tag))
        if draw.random() < 0.9 and (taken := qos.take(now_ps)) is not None:
            served.append(taken.tag)
    while (taken := qos.take(now_ps)) is not None:
        served.append(taken.tag)
    assert sorted(served) == [tag for _, _, tag in order]
    rank = {tag: number for number, tag in enumerate(served)}
    for deadline_ps, _, tag in order:
        for _, put_ps, other in order:
            assert put_ps <= deadline_ps or rank[tag] < rank[other]


def test_a_flood_of_one_session_shuts_out_no_other() -> None:
    """One session always fills all it can; another that submits now and then is never refused."""
    part, deadline_after_ps = 8, 50_000
    qos = Qos(QosConfig(QUANTUM, 2, 64, part), [TenantShare()])
    waits, refused = [], 0
    for tick in range(2_000):
        now_ps = 1_000 * tick
        while qos.put(now_ps, Item(0, QUANTUM, session=0)) is None:
            pass
        refused += 1
        if tick % 100 == 0:
            item = Item(tick, 1, session=1, deadline_ps=now_ps + deadline_after_ps)
            assert qos.put(now_ps, item) is None
        taken = qos.take(now_ps)
        assert taken is not None
        if taken.session == 1:
            waits.append(now_ps - taken.put_ps)
    # Past its deadline an item waits only for those before it, and those are bounded.
    assert len(waits) == 20 and max(waits) <= deadline_after_ps + 1_000 * part
    assert qos.stats(0)["refused_session"] == refused and qos.stats(0)["refused_full"] == 0


def test_counters() -> None:
    """All counters of one sequence equal those computed by hand."""
    share = TenantShare(1, 1_000_000_000, 1000)  # 1000 bytes take a microsecond
    qos = Qos(QosConfig(1000, 2, 3, 2), [share, TenantShare()])
    assert [qos.put(0, Item(tag, 1000)) for tag in range(3)] == [None, None, Refusal.SESSION_FULL]
    assert qos.put(0, Item(3, 600, session=1)) is None
    assert qos.put(0, Item(4, 600, session=1)) is Refusal.QUEUE_FULL
    assert qos.take(0) == Item(0, 1000) and qos.take(0) is None
    next_ps = qos.next_ps()
    assert next_ps is not None and 1_000_000 <= next_ps < 1_000_300  # the rate is rounded down
    assert qos.stats(0)["throttled_ps"] == 0
    assert qos.take(next_ps) == Item(1, 1000) and qos.take(next_ps + 10) is None
    stats = qos.stats(0)
    assert stats == {
        "put": 3,
        "taken": 2,
        "put_bytes": 2600,
        "taken_bytes": 2000,
        "refused_full": 1,
        "refused_session": 1,
        "throttled_ps": next_ps + 10,
        "wait_ps_sum": next_ps,
        "wait_ps_max": next_ps,
        "waiting": 1,
        "waiting_max": 3,
        "shared": 0,
        "floor_bytes": 0,
    }
    assert set(qos.stats(1).values()) == {0}
    qos.reset()
    assert set(qos.stats(0).values()) == {0} and qos.take(0) is None


@settings(max_examples=30)
@given(seed=SEEDS)
def test_sessions_of_a_tenant_get_alike(seed: int) -> None:
    """Over any interval, sessions that always have work get equal bytes, whatever their deadlines:
    each is at most a round and an item ahead of the start of the current round."""
    draw = random.Random(seed)
    count, round_bytes = draw.randint(2, 6), draw.randint(QUANTUM, 4 * QUANTUM)
    config = QosConfig(QUANTUM, count, 64, 64, session_quantum_bytes=round_bytes)
    qos = Qos(config, [TenantShare(3), TenantShare()])
    claims = [draw.choice([0, 10**9]) for _ in range(count)]  # always late, or never urgent
    largest = [draw.randint(1, QUANTUM) for _ in range(count)]

    def refill(session: int) -> None:
        item = Item(0, draw.randint(1, largest[session]), 0, session, claims[session])
        assert qos.put(0, item) is None

    for session in range(count):
        for _ in range(draw.randint(1, 8)):
            refill(session)
    sums = [[0] * count]
    for _ in range(400):
        item = qos.take(0)
        assert item is not None
        refill(item.session)
        sums.append(
            [each + item.cost_bytes * (one == item.session) for one, each in enumerate(sums[-1])]
        )
    for one in range(count):
        for other in range(one):
            apart = [each[one] - each[other] for each in sums]
            assert max(apart) - min(apart) <= 2 * (round_bytes + QUANTUM)


def test_urgency_decides_within_a_round() -> None:
    """With two sessions and rounds of two items, each round serves its most urgent items first, and
    an idle session saves up no credit."""
    qos = Qos(QosConfig(100, 2, 16, 16, session_quantum_bytes=200), [TenantShare()])
    for tag in range(6):
        assert qos.put(0, Item(tag, 100, session=0, deadline_ps=10)) is None
    order = []
    for _ in range(3):
        taken = qos.take(0)
        assert taken is not None
        order.append(taken.tag)
    for tag in range(10, 14):
        assert qos.put(0, Item(tag, 100, session=1, deadline_ps=5 if tag == 13 else 20)) is None
    while (taken := qos.take(0)) is not None:
        order.append(taken.tag)
    # Rounds: (0, 1), (2, 13, 3, 10), (4, 5, 11, 12).
    assert order == [0, 1, 2, 13, 3, 10, 4, 5, 11, 12]


def test_a_flood_of_one_session_does_not_delay_another() -> None:
    """One session always fills its half of the queue with items due now; another rarely asks and is
    not urgent. With rounds it waits for one item, without for all."""

    def longest_wait(round_bytes: int) -> int:
        config = QosConfig(QUANTUM, 2, 64, 32, session_quantum_bytes=round_bytes)
        qos = Qos(config, [TenantShare()])
        waits = []
        for tick in range(1_000):
            now_ps = 1_000 * tick
            while qos.put(now_ps, Item(0, QUANTUM, session=0)) is None:
                pass
            if tick % 100 == 0:
                assert qos.put(now_ps, Item(1, QUANTUM, session=1, deadline_ps=10**12)) is None
            taken = qos.take(now_ps)
            assert taken is not None
            if taken.session == 1:
                waits.append(now_ps - taken.put_ps)
        served = qos.session_stats(1)
        assert served["taken"] == len(waits) and served["wait_ps_sum"] == sum(waits)
        return max(waits) if len(waits) > 5 else 10**9

    assert longest_wait(QUANTUM) <= 1_000 < 30_000 < longest_wait(0)


def test_sessions_without_an_entry_share_one_and_are_counted() -> None:
    """NO_SESSION and a session whose entry another tenant uses share one entry of their tenant."""
    qos = Qos(QosConfig(100, 1, 8, 2, session_quantum_bytes=100), [TenantShare(), TenantShare()])
    assert qos.put(0, Item(0, 100, tenant=0, session=0)) is None
    assert qos.put(0, Item(1, 100, tenant=1, session=0)) is None  # the entry is tenant 0's
    assert qos.put(0, Item(2, 100, tenant=1, session=NO_SESSION)) is None
    assert qos.put(0, Item(3, 100, tenant=1, session=NO_SESSION)) is Refusal.SESSION_FULL
    assert [qos.stats(tenant)["shared"] for tenant in (0, 1)] == [0, 2]
    shared = qos.session_stats(0, tenant=1)
    assert (shared["put"], shared["refused"], shared["waiting"]) == (2, 1, 2)
    assert qos.session_stats(0)["tenant"] == 0
    while qos.take(0) is not None:
        pass
    assert qos.put(5, Item(4, 100, tenant=1, session=0)) is None  # idle now: the next one gets it
    assert qos.session_stats(0) == {
        "tenant": 1,
        "put": 1,
        "put_bytes": 100,
        "taken": 0,
        "taken_bytes": 0,
        "refused": 0,
        "wait_ps_sum": 0,
        "wait_ps_max": 0,
        "waiting": 1,
        "waiting_max": 1,
    }
    with pytest.raises(BadInput):
        qos.session_stats(0, tenant=2)


def test_bad_input_is_refused() -> None:
    """Is a value out of range refused before anything changes?"""
    good = QosConfig(QUANTUM)
    for config, tenants in [
        (good, []),
        (good, [TenantShare(0)]),
        (good, [TenantShare(-1)]),
        (good, [TenantShare(1, 10**9, QUANTUM - 1)]),
        (replace(good, queue_max=0), [TenantShare()]),
        (replace(good, session_max=1025), [TenantShare()]),
        (replace(good, quantum_bytes=1 << 40), [TenantShare()]),
        (replace(good, session_quantum_bytes=QUANTUM - 1), [TenantShare()]),
    ]:
        with pytest.raises(BadInput):
            Qos(config, tenants)
    qos = Qos(good, [TenantShare()])
    for item in (
        Item(0, 0),
        Item(0, QUANTUM + 1),
        Item(0, 1, tenant=1),
        Item(0, 1, session=1),
        Item(-1, 1),
    ):
        with pytest.raises(BadInput):
            qos.put(5, item)
    with pytest.raises(BadInput):
        qos.take(4)
    with pytest.raises(BadInput):
        qos.stats(1)
    assert qos.waiting == 0


def test_the_bench_shows_what_weights_do() -> None:
    """For equal arrivals the scheduler is fair, and order of arrival is not."""
    assert jain_index([2, 2, 2]) == 1 and jain_index([1, 0, 0, 0]) == 0.25
    found = bench_qos(services=3_000).disciplines
    assert found["qos"].jain > 0.999 > 0.9 > found["fifo"].jain
    assert found["qos"].victim_wait_ps_p99 < found["fifo"].victim_wait_ps_p50 / 10
