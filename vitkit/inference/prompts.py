"""Class names and templates of the command line, and a cache of their embeddings."""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from vitkit.bundle.bundle import Bundle, get_tokenizer
from vitkit.bundle.fingerprint import compute_fingerprint
from vitkit.inference.embeddings import ClassEmbeddings, encode_classes
from vitkit.models.parts import require_pair_model
from vitkit.support.errors import suggest
from vitkit.support.files import replace_file
from vitkit.support.names import split_lines
from vitkit.support.progress import make_progress_bar

# Between the words of RedSquare and USBStick, not of iPod; the hyphen of golden-retriever, not of 1-2.
CAPITALS, HYPHENS = r"(?<=[a-z]{2})(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", r"(?<=[^\W\d_])-(?=[^\W\d_])"
PHOTO = ("a photo of a {}.",)  # https://arxiv.org/abs/2103.00020, section 3.1.4
IMAGENET, SIMPLE = "imagenet", "simple"


def parse_class_names(given: Sequence[str]) -> tuple[str, ...]:
    """Return class names: as given, of a file with one a line, or of ImageNet-1k in the order of its sorted folders."""
    names = tuple(given)
    if names == (IMAGENET,):
        from open_clip import IMAGENET_CLASSNAMES

        return tuple(IMAGENET_CLASSNAMES)
    if len(names) == 1:
        names = read_lines(Path(names[0]), "classes must be at least two names, a file with one a line, or imagenet")
    if len(names) < 2 or not all(name.strip() for name in names):
        raise ValueError(f"classes must be at least two names, none of them empty, got {list(names)}")
    return names


def split_words(names: Sequence[str]) -> tuple[str, ...]:
    """Return class names as a caption has them: "red square" for red_square, red-square and RedSquare.

    Hyphens and capitals stay if a name has a space, as in ImageNet's list: its T-shirt and iPod are words already.
    """
    spaced = [" ".join(name.replace("_", " ").split()) if "_" in name.strip("_") else name for name in names]
    return tuple(spaced if any(" " in name for name in names) else map(split_compound, spaced))


def split_compound(name: str) -> str:
    """Split a name at hyphens and at capitals; words that only began with a capital because of that are lowered."""
    name = re.sub(HYPHENS, " ", name)
    words = re.sub(CAPITALS, " ", name).split(" ")
    return name if len(words) == len(name.split(" ")) else " ".join(w.lower() if w.istitle() else w for w in words)


def parse_templates(given: Sequence[str]) -> tuple[str, ...]:
    """Return templates: as given, of a file with one a line, CLIP's 80 for ImageNet, or the 7 that do as well."""
    texts = tuple(given)
    if texts in ((IMAGENET,), (SIMPLE,)):
        import open_clip

        templates = open_clip.OPENAI_IMAGENET_TEMPLATES if texts == (IMAGENET,) else open_clip.SIMPLE_IMAGENET_TEMPLATES
        return tuple(template("{}") for template in templates)
    if len(texts) == 1 and "{" not in texts[0]:
        rule = f"templates must hold {{}} for the class, or be a file of such lines, {IMAGENET} or {SIMPLE}"
        texts = read_lines(Path(texts[0]), rule, suggest(texts[0], (IMAGENET, SIMPLE)))
    return check_templates(texts)


def check_templates(templates: Sequence[str]) -> tuple[str, ...]:
    """Return the templates. Raises: ValueError that lists those without exactly one {}."""
    if invalid := [template for template in templates if template.count("{}") != 1]:
        raise ValueError(f"templates must hold exactly one {{}}, which stands for the class, got {invalid[:10]}")
    if not templates:
        raise ValueError("templates must be at least one, got none")
    return tuple(templates)


def read_lines(path: Path, rule: str, hint: str = "") -> tuple[str, ...]:
    """Return the lines of a text file that are not empty. Args: rule, hint: of the error if it cannot be read."""
    try:
        text = path.expanduser().read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ValueError(f"{rule}, got {str(path)!r} ({reason}){hint}") from None
    return tuple(line.strip() for line in split_lines(text) if line.strip())


def embed_classes(
    bundle: Bundle, names: Sequence[str], templates: Sequence[str], *, cache: bool = True
) -> ClassEmbeddings:
    """Return embeddings of classes on the model's device.

    Args: cache: read and keep them in `get_cache_folder()`, unless dropout or hooks change the model's outputs.
    Raises: ValueError if they are not finite.
    """
    model = require_pair_model(bundle.model)
    cache = cache and is_unmodified(model)
    path = get_cache_folder() / f"{make_cache_key(bundle, names, templates)}.safetensors" if cache else None
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)  # an error here comes before minutes of encoding
        if (classes := read_cache(path, (len(names), model.text.outputs))) is not None:
            return classes._replace(embeddings=classes.embeddings.to(model.log_scale.device))
    with make_progress_bar(len(names) * len(templates), "prompts", " prompts") as progress:
        classes = encode_classes(model, get_tokenizer(bundle), names, templates, advance=progress.update)
    if not classes.embeddings.isfinite().all():
        raise ValueError(f"model must give finite numbers, got others for the classes; {bundle.source} is damaged")
    if path is not None:
        tensors, metadata = {"classes": classes.embeddings.cpu().contiguous()}, {"cut": str(classes.cut)}
        with replace_file(path) as temporary:
            save_file(tensors, temporary, metadata=metadata)
    return classes


def get_cache_folder() -> Path:
    """Return $XDG_CACHE_HOME/vitkit/classes, by default in ~/.cache; it may be deleted at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitkit" / "classes"


def is_unmodified(model: nn.Module) -> bool:
    """Return whether outputs depend on the weights alone: no dropout, and no hooks, as of `vitkit.edit`."""
    return not any(part.training or part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def make_cache_key(bundle: Bundle, names: Sequence[str], templates: Sequence[str]) -> str:
    model = compute_fingerprint(bundle._replace(class_names=()))
    return hashlib.blake2b(json.dumps([model, [*names], [*templates]]).encode(), digest_size=16).hexdigest()


def read_cache(path: Path, shape: tuple[int, int]) -> ClassEmbeddings | None:
    """Return the embeddings in a file of the cache; None if it is missing, damaged or of another shape."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            classes, cut = file.get_tensor("classes"), int(file.metadata()["cut"])
    except (SafetensorError, KeyError, ValueError, TypeError):
        return None
    return ClassEmbeddings(classes, cut) if tuple(classes.shape) == shape else None
