"""Class names and templates as a command line gives them, and their embeddings, kept for the next time."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from vitkit.bundle.bundle import Bundle, get_tokenizer
from vitkit.bundle.fingerprint import compute_fingerprint
from vitkit.inference.embeddings import Classes, encode_classes
from vitkit.models.parts import require_pair_model
from vitkit.support.errors import suggest
from vitkit.support.files import replace_file
from vitkit.support.progress import make_progress_bar

PHOTO = ("a photo of a {}.",)  # https://arxiv.org/abs/2103.00020, section 3.1.4
IMAGENET, SIMPLE = "imagenet", "simple"


def parse_class_names(given: Sequence[str]) -> tuple[str, ...]:
    """Names, a file with one a line, or those of ImageNet-1k in the order of its sorted folders."""
    names = tuple(given)
    if names == (IMAGENET,):
        from open_clip import IMAGENET_CLASSNAMES

        return tuple(IMAGENET_CLASSNAMES)
    if len(names) == 1:
        names = lines(Path(names[0]), "classes must be at least two names, a file with one a line, or imagenet")
    if len(names) < 2 or not all(name.strip() for name in names):
        raise ValueError(f"classes must be at least two names, none of them empty, got {list(names)}")
    return names


def templates_of(given: Sequence[str]) -> tuple[str, ...]:
    """Templates, a file with one a line, the 80 of CLIP for ImageNet, or the 7 of them that do as well."""
    texts = tuple(given)
    if texts in ((IMAGENET,), (SIMPLE,)):
        import open_clip

        known = open_clip.OPENAI_IMAGENET_TEMPLATES if texts == (IMAGENET,) else open_clip.SIMPLE_IMAGENET_TEMPLATES
        return tuple(template("{}") for template in known)
    if len(texts) == 1 and "{" not in texts[0]:
        rule = f"templates must hold {{}} for the class, or be a file of such lines, {IMAGENET} or {SIMPLE}"
        texts = lines(Path(texts[0]), rule, suggest(texts[0], (IMAGENET, SIMPLE)))
    return check_templates(texts)


def check_templates(templates: Sequence[str]) -> tuple[str, ...]:
    """Raises: ValueError that lists the templates without exactly one {}."""
    if wrong := [template for template in templates if template.count("{}") != 1]:
        raise ValueError(f"templates must hold exactly one {{}}, which stands for the class, got {wrong[:10]}")
    if not templates:
        raise ValueError("templates must be at least one, got none")
    return tuple(templates)


def lines(path: Path, rule: str, hint: str = "") -> tuple[str, ...]:
    """Those of a file of text that are not empty."""
    try:
        text = path.expanduser().read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ValueError(f"{rule}, got {str(path)!r} ({reason}){hint}") from None
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Names to tell classes apart by: of equal ones, as ImageNet has two pairs, the second is called "name (2)"."""
    seen: Counter[str] = Counter()
    found: list[str] = []
    for name in names:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return tuple(found) if len(set(found)) == len(found) else distinct(found)


def embedded(bundle: Bundle, names: Sequence[str], templates: Sequence[str], *, cache: bool = True) -> Classes:
    """On the model's device. Args: cache: look for them in `cache_folder`, and leave them there, if it is `itself`.

    Raises: ValueError for a model that gives what is no number.
    """
    model = require_pair_model(bundle.model)
    cache = cache and itself(model)
    path = cache_folder() / f"{key(bundle, names, templates)}.safetensors" if cache else None
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)  # now rather than after minutes of encoding
        if (found := kept(path, (len(names), model.text.outputs))) is not None:
            return found._replace(embeddings=found.embeddings.to(model.log_scale.device))
    with make_progress_bar(len(names) * len(templates), "prompts", " prompts") as progress:
        found = encode_classes(model, get_tokenizer(bundle), names, templates, tell=progress.update)
    if not found.embeddings.isfinite().all():
        raise ValueError(f"model must give finite numbers, got others for the classes; {bundle.source} is damaged")
    if path is not None:
        with replace_file(path) as beside:
            save_file({"classes": found.embeddings.cpu().contiguous()}, beside, metadata={"cut": str(found.cut)})
    return found


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/vitkit/classes, by default in ~/.cache; it may be deleted at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitkit" / "classes"


def itself(model: nn.Module) -> bool:
    """Whether it gives what its weights say: without dropout, and without hooks, as of `vitkit.edit`."""
    return not any(part.training or part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def key(bundle: Bundle, names: Sequence[str], templates: Sequence[str]) -> str:
    model = compute_fingerprint(bundle._replace(class_names=()))
    return hashlib.blake2b(json.dumps([model, [*names], [*templates]]).encode(), digest_size=16).hexdigest()


def kept(path: Path, shape: tuple[int, int]) -> Classes | None:
    """What such a file holds, if it is there and whole."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            classes, cut = file.get_tensor("classes"), int(file.metadata()["cut"])
    except (SafetensorError, KeyError, ValueError, TypeError):
        return None
    return Classes(classes, cut) if tuple(classes.shape) == shape else None
