"""Repositories of the hub of Hugging Face, fetched into its cache and read from there as local folders."""

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

from vitkit.bundle.folder import FILES, INPUT_FILES

DESCRIPTIONS = (
    *(name for name in (*FILES, *INPUT_FILES.values()) if name != "model.safetensors"),
    *("config.json", "preprocessor_config.json", "processor_config.json", "open_clip_config.json", "*.index.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json"),
    *("spiece.model", "tokenizer.model", "source.spm", "vocab.txt", "merges.txt"),
)
# Patterns of files with weights. Of each repository the first kind that it has is fetched, so pickles come last.
HF_WEIGHTS = ("model.safetensors", "model-?????-of-?????.safetensors")
HF_PICKLES = ("pytorch_model.bin", "pytorch_model-?????-of-?????.bin")
OPENCLIP_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors")
OPENCLIP_PICKLES = ("open_clip_pytorch_model.bin",)
WEIGHT_KINDS = (HF_WEIGHTS, OPENCLIP_WEIGHTS, HF_PICKLES, OPENCLIP_PICKLES)


def download_snapshot(source: str, name: str, revision: str, patterns: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=[*patterns]))
    except Exception as error:  # of the network, of names, of permissions: dozens of kinds
        unreachable = isinstance(error, LocalEntryNotFoundError) and not isinstance(error.__cause__, HfHubHTTPError)
        reason = "no network, and not in the cache" if unreachable else f"{type(error).__name__}: {error}"
        reason = textwrap.shorten(reason, 300)
        raise ValueError(
            f"{source} must be on the hub or in its cache, tried huggingface.co/{name}: {reason}"
        ) from None


def fetch_repository(
    source: str,
    repository: str,
    kinds: Sequence[Sequence[str]] = WEIGHT_KINDS,
    fetch: Callable[..., Path] = download_snapshot,
) -> Path:
    """Fetch the needed files of a repository, NAME or NAME@REVISION, and return their folder.

    A local folder is returned as it is.

    Args:
        source: the user's name for it, with which errors start.
        kinds: patterns of files with weights; the first kind that matches is fetched.
    Raises: ValueError of one line.
    """
    if not repository.partition("@")[0]:
        raise ValueError(f"{source} must name a repository")
    folder = Path(repository).expanduser()
    if folder.is_dir():
        return folder
    name, _, revision = repository.partition("@")
    for patterns in kinds:
        folder = fetch(source, name, revision, [*DESCRIPTIONS, *patterns])
        if any(any(folder.glob(pattern)) for pattern in patterns):
            break
    return folder
