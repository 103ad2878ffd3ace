"""Decision logs of a random run, and edits of a log that leave its chain of checksums intact."""

import random
from dataclasses import replace

import numpy as np
from core_pair import CONFIG as SMALLEST
from core_pair import Driver, random_policy

from offstage.bindings.core import CoreConfig
from offstage.bindings.keys import checksum

CONFIG = replace(SMALLEST, slot_count=10, io_max=4, queue_max=8, seed=0)
HEADER_BYTES, CHECK_AT = 48, 40


def recorded(seed: int = 5, config: CoreConfig = CONFIG) -> bytes:
    driver = Driver(seed, config, random_policy(random.Random(seed)))
    driver.begin()
    driver.run(30)
    return driver.pair.log


def boundaries(log: bytes) -> list[int]:
    """Where records end, from their sizes."""
    ends, at = [], 0
    while at < len(log):
        at += int.from_bytes(log[at : at + 4], "little")
        ends.append(at)
    return ends


def restamped(log: bytes) -> bytes:
    """The log with a valid chain of checksums again, as another core would write it."""
    stamped, begin, before = bytearray(log), 0, 0
    for end in boundaries(log):
        stamped[begin + CHECK_AT : begin + HEADER_BYTES] = before.to_bytes(8, "little")
        record = np.frombuffer(bytes(stamped[begin:end]), np.uint8)
        before = checksum(record)
        stamped[begin + CHECK_AT : begin + HEADER_BYTES] = before.to_bytes(8, "little")
        begin = end
    return bytes(stamped)
