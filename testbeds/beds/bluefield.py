"""A real pair: a DPU reached by ssh, and this machine as the host.

Setup is a list of steps. Each step is one shell command with its input and the destination of
its output. `--dry-run` prints the steps; otherwise they run in order and the first failure stops
the rest. A step skips work that is already done, so `up` can be repeated. The DPU gets the
wheel, the systemd unit and its user, huge pages, keys and secrets; the files that this machine
needs are copied back.
"""

import shlex
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tomli_w

from offstage.bindings import settings
from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.settings import Settings, about, within
from offstage.host.endpoint import Endpoint
from offstage.testbeds.beds.daemon import offstage_words
from offstage.testbeds.beds.local import TENANT, DaemonSizes, LocalBed

__all__ = [
    "Dpu",
    "Far",
    "Step",
    "down_steps",
    "execute",
    "read_inventory",
    "shown",
    "up_steps",
    "wait",
]

PRESETS = Path(__file__).resolve().parents[1] / "presets/systemd"
STEP_S = 900.0
ANSWER_S = 120.0


class Dpu(Settings, frozen=True):
    """The table `[dpu]` of an inventory."""

    ssh: Annotated[str, about("ssh destination of the DPU, such as root@bluefield")] = ""
    options: Annotated[str, about("further arguments of ssh, in shell syntax")] = ""
    address: Annotated[str, about("address of the DPU's ports, as seen from this machine")] = ""
    wheel: Annotated[
        str, about("wheel for the DPU's processor; empty: already installed there")
    ] = ""
    prefix: Annotated[str, about("folder of the virtual environment on the DPU")] = "/opt/offstage"
    etc: Annotated[str, about("folder of configuration, keys and secrets on the DPU")] = (
        "/etc/offstage"
    )
    units: Annotated[str, about("folder of systemd units on the DPU")] = "/etc/systemd/system"
    sysusers: Annotated[str, about("folder of systemd users on the DPU")] = "/etc/sysusers.d"
    user: Annotated[str, about("user of the daemon")] = "offstage"
    runtime_dir: Annotated[str, about("the daemon's runtime directory")] = "/run/offstage"
    store: Annotated[str, about("file or drive of the daemon's store")] = (
        "/var/lib/offstage/store.ofs"
    )
    port: Annotated[
        int, within(1, 65_534, "port of the control socket; the fabric uses the next port")
    ] = 7411
    huge_pages: Annotated[int, within(0, 1 << 20, "pages of 2 MiB to reserve; 0: unchanged")] = 0


@dataclass(frozen=True)
class Step:
    """One command on `place` ("dpu" or "host"); `given` is its input, `kept` the file for its
    output."""

    place: str
    command: str
    given: bytes | Path | None = None
    kept: Path | None = None


@dataclass(frozen=True)
class Far:
    """The pair as a run uses it."""

    bed: str
    out: Path
    dpu: Dpu

    @property
    def endpoint(self) -> str:
        """The daemon's control port."""
        return f"tcp://{self.dpu.address}:{self.dpu.port}"

    @property
    def operator(self) -> Endpoint:
        """The endpoint with the copied operator's secret."""
        return Endpoint(
            self.endpoint,
            "operator",
            name="testbed",
            secret=self.out / "operator.secret",
            curve_dir=self.out / "keys",
        )

    @property
    def real(self) -> dict[str, str]:
        """Which parts are real."""
        return {
            "gpu": "not real: this machine's processor decodes",
            "host software": "real",
            "dpu": f"real: the machine at {self.dpu.address}",
            "dpu software": "real",
            "link": "real: the network between them, by messages",
            "drive": f"real: {self.dpu.store} there",
        }

    def host(self, *words: str) -> list[str]:
        """The words of `offstage host run` on this machine, with `more` appended."""
        way = ["--endpoint", self.endpoint, "--tenant", TENANT, "--fabric", "zmq"]
        way += ["--secret", str(self.out / "tenant.secret"), "--curve-dir", str(self.out / "keys")]
        return offstage_words("host", "run", *way, *words)


def read_inventory(path: Path) -> Dpu:
    """BadInput: the file does not exist, has no table [dpu], or names no machine."""
    tables = settings.read_toml(path, "write the inventory, or name another --inventory")
    settings.check_known(
        next((name for name in tables if name != "dpu"), "dpu"), ["dpu"], str(path), "table"
    )
    dpu = settings.read_table(Dpu(), tables.get("dpu", {}), f"{path}: [dpu]")
    for name in ("ssh", "address"):
        if not getattr(dpu, name):
            raise BadInput(f"{name} is missing", f"{path}: [dpu]", "name the DPU")
    if dpu.wheel and not Path(dpu.wheel).is_file():
        raise BadInput("no such wheel", dpu.wheel, "build it, or leave wheel out")
    return dpu


def up_steps(dpu: Dpu, out: Path, sizes: DaemonSizes) -> list[Step]:
    """The steps from a bare DPU to a running daemon."""
    return [
        *_installed(dpu),
        *_keys(dpu, out),
        *_configured(dpu, out, sizes),
        *_looked_at(dpu, out),
        Step("dpu", "systemctl restart offstage-dpu"),
    ]


def down_steps(dpu: Dpu, out: Path) -> list[Step]:
    """Stop the daemon, and fetch its log."""
    return [
        Step("dpu", "systemctl stop offstage-dpu"),
        Step("dpu", "journalctl --unit offstage-dpu --no-pager --lines 2000", kept=out / "dpu.log"),
    ]


def _installed(dpu: Dpu) -> list[Step]:
    prefix = shlex.quote(dpu.prefix)
    steps = []
    if dpu.wheel:
        name = shlex.quote(f"/tmp/{Path(dpu.wheel).name}")
        steps = [
            Step("dpu", f"test -x {prefix}/bin/pip || python3 -m venv {prefix}"),
            Step("dpu", f"cat > {name}", Path(dpu.wheel)),
            Step("dpu", f"{prefix}/bin/pip install --quiet {name}"),
        ]
    unit = (PRESETS / "offstage-dpu.service").read_text(encoding="utf-8")
    for shipped, own in (
        ("/opt/offstage", dpu.prefix),
        ("/etc/offstage", dpu.etc),
        ("/run/offstage", dpu.runtime_dir),
        ("User=offstage", f"User={dpu.user}"),
        ("Group=offstage", f"Group={dpu.user}"),
    ):
        unit = unit.replace(shipped, own)
    users = (PRESETS / "offstage.sysusers.conf").read_bytes()
    sysusers = shlex.quote(dpu.sysusers)  # a minimal Debian has no such folder
    steps += [
        Step("dpu", f"cat > {shlex.quote(dpu.units)}/offstage-dpu.service", unit.encode()),
        Step("dpu", f"mkdir -p {sysusers} && cat > {sysusers}/offstage.conf", users),
        Step("dpu", "systemd-sysusers && systemctl daemon-reload"),
    ]
    if dpu.huge_pages:
        steps.append(Step("dpu", f"sysctl --quiet --write vm.nr_hugepages={dpu.huge_pages}"))
    return steps


def _keys(dpu: Dpu, out: Path) -> list[Step]:
    etc, offstage = shlex.quote(dpu.etc), f"{shlex.quote(dpu.prefix)}/bin/offstage"
    own = shlex.join(offstage_words())
    keys = out / "keys"
    made = f"test -e {etc}/keys/server.key_secret || {offstage} keys make server {etc}/keys"
    mine = f"test -e {keys}/client.key_secret || {own} keys make client {keys}"
    steps = [Step("dpu", f"umask 077; mkdir -p {etc}"), Step("dpu", made), Step("host", mine)]
    for name in ("tenant", "operator"):
        file = f"{etc}/{name}.secret"
        steps += [
            Step("dpu", f"umask 077; test -e {file} || openssl rand -hex 32 > {file}"),
            Step("dpu", f"cat {file}", kept=out / f"{name}.secret"),
        ]
    return [
        *steps,
        Step("dpu", f"cat {etc}/keys/server.key", kept=keys / "server.key"),
        Step("dpu", f"cat > {etc}/testbed.key", keys / "client.key"),
        Step("dpu", f"{offstage} keys add {etc}/keys {etc}/testbed.key --name testbed"),
    ]


def _configured(dpu: Dpu, out: Path, sizes: DaemonSizes) -> list[Step]:
    sections = LocalBed(out).sections(sizes, {"path": dpu.store})
    sections["daemon"] = {
        "endpoint": f"tcp://{dpu.address}:{dpu.port}",
        "fabric_endpoint": f"tcp://{dpu.address}:{dpu.port + 1}",
        "curve_dir": f"{dpu.etc}/keys",
        "operator_secret_file": f"{dpu.etc}/operator.secret",
    }
    sections["tenant"][0]["secret_file"] = f"{dpu.etc}/tenant.secret"
    etc, user = shlex.quote(dpu.etc), shlex.quote(dpu.user)
    return [
        Step("dpu", f"cat > {etc}/dpu.toml", tomli_w.dumps(sections).encode()),
        Step("dpu", f"chown -R {user}: {etc}"),
    ]


def _looked_at(dpu: Dpu, out: Path) -> list[Step]:
    own = shlex.join(offstage_words())
    there = f"{shlex.quote(dpu.prefix)}/bin/offstage"
    return [
        Step(
            place,
            f"{offstage} doctor --format json || [ $? -eq 1 ]",
            kept=out / f"doctor-{place}.json",
        )
        for place, offstage in (("dpu", there), ("host", own))
    ]


def words_of(dpu: Dpu, step: Step) -> list[str]:
    """The argument list with which this machine starts the command."""
    if step.place == "host":
        return ["sh", "-c", step.command]
    there = f"sh -c {shlex.quote(step.command)}"
    return ["ssh", "-o", "BatchMode=yes", *shlex.split(dpu.options), dpu.ssh, there]


def shown(dpu: Dpu, step: Step) -> str:
    """The step as a shell command with its redirections."""
    line = shlex.join(words_of(dpu, step))
    if isinstance(step.given, Path):
        line += f" < {shlex.quote(str(step.given))}"
    elif step.given is not None:
        line += f" <<'END'\n{step.given.decode()}END"
    return line + (f" > {shlex.quote(str(step.kept))}" if step.kept else "")


def execute(dpu: Dpu, step: Step) -> None:
    """Run the step. RunFailed with the last line of its output."""
    given = step.given.read_bytes() if isinstance(step.given, Path) else step.given or b""
    try:
        done = subprocess.run(
            words_of(dpu, step), input=given, capture_output=True, check=False, timeout=STEP_S
        )
    except FileNotFoundError:
        raise BadInput(
            "the program ssh is missing", "testbed bluefield", "apt-get install openssh-client"
        ) from None
    except subprocess.TimeoutExpired:
        raise RunFailed("timed out", step.command, f"run it by hand on {step.place}") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["it printed nothing"]
        raise RunFailed(
            f"{said[-1]} (on {step.place})", step.command, "fix it and repeat the command"
        )
    if step.kept is not None:
        step.kept.parent.mkdir(parents=True, exist_ok=True)
        step.kept.touch(mode=0o600)
        step.kept.write_bytes(done.stdout)


def wait(far: Far) -> None:
    """Wait until the daemon answers. BadInput with the last error after the timeout."""
    end = time.monotonic() + ANSWER_S
    while True:
        try:
            with far.operator.control(heartbeat=False):
                return
        except BadInput:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)
