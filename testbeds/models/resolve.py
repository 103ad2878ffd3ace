"""What `--model` may name: a folder in Hugging Face's format, a GGUF file, or a known model.

A path that exists is taken as one; anything else is a name. Whatever it is, what comes back is a
folder in Hugging Face's format, so that nothing else needs to know.
"""

from pathlib import Path

from offstage.bindings.errors import BadInput
from offstage.testbeds.models.convert import folder_of
from offstage.testbeds.models.kept import believed, models_folder
from offstage.testbeds.models.known import KNOWN
from offstage.testbeds.progress import Progress, Silent

__all__ = ["resolve"]


def resolve(model: str | Path, progress: Progress | None = None) -> Path:
    """The folder of a model, which is made now for a GGUF file that is new. BadInput for what is
    none, for a known model that is not in the cache, and as `folder_of`."""
    path = Path(model)
    if path.is_dir():
        return path
    if path.is_file():
        return folder_of(path, progress or Silent())
    if str(model) not in KNOWN:
        raise BadInput(
            "no such folder, GGUF file or known model",
            str(model),
            f"give a path, or one of {', '.join(KNOWN)} (offstage models list)",
        )
    known = KNOWN[str(model)]
    folder = models_folder() / known.name
    believed(folder, known.get)
    return folder
