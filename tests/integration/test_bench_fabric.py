"""Does the bench of one-sided reads get the bytes that it stored, and hold them to its aims?"""

from offstage.testbeds.bench.staged_value import VALUE_BYTES, staged_value


def test_a_staged_value_comes_back_whole() -> None:
    said: list[str] = []
    found = staged_value(1, seed=1, say=said.append)
    assert found.value_bytes == VALUE_BYTES
    assert 0 < found.memcpy_ns and 0 < found.retrieve_ns
    assert found.ratio == found.retrieve_ns / found.memcpy_ns
    assert "512 KiB" in said[0]
