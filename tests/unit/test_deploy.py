"""Do the presets for containers, Kubernetes and Ansible fit the daemon that they start?

What their own tools say of them is on docs/how-to/containers.md.
"""

import errno
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from offstage.bindings.units import parse_time
from offstage.dpu.config.idle import unused
from offstage.dpu.config.options import Daemon
from offstage.dpu.config.values import load
from offstage.testbeds.cli import build

PRESETS = Path(__file__).resolve().parents[2] / "testbeds/presets"
CONTAINERS, KUBERNETES = PRESETS / "containers", PRESETS / "kubernetes"
ROLE = PRESETS / "ansible/roles/offstage"
URING = {"io_uring_enter", "io_uring_register", "io_uring_setup"}


def texts(suffix: str) -> list[Path]:
    return sorted(path for path in PRESETS.rglob(f"*{suffix}") if path.is_file())


def documents(path: Path) -> list[Any]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def compose() -> dict[str, Any]:
    (found,) = documents(CONTAINERS / "compose.yml")
    return dict(found["services"])


def pod() -> dict[str, Any]:
    _, found = documents(KUBERNETES / "dpu.yml")
    return dict(found["spec"]["template"]["spec"])


def configs() -> dict[str, str]:
    """Each daemon's configuration; Ansible's as it is written without variables of an inventory."""
    (defaults,) = documents(ROLE / "defaults/main.yml")
    given = {**defaults, "offstage_address": "10.77.0.1"}
    written = re.sub(
        r"\{\{ (\w+)(?: \+ (\d+))? \}\}",
        lambda one: str(given[one[1]] + int(one[2]) if one[2] else given[one[1]]),
        (ROLE / "templates/dpu.toml").read_text(encoding="utf-8"),
    )
    plain = {one: (one / "dpu.toml").read_text("utf-8") for one in (CONTAINERS, KUBERNETES)}
    return {one.name: text for one, text in plain.items()} | {"ansible": written}


def test_every_file_is_of_its_language() -> None:
    paths = [*texts(".yml"), *texts(".json"), *texts(".toml")]
    assert len(paths) > 15
    for path in paths:
        if path.suffix == ".yml":
            assert documents(path), path
        elif path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
        elif "{{" not in (text := path.read_text(encoding="utf-8")) or path.name == "dpu.toml":
            tomllib.loads(text)


def test_a_daemon_takes_each_configuration(tmp_path: Path) -> None:
    """No key is unknown, and none is without effect."""
    for name, text in configs().items():
        (tmp_path / name).write_text(text)
        config = load(tmp_path / name, environ={})
        assert config.daemon.drain_timeout_ns == Daemon().drain_timeout_ns
        assert unused(config) == []


def test_what_stops_a_daemon_waits_longer_than_its_drain() -> None:
    """Compose, Kubernetes and systemd kill it after their grace, with write-back unfinished."""
    unit = (PRESETS / "systemd/offstage-dpu.service").read_text(encoding="utf-8")
    (of_unit,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    graces = [
        parse_time(compose()["dpu"]["stop_grace_period"], "compose.yml"),
        pod()["terminationGracePeriodSeconds"] * 10**9,
        int(of_unit) * 10**9,
    ]
    assert min(graces) >= 1.5 * Daemon().drain_timeout_ns


def test_the_profile_lets_in_io_uring_and_nothing_that_leaves_the_container() -> None:
    """tests/integration/test_seccomp.py loads it."""
    profile = json.loads((CONTAINERS / "seccomp.json").read_text(encoding="utf-8"))
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    refused = [one for one in profile["syscalls"] if one["action"] != "SCMP_ACT_ALLOW"]
    assert [(one["names"], one["errnoRet"]) for one in refused] == [(["clone3"], errno.ENOSYS)]
    allowed = [one for one in profile["syscalls"] if one not in refused]
    names = [name for one in allowed for name in one["names"]]
    assert set(names) >= URING
    assert len(names) - len(set(names)) == names.count("socket") - 1  # by family, else once each
    assert not {"bpf", "mount", "ptrace", "setns", "unshare", "keyctl"} & set(names)


def words_of_the_image() -> Iterator[list[str]]:
    """Each command that a container starts or is asked by."""
    image = (CONTAINERS / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    (entry,) = re.findall(r"^ENTRYPOINT (\[.*\])$", image, re.MULTILINE)
    (default,) = re.findall(r"^CMD (\[.*\])$", image, re.MULTILINE)
    (health,) = re.findall(r"^HEALTHCHECK .* CMD (\[.*\])$", image, re.MULTILINE)
    yield json.loads(entry) + json.loads(default)
    yield json.loads(health)
    yield ["offstage", *compose()["host"]["command"]]
    (container,) = pod()["containers"]
    yield ["offstage", *container["args"]]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        yield container[probe]["exec"]["command"]


def test_the_command_line_takes_what_containers_start() -> None:
    found = list(words_of_the_image())
    for program, name, *rest in found:
        assert program == "offstage"
        command: Any = typer.main.get_command(build([name]))
        words = [name, *rest]
        while hasattr(command, "commands"):
            name, *words = words
            command = command.commands[name]
        assert command.make_context(name, words).args == []
    assert len(found) == 7


def test_probes_and_hosts_come_to_where_the_daemon_is() -> None:
    """Runtime directory, control socket, users and secret of each side are those of the other."""
    near, far = (tomllib.loads(configs()[one]) for one in ("containers", "kubernetes"))
    status, host = list(words_of_the_image())[1:3]
    assert status[-1] == near["daemon"]["runtime_dir"]
    assert near["daemon"]["endpoint"] in host
    (tenant,) = near["tenant"]
    assert tenant["users"] == [compose()["host"]["user"].partition(":")[0]]
    assert host[host.index("--tenant") + 1] == tenant["name"]
    (container,) = pod()["containers"]
    assert container["livenessProbe"]["exec"]["command"][-1] == far["daemon"]["runtime_dir"]
    assert far["daemon"]["curve_dir"] in pod()["initContainers"][0]["args"][0]


def test_prometheus_scrapes_the_port_of_the_daemon() -> None:
    """By the shipped configuration, in the network namespace of the daemon."""
    (shipped,) = documents(PRESETS / "prometheus/prometheus.yml")
    (job,) = shipped["scrape_configs"]
    assert job["static_configs"] == [{"targets": [Daemon().metrics_endpoint]}]
    assert compose()["prometheus"]["network_mode"] == "service:dpu"
    token = job["authorization"]["credentials_file"]
    mounted = {tuple(one.split(":")[:2]) for one in compose()["prometheus"]["volumes"]}
    assert ("/etc/offstage/metrics.token", token) in mounted
    assert "metrics_endpoint" not in tomllib.loads(configs()["containers"])["daemon"]


def test_what_compose_and_the_role_take_from_other_presets_is_there() -> None:
    """They mount and copy the files of systemd, Prometheus and Grafana, and have no copies."""
    mounted = [
        Path(one.split(":")[0])
        for service in compose().values()
        for one in service.get("volumes", [])
        if one.startswith(("../", "./"))
    ]
    assert len(mounted) == 6
    assert [one for one in mounted if not (CONTAINERS / one).is_file()] == []
    tasks = "".join(path.read_text(encoding="utf-8") for path in ROLE.glob("tasks/*.yml"))
    units = re.findall(r"\{\{ role_path \}\}/([^\"]+)", tasks)
    assert len(units) == 3 and all((ROLE / one).is_file() for one in units)


def test_the_pod_is_confined_and_its_memory_is_its_own() -> None:
    spec = pod()
    assert spec["securityContext"]["runAsNonRoot"] is True
    profile = {"type": "Localhost", "localhostProfile": "offstage.json"}
    assert spec["securityContext"]["seccompProfile"] == profile
    for container in (*spec["containers"], *spec["initContainers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"] == container["resources"]["limits"]
    config = load(KUBERNETES / "dpu.toml", environ={})
    (container,) = spec["containers"]
    (pages,) = re.findall(r"^(\d+)Gi$", container["resources"]["limits"]["hugepages-2Mi"])
    assert int(pages) << 30 > config.arena.size_bytes
