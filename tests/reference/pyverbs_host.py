"""A host of the verbs fabric in pyverbs, written from the documented layouts alone.

It shares no code with the firmware's own host: blob, region, port and immediate values are those of
docs/reference/protocol.md and memory-map.md. It has one queue pair, sends one command at a time and
waits with a deadline. It checks records as a host must: a mismatch returns None, never bytes.
"""

import ctypes
import ctypes.util
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from pyverbs import enums
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

HEADER = struct.Struct("<8sII16sIIQ")
ADDRESS = struct.Struct("<16sIIIHH")
MEMORY = struct.Struct("<QII")
STATE = struct.Struct("<IIII")
REGION = struct.Struct("<QIIQQIIIIIIQQIIQ")
PORT = struct.Struct("<QIIQQIIIIQQQQIIQ")
ENTRY = struct.Struct("<II16sII")
TRAILER = struct.Struct("<IIIHHQQ16sQ24x16sIIQ16x")
SQE = struct.Struct("<QHHHHIIIIIIIIQQ")
CQE = struct.Struct("<QiHHIIQ")
RESULT = struct.Struct("<IIiHH")
NOP, STEP, PUT = 0, 1, 2
IN_PROGRESS = -115
FAREWELL = 0xFFFF0000
COMPLETION_HEAD_AT = 256 + 3 * 64
READ_AT, READ_BYTES = 0, 1 << 16
TIMEOUT_S = 100.0
MASK = (1 << 64) - 1

_xxhash = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0")
_xxhash.XXH3_64bits.restype = ctypes.c_uint64
_xxhash.XXH3_64bits.argtypes = (ctypes.c_char_p, ctypes.c_size_t)


def xxh3(data: bytes) -> int:
    return int(_xxhash.XXH3_64bits(data, len(data)))


@dataclass(frozen=True)
class Result:
    """A STEP's result for one demand."""

    slot: int
    generation: int
    rc: int


class PyverbsHost:
    """A host at one port. Its `answer` must reach the DPU's end before any other call."""

    def __init__(self, blob: bytes, device: str, gid_index: int, port: int = 1) -> None:
        (gid, self.qpn, self.psn, mtu, _, reads_max), rest = self._opened(blob)
        self.region_at, self.region_key, _ = MEMORY.unpack_from(rest, 0)
        self.port_at, self.port_key, _ = MEMORY.unpack_from(rest, 16)
        self.generation, self.submitted, self.taken, _ = STATE.unpack_from(rest, 32)
        region = REGION.unpack_from(rest, 48)
        (
            self.slot_count,
            self.stride,
            self.payload_bytes,
            self.trailer_at,
            self.buckets,
            self.bucket_entries,
            self.directory_at,
            self.slots_at,
        ) = region[5:13]
        ports = PORT.unpack_from(rest, 48 + REGION.size)
        (
            size,
            self.entries,
            self.area_bytes,
            _,
            self.put_stride,
            self.submissions_at,
            self.completions_at,
            self.payloads_at,
            self.puts_at,
            self.demand_max,
            self.score_max,
        ) = (ports[3], *ports[5:15])
        self.context = Context(name=device)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 4 * self.entries + 64)
        access = enums.IBV_ACCESS_LOCAL_WRITE | enums.IBV_ACCESS_REMOTE_WRITE
        self.copy = MR(self.pd, size, access)  # of the port, in its layout
        self.room = MR(self.pd, READ_BYTES + self.stride, enums.IBV_ACCESS_LOCAL_WRITE)
        cap = QPCap(max_send_wr=64, max_recv_wr=2 * self.entries + 4)
        self.qp = QP(
            self.pd, QPInitAttr(qp_type=enums.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap)
        )
        self.gid = bytes.fromhex(str(self.context.query_gid(port, gid_index)).replace(":", ""))
        self.mtu, self.arrived, self.sent = mtu, self.taken, 0
        self._connect(gid, gid_index, port, reads_max, access)

    def answer(self) -> bytes:
        """The blob for the DPU's end."""
        content = ADDRESS.pack(self.gid, self.qp.qp_num, 0, self.mtu, 0, 4)
        content += MEMORY.pack(self.copy.buf, self.copy.rkey, 0)
        content += struct.pack("<II", self.generation, 0)
        size = HEADER.size + len(content)
        parts = [b"OFSBLOB1", 2, size, b"verbs", 0, 0]
        return HEADER.pack(*parts, xxh3(HEADER.pack(*parts, 0) + content)) + content

    # ---- one-sided reads ----

    def find(self, key: bytes) -> tuple[int, int] | None:
        """Return slot and generation of a block key, from its two buckets."""
        for bucket in self._buckets(key):
            size = self.bucket_entries * ENTRY.size
            data = self._read(self.directory_at + bucket * size, size)
            for sequence, slot, name, generation, _ in ENTRY.iter_unpack(data):
                if name == key and sequence % 2 == 0 and slot < self.slot_count and generation:
                    return slot, generation
        return None

    def record(self, key: bytes, slot: int, generation: int) -> bytes | None:
        """Return the block in a slot; None: its trailer, seal or checksum does not match."""
        data = self._read(self.slots_at + slot * self.stride, self.stride)
        (_, _, length, _, _, checksum, _, _, _, name, life, cause, seal) = TRAILER.unpack_from(
            data, self.trailer_at
        )
        words = struct.pack("<Q16sQQ", checksum, name, length << 32 | life, cause)
        if name != key or life != generation or seal != xxh3(words):
            return None
        block = data[:length]
        return block if length <= self.payload_bytes and xxh3(block) == checksum else None

    # ---- commands ----

    def nop(self) -> int:
        """Send an empty command; returns its code."""
        return self._command(SQE.pack(7, NOP, *[0] * 13))

    def put(self, session: int, layer: int, ordinal: int, block: bytes) -> int:
        """Put a block through the put window; returns the command's code."""
        self._write(self.puts_at, block)
        return self._command(
            SQE.pack(
                8, PUT, 0, layer, 0, session, 0, 0, 0, 0, ordinal, 0, len(block), xxh3(block), 0
            )
        )

    def step(self, session: int, step: int, layer: int, ordinals: list[int]) -> list[Result]:
        """Demand blocks as not found in the directory; returns where each is."""
        count = len(ordinals)
        area = struct.pack(f"<{count}I", *ordinals) + bytes(count)
        self._write(self.payloads_at, area)
        rc = self._command(
            SQE.pack(9, STEP, 0, layer, 0, session, step, count, count, 0, 0, 0, 0, 0, 0)
        )
        assert rc == 0, rc
        at = self.payloads_at + self._results_at()
        found = list(RESULT.iter_unpack(bytes(self.copy.read(count * RESULT.size, at))))
        placed = {demand: Result(slot, generation, rc) for slot, generation, rc, demand, _ in found}
        return [placed[i] for i in range(count)]

    def close(self) -> None:
        """Log out, so that another host can have the port."""
        nothing = SGE(self.copy.buf, 0, self.copy.lkey)
        self._post(enums.IBV_WR_RDMA_WRITE_WITH_IMM, self.port_at, nothing, FAREWELL)
        self._until(lambda: self.sent == 0)
        for one in (self.qp, self.copy, self.room, self.cq, self.pd, self.context):
            one.close()

    # ---- how ----

    def _opened(self, blob: bytes) -> tuple[tuple[bytes, int, int, int, int, int], bytes]:
        magic, version, size, fabric, fds, _, checksum = HEADER.unpack_from(blob)
        assert (magic, version, fds) == (b"OFSBLOB1", 2, 0) and size == len(blob)
        assert fabric.rstrip(b"\0") == b"verbs"
        assert checksum == xxh3(blob[:40] + bytes(8) + blob[48:])
        found = ADDRESS.unpack_from(blob, HEADER.size)
        return found, blob[HEADER.size + ADDRESS.size :]

    def _connect(self, gid: bytes, gid_index: int, port: int, reads_max: int, access: int) -> None:
        attr = QPAttr(port_num=port)
        attr.qp_access_flags, attr.pkey_index = access, 0
        self.qp.to_init(attr)
        for _ in range(2 * self.entries + 4):
            self.qp.post_recv(self._receive())
        text = gid.hex()
        route = GlobalRoute(
            dgid=GID(":".join(text[i : i + 4] for i in range(0, 32, 4))),
            sgid_index=gid_index,
            hop_limit=64,
        )
        attr.ah_attr = AHAttr(port_num=port, is_global=1, gr=route)
        attr.path_mtu = self.mtu.bit_length() - 8  # 256 is 1
        attr.dest_qp_num, attr.rq_psn, attr.sq_psn = self.qpn, self.psn, 0
        attr.max_dest_rd_atomic, attr.max_rd_atomic = 4, min(4, reads_max)
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 16, 6, 7
        self.qp.to_rts(attr)

    def _buckets(self, key: bytes) -> tuple[int, int]:
        low, high = struct.unpack("<QQ", key)
        first = (low * 0x9E3779B97F4A7C15 & MASK) >> 32 & (self.buckets - 1)
        second = (high * 0xC2B2AE3D27D4EB4F & MASK) >> 32 & (self.buckets - 1)
        return first, second ^ 1 if second == first else second

    def _results_at(self) -> int:
        scores_at = ((self.demand_max * 5 + 7) & ~7) + ((self.demand_max * 4 + 7) & ~7)
        return (scores_at + self.score_max * 2 + 63) & ~63

    def _command(self, sqe: bytes) -> int:
        """Write a command and announce it; wait for its last completion."""
        at = self.submissions_at + self.submitted % self.entries * SQE.size
        self.submitted += 1
        self.copy.write(sqe, len(sqe), at)
        sge = SGE(self.copy.buf + at, len(sqe), self.copy.lkey)
        self._post(
            enums.IBV_WR_RDMA_WRITE_WITH_IMM, self.port_at + at, sge, self.submitted & 0xFFFF
        )
        while True:
            self._until(lambda: self.arrived != self.taken)
            where = self.completions_at + self.taken % (2 * self.entries) * CQE.size
            user, rc, *_ = CQE.unpack(bytes(self.copy.read(CQE.size, where)))
            self.taken += 1
            self._write(COMPLETION_HEAD_AT, struct.pack("<I", self.taken & 0xFFFFFFFF))
            assert user == struct.unpack_from("<Q", sqe)[0]
            if rc != IN_PROGRESS:
                return int(rc)

    def _write(self, at: int, data: bytes) -> None:
        self.copy.write(data, len(data), at)
        sge = SGE(self.copy.buf + at, len(data), self.copy.lkey)
        self._post(enums.IBV_WR_RDMA_WRITE, self.port_at + at, sge)
        self._until(lambda: self.sent == 0)

    def _read(self, offset: int, size: int) -> bytes:
        sge = SGE(self.room.buf + READ_AT, size, self.room.lkey)
        request = SendWR(
            opcode=enums.IBV_WR_RDMA_READ, num_sge=1, sg=[sge], send_flags=enums.IBV_SEND_SIGNALED
        )
        request.set_wr_rdma(self.region_key, self.region_at + offset)
        self.qp.post_send(request)
        self.sent += 1
        self._until(lambda: self.sent == 0)
        return bytes(self.room.read(size, READ_AT))

    def _post(self, opcode: int, to: int, sge: SGE, value: int = 0) -> None:
        flags = enums.IBV_SEND_SIGNALED | enums.IBV_SEND_SOLICITED
        swapped = struct.unpack("<I", struct.pack(">I", value))[0]
        request = SendWR(opcode=opcode, num_sge=1, sg=[sge], send_flags=flags, imm_data=swapped)
        request.set_wr_rdma(self.port_key, to)
        self.qp.post_send(request)
        self.sent += 1

    def _receive(self) -> RecvWR:
        """A receive of one immediate value; pyverbs requires a buffer although no byte arrives."""
        return RecvWR(num_sge=1, sg=[SGE(self.room.buf, 1, self.room.lkey)])

    def _until(self, done: Callable[[], bool]) -> None:
        """Process completions and arrivals until the condition holds."""
        until_s = time.monotonic() + TIMEOUT_S
        while not done():
            count, ended = self.cq.poll(16)
            for one in ended:
                assert one.status == enums.IBV_WC_SUCCESS, f"work completion {one.status}"
                if one.opcode & enums.IBV_WC_RECV:
                    value = struct.unpack(">I", struct.pack("<I", one.imm_data))[0]
                    self.arrived += (value - self.arrived) & 0xFFFF
                    self.qp.post_recv(self._receive())
                else:
                    self.sent -= 1
            if not count:
                time.sleep(0)
                assert time.monotonic() < until_s, "the DPU's end does not answer"
