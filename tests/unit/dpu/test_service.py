"""Does the control plane give each host access to its own data, and to nothing else?"""

import dataclasses
import io
import json

from msgspec.structs import replace
from service_world import ASKED, NoAttachments, World

from offstage.dpu import protocol as p
from offstage.dpu.control.replies import Waiting
from offstage.dpu.control.service import METHODS
from offstage.dpu.log import RATE_MAX, Log
from offstage.dpu.protocol.pod_calls import ShardReport
from offstage.dpu.protocol.status import FabricReport
from offstage.dpu.sockets.fd_passing import Handed


def test_every_call_has_a_method_that_returns_its_reply() -> None:
    """Each call is answered here, except those of a login and those that the loop answers later."""
    returns = {kind: method.__annotations__["return"] for kind, method in METHODS.items()}
    assert returns == {kind: kind.reply() for kind in returns}
    elsewhere = {p.Hello, p.Prove, p.Hold, p.Connect, p.Drain, p.StorageMove}
    assert {*returns} | elsewhere == {*p.CALLS} and not {*returns} & elsewhere


def test_a_session_says_what_of_the_scores_is_taken_in(world: World) -> None:
    """The reply to a session has the policy's limits on scores."""
    welcome = world.login("red")
    assert isinstance(welcome, p.Welcome)
    world.service.policy = replace(world.service.policy, hint_scores_max=7, hint_score_bits=8)
    world.answer(welcome.ticket, p.Attach())
    opened = world.answer(welcome.ticket, p.SessionOpen(select_blocks=4))
    assert isinstance(opened, p.Opened) and opened.hints == (7, 1, 8)


def test_a_session_belongs_to_its_host(world: World) -> None:
    """No host, of the same tenant or another, can name a session that is not its own."""
    owner, sibling, stranger = world.ticket("red"), world.ticket("red"), world.ticket("blue")
    session = world.session(owner)
    for ticket in (sibling, stranger):
        for request in (
            p.Append(id=5, session=session, contents=[b"c" * 16]),
            p.SetGenerating(session=session, generating=True),
            p.SessionClose(session=session),
        ):
            assert world.code(ticket, request) == "unknown"
    appended = world.answer(owner, p.Append(session=session, contents=[b"0123" * 4]))
    assert isinstance(appended, p.Appended) and appended.keys == [(b"0123" * 4)[::-1]]
    assert world.code(owner, p.SessionClose(session=session)) == "Ok"
    assert world.code(owner, p.SessionClose(session=session)) == "unknown"


def test_a_purge_is_not_over_while_what_is_gone_is_under_way(world: World) -> None:
    """The caller repeats the purge while `marking` is not 0, but not for blocks in use."""
    operator = world.ticket(p.OPERATOR)
    for left, marking in (({"writing": 0, "named": 7}, 0), ({"writing": 3, "named": 0}, 3)):
        world.device.purge_left = left
        answer = world.answer(operator, p.Purge(tenant="blue"))
        assert isinstance(answer, p.Purged) and answer.marking == marking


def test_only_the_operator_changes_what_concerns_all(world: World) -> None:
    """A tenant may not change the policy, reset the arena or read another's ledger."""
    red, operator = world.ticket("red"), world.ticket(p.OPERATOR)
    change = p.PolicySet(changes={"degree_max": "3"})
    assert world.code(red, change) == "forbidden"
    assert world.code(red, p.Reset()) == "forbidden"
    assert world.code(red, p.Ledger(tenant="blue")) == "forbidden"
    assert world.code(red, p.Purge(tenant="blue")) == "forbidden"
    assert world.code(red, p.Purge(tenant="red")) == "Purged"
    assert world.code(operator, p.Purge(tenant="blue")) == "Purged"
    assert world.code(operator, p.Purge(tenant="green")) == "unknown"
    assert world.code(red, p.Ledger()) == "LedgerReply"
    assert world.code(operator, p.Attach()) == "forbidden"
    assert world.device.policies == [] and world.device.resets == 0
    assert world.code(operator, change) == "PolicyReply"
    assert world.device.policies[0].degree_max == 3
    assert world.code(operator, p.PolicySet(changes={"degree": "3"})) == "invalid"
    assert world.code(operator, p.Ledger(tenant="green")) == "unknown"
    assert world.service.policy.degree_max == 3
    status = world.answer(red, p.Status())
    assert isinstance(status, p.StatusReply) and not status.status.hosts


def test_shares_of_a_tenant_change_live(world: World) -> None:
    """`tenant.NAME.KEY` sets that tenant's share, alone or with keys of the policy. A key that
    cannot change at run time is refused, and nothing changes."""
    operator = world.ticket(p.OPERATOR)
    assert world.code(world.ticket("red"), p.PolicySet(changes={"tenant.red.weight": "9"})) == (
        "forbidden"
    )
    change = {"tenant.blue.weight": "4", "tenant.blue.bandwidth": "2MB/s", "degree_max": "5"}
    change["tenant.blue.floor"] = "1MB/s"
    assert world.code(operator, p.PolicySet(changes=change)) == "PolicyReply"
    blue = world.hosts.tenants["blue"].index
    assert world.device.shares == {blue: (4, 2_000_000, 0, 1_000_000)}
    assert world.service.policy.degree_max == 5
    assert world.code(operator, p.PolicySet(changes={"tenant.blue.in_flight": "64KiB"})) == (
        "PolicyReply"
    )
    assert world.device.shares[blue] == (4, 2_000_000, 65536, 1_000_000)
    quota = {"tenant.blue.store_max": "1MiB", "tenant.blue.chunks_max": "7"}
    assert world.code(operator, p.PolicySet(changes=quota)) == "PolicyReply"
    assert world.device.quotas[blue][:3] == (7, 1 << 20, 0)
    for name, text, code in [
        ("tenant.green.weight", "1", "unknown"),
        ("tenant.blue.name", "x", "invalid"),
        ("tenant.blue.arena_max", "1MiB", "invalid"),
        ("tenant.blue.weight", "0", "invalid"),
        ("tenant.blue.floor", "3MB/s", "invalid"),  # above its cap
        ("tenant.blue", "1", "invalid"),
    ]:
        bad = p.PolicySet(changes={name: text, "degree_max": "7"})
        assert world.code(operator, bad) == code, name
    # Only the device or its drive may know why a policy is refused.
    bad = p.PolicySet(changes={"tenant.blue.weight": "9", "drive_years": "5"})
    assert world.code(operator, bad) == "invalid"
    assert world.device.shares[blue] == (4, 2_000_000, 65536, 1_000_000)
    assert world.service.policy.degree_max == 5


def test_a_tenant_at_its_quota_is_refused_and_no_other(world: World) -> None:
    """For sessions, ports and logins a tenant is warned before its own limit and refused at it,
    while others have room. A session that ends makes room."""
    red = dataclasses.replace(world.hosts.tenants["red"], session_max=5, port_max=1)
    world.hosts.tenants["red"] = red
    world.service.quotas.change(world.service.quotas.tenants["red"])
    world.hosts._hosts_max = 9  # over all tenants
    ticket, opening = world.ticket("red"), p.SessionOpen(select_blocks=1)
    first = world.session(ticket)
    assert [world.code(ticket, opening) for _ in range(2)] == ["Opened"] * 2
    before = world.log.getvalue().count("quota_near")  # the only port
    assert before == 1
    assert [world.code(ticket, opening) for _ in range(3)] == ["Opened", "Opened", "limit"]
    assert world.log.getvalue().count("quota_near") == before + 1  # by the fourth session
    assert world.code(ticket, p.SessionClose(session=first)) == "Ok"
    assert world.code(ticket, opening) == "Opened"
    assert world.code(world.ticket("red"), p.Attach()) == "limit"
    for number in range(3, 9):
        assert isinstance(world.login("red", name=f"h{number}"), p.Welcome)
    assert isinstance(world.login("red", name="h9"), p.Error)
    world.session(world.ticket("blue"))
    share = world.service.quotas.look()["red"]
    found = [getattr(share, name) for name in ("sessions", "sessions_max", "ports", "logins")]
    assert found == [5, 5, 1, 8]


def test_a_dead_host_leaves_nothing_behind(world: World) -> None:
    """Port, sessions and promises of a silent host are taken back, and its ticket is void."""
    ticket = world.ticket("red")
    world.session(ticket)
    assert world.device.ports and world.device.sessions
    for host in world.hosts.silent(-1.0):
        world.service.leave(host, "silent")
    assert not world.device.ports and not world.device.sessions
    assert world.hosts.counts["hosts_dead"] == 1
    assert world.code(ticket, p.Heartbeat()) == "unauthenticated"
    assert world.service.attachments.forgotten == [ticket]  # type: ignore[attr-defined]


def test_a_host_that_is_dismissed_has_nothing_left_and_no_other_host_does(world: World) -> None:
    """Sessions, ports and logins of that name and tenant are removed, and no others."""
    gone, other = world.ticket("red"), world.ticket("blue")
    session = world.session(gone)
    kept = world.session(other)
    operator = world.ticket(p.OPERATOR)
    said = world.answer(operator, p.Dismiss(tenant="red", name="h"))
    assert said == p.Dismissed(hosts=1)
    assert world.code(gone, p.Append(session=session, contents=[])) == "unauthenticated"
    assert kept in world.device.sessions and len(world.device.ports) == 1
    assert world.answer(operator, p.Dismiss(tenant="red", name="h")) == p.Dismissed(hosts=0)
    assert world.code(operator, p.Dismiss(tenant="green", name="h")) == "unknown"
    assert world.code(other, p.Dismiss(tenant="blue", name="h")) == "forbidden"


def test_full_draining_and_misordered_requests_are_typed_errors(world: World) -> None:
    """Each refusal has a code that a program can act on."""
    tickets = [world.ticket("red") for _ in range(3)]
    assert world.code(tickets[0], p.SessionOpen(select_blocks=1)) == "invalid"  # no port yet
    assert world.code(tickets[0], p.Attach()) == "Attached"
    assert world.code(tickets[0], p.Attach()) == "invalid"
    assert world.code(tickets[0], p.SessionOpen(select_blocks=101)) == "invalid"
    assert world.code(tickets[1], p.Attach()) == "Attached"
    assert world.code(tickets[2], p.Attach()) == "limit"
    world.service.drain.ask(Waiting(b"", 0), 10**9)
    assert world.code(tickets[0], p.SessionOpen(select_blocks=1)) == "draining"
    assert world.code(b"x" * 16, p.Status()) == "unauthenticated"
    assert world.code(b"", p.Hello(versions=[9], name="h", tenant="red", nonce=ASKED)) == "invalid"


def test_a_connection_is_made_again_by_the_host_of_its_port(world: World) -> None:
    """It leaves port and sessions as they are, and needs a port to begin with."""
    ticket, other = world.ticket("red"), world.ticket("red")
    session = world.session(ticket)
    ports = dict(world.device.ports)
    again = world.answer(ticket, p.Attach(again=True))
    assert isinstance(again, p.Attached) and again.blob == b"again"
    assert world.device.ports == ports and session in world.device.sessions
    assert world.code(ticket, p.Attach(fabric="verbs", again=True)) == "invalid"
    assert world.code(other, p.Attach(again=True)) == "invalid"


def test_a_failure_of_ours_is_answered_and_the_service_lives_on(world: World) -> None:
    """An internal error in one request reaches the host as `internal`, and the next request
    works."""
    ticket = world.ticket("red")
    session = world.session(ticket)
    world.device.session_append = lambda *_: 1 / 0
    assert world.code(ticket, p.Append(session=session, contents=[])) == "internal"
    assert "ZeroDivisionError" in world.log.getvalue()
    assert world.code(ticket, p.Heartbeat()) == "Ok"


def test_a_flood_of_one_event_is_counted_instead_of_written() -> None:
    """A peer that is refused endlessly cannot fill the disk with log lines."""
    stream = io.StringIO()
    log = Log("info", stream, text=False)
    for number in range(1000):
        log.warning("flood", number=number)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert 1 <= len(lines) <= 2 * RATE_MAX  # the loop may cross into the next second
    log.warning("another")
    assert json.loads(stream.getvalue().splitlines()[-1])["event"] == "another"


def test_a_fabric_that_is_shut_takes_no_host_and_ends_with_its_last(world: World) -> None:
    """Attached hosts stay, and the fabric ends when they have left."""
    operator, red, blue = world.ticket(p.OPERATOR), world.ticket("red"), world.ticket("blue")
    attachments = world.service.attachments
    assert isinstance(attachments, NoAttachments)
    assert world.code(red, p.FabricOpen(fabric="zmq")) == "forbidden"
    assert world.code(red, p.FabricShut(fabric="zmq")) == "forbidden"
    assert world.code(operator, p.FabricOpen(fabric="zmq", endpoint="tcp://0.0.0.0:7")) == "invalid"
    assert world.code(operator, p.FabricOpen(fabric="zmq")) == "Ok"
    assert world.code(red, p.Attach(fabric="zmq")) == "Attached"
    assert world.code(operator, p.FabricShut(fabric="zmq")) == "Ok"
    assert world.code(blue, p.Attach(fabric="zmq")) == "invalid"
    shown = world.service.status_for(world.hosts.find(operator)).fabrics
    assert shown["zmq"] == FabricReport(open=False, hosts=1, endpoint="zmq:7")
    assert world.code(red, p.SessionOpen(select_blocks=4)) == "Opened"
    assert world.code(red, p.Detach()) == "Ok"
    assert attachments.listening == set()
    assert world.code(blue, p.Attach(fabric="shm")) == "Attached"


def test_what_is_kept_of_shards_is_the_tenants_own(world: World) -> None:
    """When two tenants report a shard of one name, neither sees the other's copies; a host without
    a tenant has no shards. The status has the tenant's figures."""
    red, blue, operator = (world.ticket(name) for name in ("red", "blue", p.OPERATOR))
    copies = []
    for ticket, made in ((red, "dpu1"), (blue, "")):
        told = world.answer(ticket, p.Shards(reports=[ShardReport(b"n" * 16, 7, made=made)]))
        assert isinstance(told, p.ShardsReply)
        copies.append(told.answers[0].copies)
    assert copies == [("dpu1",), ()]
    assert world.code(operator, p.Shards()) == "forbidden"
    status = world.answer(operator, p.Status())
    assert isinstance(status, p.StatusReply)
    shown = {one.name: one.pod["copies"] for one in status.status.tenants}
    assert shown == {"red": 1, "blue": 0}


def test_users_that_do_not_share_are_told_apart_or_refused(world: World) -> None:
    """For the same contents the device gets different names for two users and the same for one
    user's hosts. A host of no known user can open nothing, and one of another fabric cannot
    attach."""
    red = dataclasses.replace(world.hosts.tenants["red"], sharing="user")
    world.hosts.tenants["red"] = red
    world.device.port_max = 4
    named = []
    for user in (7, 8, 8):
        ticket = world.ticket("red")
        assert world.code(ticket, p.Attach(fabric="zmq")) == "forbidden"
        assert world.code(ticket, p.Attach()) == "Attached"
        for nobody in (None, world.hosts._nameless):
            if nobody is not None:
                world.hosts.took(Handed(ticket, 1, -1, nobody))
            assert world.code(ticket, p.SessionOpen(select_blocks=4)) == "forbidden"
        world.hosts.took(Handed(ticket, 1, -1, user))
        opened = world.answer(ticket, p.SessionOpen(select_blocks=4))
        assert isinstance(opened, p.Opened)
        append = p.Append(session=opened.session, contents=[b"c" * 16, b"d" * 16])
        assert world.code(ticket, append) == "Appended"
        named.append(world.device.sessions[opened.session])
    assert named[0] != named[1] == named[2]
    every = {*named[0], *named[1], b"c" * 16, b"d" * 16}
    assert len(every) == 6 and {len(one) for one in every} == {16}
    status = world.answer(world.ticket(p.OPERATOR), p.Status())
    assert isinstance(status, p.StatusReply)
    shown = {one.name: one.sharing for one in status.status.tenants}
    assert shown == {"red": "user", "blue": "tenant"}


def test_a_name_from_outside_writes_one_line_on_a_terminal() -> None:
    """An escape, a new line and a change of direction are shown as text, without effect."""
    stream = io.StringIO()
    Log("info", stream, text=True).info("host", name="a\x1b[2J\nfake error\u202eb")
    assert stream.getvalue().endswith("name=a\\x1b[2J\\nfake error\\u202eb\n")
    assert stream.getvalue().rstrip("\n").isprintable()


def test_a_daemon_of_no_pod_promises_nothing(world: World) -> None:
    """A pod member's request is refused as not meant for this daemon."""
    asks = p.Hold(
        name="a", incarnation=2**63 - 1, to="b", to_incarnation=0, nonce=bytes(16), proof=bytes(32)
    )
    for ticket in (b"", world.ticket("red")):
        assert world.code(ticket, asks) == "foreign"
    assert world.hosts.counts["requests_failed"] == 0
