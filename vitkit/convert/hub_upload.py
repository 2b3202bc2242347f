"""Upload of a model folder to the hub of Hugging Face, with a model card made from its run."""

import shutil
import textwrap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vitkit.bundle.folder import FILES, OPTIONAL_FILES, list_files
from vitkit.convert.model_card import make_card
from vitkit.convert.open import open_model
from vitkit.data import tokenizer
from vitkit.models.parts import get_inputs
from vitkit.support.errors import format_few

CARD = "README.md"


def push(
    model: str | Path,
    repository: str,
    *,
    private: bool = False,
    revision: str | None = None,
    license: str | None = None,
    overwrite: bool = False,
) -> str:
    """Upload a model folder to USER/NAME on the hub and return the address; `open_model("hf:USER/NAME")` opens it.

    A missing repository or branch is created. A README.md that is there already stays as it is.

    Args:
        revision: a branch (default: main).
        license: the hub's name of it, such as apache-2.0 (default: none is stated).
        overwrite: replace a model that is there already, by a new commit; files that are not of a model stay.
    """
    with TemporaryDirectory() as folder:
        files = prepare_upload(model, repository, Path(folder), license)
        return upload(files, repository, private, revision, overwrite=overwrite)


def prepare_upload(model: str | Path, repository: str, folder: Path, license: str | None = None) -> Path:
    """Write all files to upload to an empty folder and return it. Raises: ValueError for a faulty model folder."""
    check_repository_name(repository)
    if not (Path(model) / FILES[0]).is_file():
        raise ValueError(f"model must be a model folder, got {model}")
    bundle = open_model(model)
    texts = tokenizer.format_tokenizer(bundle.tokenizer) if bundle.tokenizer else ()
    for name in {*list_files(get_inputs(bundle.model)), *texts}:
        shutil.copyfile(Path(model) / name, folder / name)
    make_card(bundle, Path(model), repository, license).save(folder / CARD)
    return folder


def check_repository_name(repository: str) -> None:
    """Raise ValueError for a name that the hub refuses."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise ValueError(
            f"repository must be USER/NAME, got {repository}: {textwrap.shorten(str(error), 200)}"
        ) from None


def list_outdated(folder: Path) -> list[str]:
    """Return the names of files that an earlier model may have and the model of this folder does not."""
    return [name for name in OPTIONAL_FILES if not (folder / name).exists()]


def upload(
    folder: Path, repository: str, private: bool, revision: str | None, hub: Any = None, *, overwrite: bool = False
) -> str:
    """Upload a folder and return the address. Args: hub: an HfApi, or a stand-in.

    Raises: ValueError, one line, for a missing token, no network, what the hub refuses, or files that are there.
    """
    from huggingface_hub import HfApi, get_token

    if get_token() is None:
        raise ValueError("push must have a token of the hub, got none; run `hf auth login`, or set HF_TOKEN")
    hub = hub or HfApi(library_name="vitkit")
    try:
        where = hub.create_repo(repository, private=private, exist_ok=True)
        if revision:
            hub.create_branch(where.repo_id, branch=revision, exist_ok=True)
        present = {path.name for path in folder.iterdir()} & {*hub.list_repo_files(where.repo_id, revision=revision)}
        if present <= {CARD} or overwrite:
            hub.upload_folder(
                repo_id=where.repo_id,
                folder_path=folder,
                revision=revision,
                commit_message="Upload a vitkit model",
                ignore_patterns=[CARD] if CARD in present else None,
                delete_patterns=list_outdated(folder) if present >= {*FILES} else None,
            )
    except Exception as error:  # of the network, of permissions: dozens of kinds
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 300)
        raise ValueError(f"{repository} could not be uploaded to huggingface.co: {reason}") from None
    if not (present <= {CARD} or overwrite):
        raise ValueError(
            f"repository must hold no model, got {repository}, which has {format_few(sorted(present))}; "
            "add --overwrite to replace it by a new commit"
        )
    return str(where)
