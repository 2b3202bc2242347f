"""`vitkit export --to`: a model in the layout of another library, which loads it strictly and gives equal numbers."""

from pathlib import Path

from vitkit.foreign.told import Written
from vitkit.support.files import new_folder

LAYOUTS = ("timm", "hf", "mae", "openclip")


def export_to(model: str | Path, out: str | Path, to: str) -> Written:
    """Write a model to a new folder in the layout of timm, hf (transformers), mae or openclip, or nothing at all.

    Args: model: a model folder, or whatever `vitkit import` takes and describes itself.
    Raises: ValueError with all that the layout cannot hold, or for outputs that are not the model's.
    """
    from vitkit.foreign.outgoing import write
    from vitkit.foreign.sources import imported

    with new_folder(Path(out)) as folder:
        return write(to, imported(model), folder)


def explained(out: Path, written: Written) -> str:
    files = ", ".join(sorted(path.name for path in out.iterdir()))
    found = "" if written.difference is None else f", largest difference {written.difference:.1e}"
    return "\n".join([f"{out}: {files}{found}", *(note.replace("DIR", str(out)) for note in written.notes)])
