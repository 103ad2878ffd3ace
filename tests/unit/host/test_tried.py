"""Is an untested version of an engine logged in one line when a connector is made?"""

from types import SimpleNamespace
from typing import Any

import pytest

from offstage.bindings.errors import OffstageError
from offstage.host.connectors import tried
from offstage.host.connectors.lmcache import NativeClient
from offstage.host.connectors.sglang import Storage

NOWHERE: dict[str, Any] = {"endpoint": "tcp://127.0.0.1:9", "timeout_s": 0.5}


def lmcache() -> None:
    with pytest.raises(OffstageError):  # the missing daemon is another line
        NativeClient(model="m", layout="l", **NOWHERE)


def sglang() -> None:
    Storage(
        SimpleNamespace(
            extra_config=NOWHERE,
            model_name="m",
            is_mla_model=False,
            tp_rank=0,
            tp_size=1,
            pp_rank=0,
            pp_size=1,
            attn_cp_rank=0,
            attn_cp_size=1,
        )
    )


@pytest.mark.parametrize(("engine", "made"), [("LMCache", lmcache), ("SGLang", sglang)])
def test_a_version_is_said_where_it_was_not_tried(
    engine: str, made: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = f"{engine} 9.9.9 was not tried with this connector"
    for version, said in ((tried.TRIED[engine][0], []), ("9.9.9", [other])):
        monkeypatch.setattr(tried, "version", lambda name, version=version: version)
        caplog.clear()
        made()
        assert [one.getMessage() for one in caplog.records] == said
