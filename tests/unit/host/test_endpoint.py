"""Is a daemon named, described and reached in one way by every caller?"""

import re
from pathlib import Path

import pytest

from offstage.bindings.errors import BadInput
from offstage.host.endpoint import Endpoint

ROOT = Path(__file__).parents[3]
ENTRY = """
[lab]
endpoint = "tcp://dpu:7411"
curve_dir = "keys"
operator_secret = "operator.secret"
tenant = "red"
secret = "/elsewhere/red.secret"
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "daemons.toml").write_text(ENTRY)
    return {"OFFSTAGE_DAEMONS": str(tmp_path / "daemons.toml")}


def test_an_address_is_taken_as_it_is() -> None:
    assert Endpoint.find("ipc:///run/x", environ={}) == Endpoint("ipc:///run/x")


def test_a_name_stands_for_its_entry(tmp_path: Path, environ: dict[str, str]) -> None:
    """Paths are relative to the file, the secret is that of the tenant that logs in, and options
    override the entry."""
    red = Endpoint.find("lab", environ=environ, name="host-run")
    assert (red.address, red.tenant, red.name) == ("tcp://dpu:7411", "red", "host-run")
    assert (red.curve_dir, red.secret) == (tmp_path / "keys", Path("/elsewhere/red.secret"))
    operator = Endpoint.find("lab", tenant="operator", environ=environ)
    assert operator.secret == tmp_path / "operator.secret"
    given = Endpoint.find("lab", secret=b"s", curve_dir=tmp_path, tenant="blue", environ=environ)
    assert (given.tenant, given.secret, given.curve_dir) == ("blue", b"s", tmp_path)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("[other]\n", "a daemon in .*or one of other"),
        ("[lab]\nendpont = 'x'\n", "unknown setting 'endpont'.*did you mean 'endpoint'"),
        ("[lab]\nendpoint = 7\n", "endpoint is 7.*text in quotes"),
        ("[lab]\nfabric = 'zmq'\n", "unknown setting 'fabric'"),
    ],
)
def test_a_wrong_entry_is_one_line(entry: str, said: str, environ: dict[str, str]) -> None:
    Path(environ["OFFSTAGE_DAEMONS"]).write_text(entry)
    with pytest.raises(BadInput, match=said):
        Endpoint.find("lab", environ=environ)


@pytest.mark.parametrize("value", [0, -1, 1e12, float("inf"), float("nan"), True, None, "5"])
def test_a_time_that_no_clock_takes_is_one_line(value: object) -> None:
    """Is a bound that is none refused at the start, and not when the first wait begins?"""
    for name in ("timeout_s", "patience_s"):
        with pytest.raises(BadInput, match=f"{name} is .*write seconds above 0, at most 86,400"):
            Endpoint.of_engine({name: value})


def test_nothing_else_makes_a_control_connection() -> None:
    made = [
        str(path.relative_to(ROOT))
        for folder in ("host", "testbeds")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"(?<![\w.])Control\(", path.read_text(encoding="utf-8"))
    ]
    assert made == ["host/endpoint.py"]
