"""Folders that describe themselves: of transformers, open_clip and timm, as their hubs have them."""

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from vitkit.convert import hf, openclip
from vitkit.foreign.files import WEIGHTS, Held, tensors, weights_in
from vitkit.foreign.timm import of_timm
from vitkit.foreign.told import Imported, Ledger, Told, described_by, in_channels, named, outputs_of, preprocessed
from vitkit.weights import blaming

CLIP_WEIGHTS = ("open_clip_model", "open_clip_pytorch_model")
DESCRIPTIONS = ("config.json", "open_clip_config.json")


def of_folder(source: str, folder: Path, told: Told) -> Imported:
    """What a folder holds, by the description in it. Raises: ValueError."""
    config = folder / "config.json"
    if config.is_file() and "architecture" in read(config):
        return of_timm(source, str(folder), told)
    if config.is_file() and "model_type" in read(config):
        return of_hf(source, folder, tensors(weights_in(folder, WEIGHTS)), told)
    if (folder / "open_clip_config.json").is_file():
        return of_openclip(source, folder, tensors(weights_in(folder, CLIP_WEIGHTS)), told)
    raise ValueError(
        f"{source} must be a folder with a config.json of transformers or timm, or an open_clip_config.json; "
        "a file of weights is named itself"
    )


def read(path: Path) -> dict[str, Any]:
    with blaming(path):
        held = json.loads(path.read_text("utf-8"))
        if not isinstance(held, dict):
            raise ValueError(f"must hold names and values, got {held!r:.80}")
        return held


def of_hf(source: str, folder: Path, held: Held, told: Told) -> Imported:
    """The description of a folder, and the tensors, in it or elsewhere."""
    config = read(folder / "config.json")
    with blaming(folder / "config.json"):
        described, names = hf.describe(config), hf.classes(config)
    with blaming(Path(source)):
        beside = hf.left_out(held.state, config)
        state = hf.convert(held.state, config)
    state = {name: state[name] for name in state if not any(fnmatchcase(name, wild) for wild in beside.patterns)}
    notes = [*held.notes, *beside.notes]
    classes, numbered = named(told, outputs_of(described), names)
    size = tuple(described["init_args"]["image_size"])
    told = in_channels(told, described["init_args"]["channels"])
    if (path := folder / "preprocessor_config.json").is_file():
        pictures, kind = read(path), config["model_type"]
        with blaming(path):
            own, more = hf.preprocess(pictures, kind), hf.preprocess_notes(pictures, kind)
        preprocess, changes = described_by(source, told._replace(like=None), own)
        notes += [*more, *changes]
    else:
        ledger = Ledger()
        preprocess = preprocessed(ledger, told, size)
        ledger.close(f"{source}, without a preprocessor_config.json,")
        notes += ledger.notes
    return Imported(described, state, preprocess, classes, (*notes, *numbered))


def of_openclip(source: str, folder: Path, held: Held, told: Told) -> Imported:
    config = read(path := folder / "open_clip_config.json")
    match config:
        case {"model_cfg": {"vision_cfg": {}, "embed_dim": int()} as model}:
            pictures = config.get("preprocess_cfg") or {}
            if not isinstance(pictures, Mapping):
                raise ValueError(f"{path}: preprocess_cfg must hold names and values, got {pictures!r:.80}")
            return of_tower(source, held, model, pictures, told)
    raise ValueError(f"{path}: model_cfg must hold vision_cfg and embed_dim, got {config.get('model_cfg')!r:.80}")


def of_tower(source: str, held: Held, model: Mapping[str, Any], pictures: Mapping[str, Any], told: Told) -> Imported:
    """The image tower of a model of open_clip."""
    if told.classes:
        raise ValueError(f"{source} has an embedding for its output, and no classes; leave out --classes")
    tower = {name: tensor for name, tensor in held.state.items() if name.startswith("visual.")}
    notes = [*held.notes]
    if beside := len(held.state) - len(tower):
        notes.append(f"{beside} tensors beside the image tower are left out")
    with blaming(Path(source)):
        described, state = openclip.describe(tower, model), openclip.convert(tower, model)
        own, more = openclip.preprocess({"size": tuple(described["init_args"]["image_size"]), **pictures})
    told = in_channels(told, described["init_args"].get("channels", 3))
    preprocess, changes = described_by(source, told._replace(like=None), own)
    return Imported(described, state, preprocess, (), (*notes, *more, *changes))


def with_description_of(path: Path, held: Held, told: Told) -> Imported:
    """A file of one of these layouts, with the folder that --like names, or the one that it lies in."""
    folder = Path(told.like).expanduser() if told.like else path.parent
    if (folder / "config.json").is_file() and "model_type" in read(folder / "config.json"):
        return of_hf(str(path), folder, held, told)
    if (folder / "open_clip_config.json").is_file():
        return of_openclip(str(path), folder, held, told)
    if told.like and told.like.startswith("openclip:"):
        from vitkit.foreign.openclip import told_by

        model, pictures = told_by(told.like)
        return of_tower(str(path), held, model, pictures, told)
    raise ValueError(
        f"{path} must lie beside one of {', '.join(DESCRIPTIONS)}, which say what its tensors do not; "
        "or name a folder with one, or openclip:NAME, by --like"
    )
