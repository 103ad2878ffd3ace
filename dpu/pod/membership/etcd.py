"""The map in etcd, through its JSON gateway: a key for each daemon under a lease, one for the map.

    offstage/pod/map             the map; its modification revision is the epoch, less `epoch_base`
    offstage/pod/member/NAME     a daemon, under its lease; the first to create it has the name
    offstage/pod/secret          by which members authenticate each other; created by the first

Why the gateway and urllib3: docs/decisions/pod-membership.md. Members of the etcd cluster are tried
in turn, starting with the one that answered last; each call has a deadline.
"""

import base64
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from offstage.bindings.errors import BadInput, Missing, NoAnswer, RunFailed
from offstage.bindings.outside import decode_json
from offstage.bindings.settings import convert
from offstage.dpu.pod.map import Living, PodMap, from_tables, noted

__all__ = ["EtcdMembership"]

PREFIX = "offstage/pod/"
MAP_KEY = f"{PREFIX}map"
MEMBERS = f"{PREFIX}member/"
SECRET_KEY = f"{PREFIX}secret"
TTL_S = 5
"""Of a daemon's lease. Its end is seen up to 0.5 s late; a new leader of etcd restarts it."""
CALL_S = 1.0
TRIES_MAX = 16
ELECTION_S, AGAIN_S = 5.0, 0.2
"""What a change waits for etcd to have a leader again, and between two tries."""


class EtcdLease:
    """A daemon's key; the daemon keeps it about each third of its time."""

    def __init__(self, etcd: "EtcdMembership", number: int, ttl_s: int) -> None:
        """Of a lease that was granted."""
        self._etcd, self._number = etcd, number
        self.ttl_ns = ttl_s * 10**9
        self.lost = False

    def keep(self) -> bool:
        """See `Lease`: etcd answers a lease that it no longer has without a time to live."""
        try:
            found = self._etcd.call("lease/keepalive", {"ID": str(self._number)})
        except RunFailed:
            return False
        self.lost = int(found.get("result", {}).get("TTL", 0)) <= 0
        return not self.lost

    def say(self, member: Living) -> None:
        """See `Lease`: not where another process has taken the name."""
        own = {"target": "LEASE", "lease": str(self._number)}
        if not self.put(member, own):
            self.lost = True
            raise RunFailed(
                f"{member.name} is another process's by now", "etcd", "see offstage pod status"
            )

    def put(self, member: Living, where: Mapping[str, str], *, patient: bool = False) -> bool:
        """Its key, if that is so `where`."""
        key = _text(f"{MEMBERS}{member.name}")
        value = _text(msgspec.json.encode(member))
        done = self._etcd.call(
            "kv/txn",
            {
                "compare": [{"key": key, "result": "EQUAL", **where}],
                "success": [
                    {"requestPut": {"key": key, "value": value, "lease": str(self._number)}}
                ],
            },
            patient=patient,
        )
        return bool(done.get("succeeded"))

    def end(self) -> None:
        """See `Lease`."""
        self._etcd.call("lease/revoke", {"ID": str(self._number)})


class EtcdMembership:
    """`Membership` of an etcd cluster at `HOST:PORT` addresses. Missing: urllib3 is not there."""

    def __init__(
        self, addresses: Sequence[str], ttl_s: int = TTL_S, call_s: float = CALL_S
    ) -> None:
        """Makes no call yet. `call_s`: the time limit of a call to each address."""
        try:
            import urllib3
        except ImportError:
            raise Missing("pod", "urllib3 is not installed", "etcd") from None
        for one in addresses:
            host, _, port = one.rpartition(":")
            if not host or not port.isdigit():
                raise BadInput(f"{one!r} is not an address of etcd", "pod", "write HOST:PORT")
        self._failed = urllib3.exceptions.HTTPError
        self._http = urllib3.PoolManager(timeout=call_s, retries=False)
        self._addresses, self._ttl_s = list(addresses), ttl_s
        self._last = PodMap()
        self._cluster = ""
        self.fresh = False

    def map(self) -> PodMap:
        """See `Membership`."""
        try:
            pod = self._read()
        except RunFailed:
            self.fresh = False
            if not self._last.epoch:
                raise
            return self._last
        self._last, self.fresh = pod, True
        return pod

    def change(self, transition: Callable[[PodMap], PodMap]) -> PodMap:
        """See `Membership`: compare-and-swap on the revision of the map's key."""
        for _ in range(TRIES_MAX):
            before = self._read(patient=True)
            after = noted(before, transition(before), int(time.time()))
            value = msgspec.json.encode(after)
            done = self.call(
                "kv/txn",
                {
                    "compare": [
                        {
                            "key": _text(MAP_KEY),
                            "target": "MOD",
                            "result": "EQUAL",
                            "mod_revision": str(before.epoch - before.epoch_base),
                        }
                    ],
                    "success": [{"requestPut": {"key": _text(MAP_KEY), "value": _text(value)}}],
                },
                patient=True,
            )
            # Failed, yet present: the answer to an earlier attempt of this call was lost.
            if done.get("succeeded") or self._raw(MAP_KEY) == value:
                return self.map()
        raise RunFailed(f"the map changed {TRIES_MAX} times meanwhile", "etcd", "try again")

    def announce(self, member: Living, before: str = "") -> EtcdLease:
        """See `Membership`: the name is taken by compare-and-swap."""
        granted = self.call("lease/grant", {"TTL": str(self._ttl_s)}, patient=True)
        lease = EtcdLease(self, int(granted["ID"]), int(granted["TTL"]))
        where = {"target": "VERSION", "version": "0"}
        for _ in range(TRIES_MAX):
            if lease.put(member, where, patient=True):
                return lease
            found = self._range(f"{MEMBERS}{member.name}", patient=True)
            other = convert(_decoded(found[0][0]), Living, MEMBERS) if found else None
            if other is not None and member.holder and other.holder == member.holder:
                return lease  # it was there, and the answer was lost
            if other is not None and (not before or other.holder != before):
                lease.end()
                raise BadInput(
                    f"{other.name!r} is another daemon's, process {other.pid} on {other.host!r} "
                    f"at {other.endpoint!r}, whose lease holds",
                    "pod",
                    f"end that one and wait {self._ttl_s} s, or give another --pod-name",
                )
            where = {"target": "MOD", "mod_revision": f"{found[0][1] if found else 0}"}
        lease.end()
        raise RunFailed(f"{member.name} changed hands {TRIES_MAX} times", "etcd", "try again")

    def alive(self) -> list[Living]:
        """See `Membership`."""
        return [
            convert(_decoded(value), Living, MEMBERS)
            for value, _ in self._range(MEMBERS, all_of=True)
        ]

    def secret(self) -> bytes:
        """See `Membership`: the first member creates it."""
        made = secrets.token_bytes(32)
        self.call(
            "kv/txn",
            {
                "compare": [
                    {
                        "key": _text(SECRET_KEY),
                        "target": "VERSION",
                        "result": "EQUAL",
                        "version": "0",
                    }
                ],
                "success": [{"requestPut": {"key": _text(SECRET_KEY), "value": _text(made)}}],
            },
            patient=True,
        )
        return self._raw(SECRET_KEY)

    def close(self) -> None:
        """See `Membership`."""
        self._http.clear()

    def _read(self, *, patient: bool = False) -> PodMap:
        found = self._range(MAP_KEY, patient=patient)
        if not found:
            return PodMap(cluster=self._cluster, kept_by=self._cluster)
        value, revision = found[0]
        pod = from_tables(_decoded(value), MAP_KEY)
        return msgspec.structs.replace(
            pod,
            epoch=revision + pod.epoch_base,
            kept_by=self._cluster,
            cluster=pod.cluster or self._cluster,
        )

    def _raw(self, key: str) -> bytes:
        found = self._range(key, patient=True)
        return found[0][0] if found else b""

    def _range(
        self, key: str, *, all_of: bool = False, patient: bool = False
    ) -> list[tuple[bytes, int]]:
        """Values and their revisions, read through a quorum."""
        end = {"range_end": _text(f"{key[:-1]}{chr(ord(key[-1]) + 1)}")} if all_of else {}
        found = self.call("kv/range", {"key": _text(key), **end}, patient=patient)
        self._cluster = str(found.get("header", {}).get("cluster_id", ""))
        return [
            (base64.b64decode(one.get("value", "")), int(one["mod_revision"]))
            for one in found.get("kvs", [])
        ]

    def call(self, path: str, body: Mapping[str, Any], *, patient: bool = False) -> dict[str, Any]:
        """One call of the gateway, at the first address that answers it. RunFailed: none did;
        `patient`: nor while a new leader may have been elected."""
        until_s = time.monotonic() + (ELECTION_S if patient else 0.0)
        while True:
            try:
                return self._call(path, body)
            except RunFailed:
                if time.monotonic() >= until_s:
                    raise
                time.sleep(AGAIN_S)

    def _call(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        why: object = ""
        for address in list(self._addresses):
            try:
                answer = self._http.request(
                    "POST", f"http://{address}/v3/{path}", body=msgspec.json.encode(body)
                )
                if answer.status == 200:
                    self._addresses.remove(address)
                    self._addresses.insert(0, address)
                    return decode_json(answer.data, address, "", dict[str, Any])
                why = f"status {answer.status}"
            except (self._failed, OSError, BadInput) as error:
                why = error
        raise NoAnswer(
            f"etcd does not answer ({why})",
            ",".join(self._addresses),
            "see `etcdctl endpoint status`; the map stays as it is",
        )


def _decoded(value: bytes) -> dict[str, Any]:
    return decode_json(
        value,
        f"etcd: {PREFIX}",
        f"etcdctl get --prefix {PREFIX} shows it; delete what is not ours",
        dict[str, Any],
    )


def _text(value: str | bytes) -> str:
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()
