"""Model folders, the portable format of a trained model: read strictly, written as a whole.

A folder holds config.yaml (class paths and numbers), classes.json and model.safetensors; for a model that reads images
preprocess.json, and for one that reads texts text.json and perhaps a vocabulary. It may come from a stranger: nothing
in it is executed, and nothing is allocated before the shapes in the header of the weights fit the model.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from safetensors.torch import load_file
from torch import nn

from vitkit.bundle import model_config
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.meta_device import refuse_meta_tensors, use_meta_device
from vitkit.bundle.weights import compare_shapes, get_shapes, read_header, refuse_tied, save_weights
from vitkit.data import tokenizer as data_tokenizer
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer
from vitkit.models.parts import find_context, find_image_channels, get_inputs
from vitkit.support.errors import prefix_errors
from vitkit.support.files import read_json, replace_file
from vitkit.support.names import escape_name, number_duplicates

FILES = ("config.yaml", "classes.json", "model.safetensors")  # of every model folder
INPUT_FILES = {"images": "preprocess.json", "texts": data_tokenizer.TEXT}  # of a model with this input
OPTIONAL_FILES = (*INPUT_FILES.values(), data_tokenizer.FILE, data_tokenizer.PIECES, data_tokenizer.NUMBERS)


def list_files(inputs: Collection[str]) -> list[str]:
    """Return the names of the files in the folder of a model with these inputs, without a vocabulary."""
    return [*FILES, *(name for kind, name in INPUT_FILES.items() if kind in inputs)]


def read_classes(folder: Path) -> tuple[tuple[str, ...], bool]:
    """Return the class names of a model folder, and whether it is multilabel: {"several": [names]}, else [names]."""
    with prefix_errors(folder / "classes.json") as path:
        match value := json.loads(path.read_text("utf-8")):
            case {"several": [*names]} | [*names] if all(isinstance(name, str) for name in names):
                return number_duplicates([*map(escape_name, names)]), isinstance(value, dict)
        raise ValueError(f"must be a list of names, or one called several, got {value!r:.80}")


def open_folder(folder: str | Path) -> Bundle:
    """Open a model folder. Raises: ValueError, one line, for any fault in it. Nothing in it is executed."""
    folder = Path(folder)
    if absent := [name for name in FILES if not (folder / name).is_file()]:
        reason = f"; it lacks {', '.join(absent)}" if folder.is_dir() else "; no such folder"
        raise ValueError(f"source must be a model folder, got {folder}{suggest_folder(folder) or reason}")
    class_names, multilabel = read_classes(folder)
    with prefix_errors(folder / "model.safetensors") as path:
        shapes = read_header(path)
    with prefix_errors(folder / "config.yaml") as path, use_meta_device(shapes):
        model = model_config.build_model(config := model_config.read_yaml(path))
    if problems := compare_inputs(model, [kind for kind, name in INPUT_FILES.items() if (folder / name).is_file()]):
        raise ValueError(f"source must be a model folder, got {folder}; {'; '.join(problems)}")
    preprocess = read_preprocess(folder, model)
    tokenizer = read_tokenizer(folder, model)
    with prefix_errors(folder / "model.safetensors") as path:
        if problems := compare_shapes(get_shapes(model.state_dict()), shapes):
            raise ValueError(f"{len(problems)} tensors do not fit config.yaml, the first: {problems[0]}")
        model.load_state_dict(load_file(path), assign=True)
    with prefix_errors(folder / "config.yaml"):
        refuse_meta_tensors(model)
    return Bundle(model.eval(), config, preprocess, class_names, multilabel, tokenizer, str(folder))


def suggest_folder(path: Path) -> str:
    """Return the suggestion of the model folder in a run, or beside a file such as last.ckpt; "" for other paths."""
    places = (path.parent / "model", path.parent) if path.is_file() else (path / "model",)
    if model := next((place for place in places if all((place / name).is_file() for name in FILES)), None):
        return f"; try {model}"
    if (path / "config.json").is_file():
        return f"; it is of another library: take hf:{path}"
    return f"; make one of a file of weights: vitkit import {path} --out DIR" if path.is_file() else ""


def compare_inputs(model: nn.Module | Callable[..., object], kinds: Collection[str]) -> list[str]:
    """Return a line for each file that is missing or surplus for the inputs of a model, or of a class of models.

    Args: kinds: the inputs whose files exist.
    """
    inputs, name = get_inputs(model), (model if isinstance(model, type) else type(model)).__name__
    return [
        f"it lacks {file}, as {name} reads {kind}" if kind in inputs else f"it has {file}, but {name} reads no {kind}"
        for kind, file in INPUT_FILES.items()
        if (kind in inputs) != (kind in kinds)
    ]


def read_preprocess(folder: Path, model: nn.Module) -> Preprocess | None:
    """Return the preprocessing of a model folder; None for a model that reads no images."""
    if "images" not in get_inputs(model):
        return None
    with prefix_errors(folder / INPUT_FILES["images"]) as path:
        preprocess = Preprocess.from_dict(json.loads(path.read_text("utf-8")))
        channels = find_image_channels(model)
        if channels not in (None, preprocess.channels):
            raise ValueError(f"must be for {channels} channels, got {preprocess.channels}")
    return preprocess


def read_tokenizer(folder: Path, model: nn.Module) -> Tokenizer | None:
    """Return the tokenizer of a model folder; None for a model that reads no texts.

    The vocabulary is opened later, since that imports a library and takes seconds.
    """
    with prefix_errors(folder / data_tokenizer.TEXT):
        tokenizer, context = Tokenizer.from_folder(folder), find_context(model)
        if tokenizer is not None and context is not None and tokenizer.context > context:
            raise ValueError(f"context must be at most the model's {context}, got {tokenizer.context}")
    return tokenizer


def save(folder: str | Path, bundle: Bundle) -> None:
    """Write a model folder: weights, config, class names, and the preprocessing and tokenizer that its inputs need.

    Raises: ValueError, before anything is written, if the config is of another model (as for a tower of a model), or if
    the preprocessing or the tokenizer is missing or surplus.
    """
    _, config, preprocess, class_names, multilabel, tokenizer, _ = bundle
    if not config:
        raise ValueError(f"bundle.config must describe bundle.model, got none for {type(bundle.model).__name__}")
    state = bundle.model.state_dict()
    with use_meta_device(get_shapes(state)):
        shapes = get_shapes(model_config.build_model(config).state_dict())
    if problems := compare_shapes(shapes, get_shapes(state)):
        raise ValueError(
            f"bundle.config must be of bundle.model, got {len(problems)} tensors that differ, the first: {problems[0]}"
        )
    refuse_tied(state)
    save_config(Path(folder), config, preprocess, class_names, multilabel, tokenizer)
    save_weights(Path(folder), state)


def save_config(
    folder: Path,
    config: Mapping[str, object],
    preprocess: Preprocess | None,
    class_names: Sequence[str],
    multilabel: bool = False,
    tokenizer: Tokenizer | None = None,
) -> None:
    """Write all files but the weights.

    Raises: ValueError for a folder that describes another model, which stays as it was, and for a preprocessing or a
    tokenizer that is missing or surplus for the inputs of the model.
    """
    if (kind := model_config.find_class(config.get("class_path"))) is not None:  # others cannot be opened
        values = {"images": preprocess, "texts": tokenizer}
        if problems := compare_inputs(kind, [name for name, value in values.items() if value is not None]):
            raise ValueError(f"folder must hold what its model reads, got {folder}; {'; '.join(problems)}")
    plain = json.loads(json.dumps(config))  # tuples become lists; shared lists would become YAML aliases
    texts = {"config.yaml": yaml.safe_dump(plain, sort_keys=False), **format_classes(class_names, multilabel)}
    texts |= {} if preprocess is None else format_preprocess(preprocess)
    contents = {name: text.encode() for name, text in texts.items()}
    contents |= {} if tokenizer is None else data_tokenizer.read_tokenizer_files(tokenizer)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        if (folder / name).exists() and not is_same_description(folder / name, content):
            raise ValueError(f"folder must be new or of the same model, got {folder} with another {name}")
    for name, content in contents.items():
        with replace_file(folder / name) as temporary:
            temporary.write_bytes(content)


def is_same_description(path: Path, content: bytes) -> bool:
    """Return whether a file equals the content, up to arguments that were added later and have their defaults."""
    if (equal := path.read_bytes() == content) or path.name not in ("config.yaml", *INPUT_FILES.values()):
        return equal
    try:
        if path.name in INPUT_FILES.values():
            return leave_out_later(path.name, read_json(path)) == leave_out_later(path.name, json.loads(content))
        configs = model_config.read_yaml(path), yaml.safe_load(content)
        first, second = map(model_config.fill_defaults, configs)
    except ValueError:  # a class that no config may name, or one of another version
        return False
    return first == second


def leave_out_later(name: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of preprocess.json or text.json without later ones that have their defaults."""
    from vitkit.bundle.fingerprint import leave_out_defaults  # not needed to open a folder
    from vitkit.bundle.first_version import PREPROCESS, TOKENIZER

    images = name == INPUT_FILES["images"]
    return leave_out_defaults(fields, *((Preprocess, PREPROCESS) if images else (Tokenizer, TOKENIZER)))


def format_preprocess(preprocess: Preprocess) -> dict[str, str]:
    """Return the text of preprocess.json."""
    return {INPUT_FILES["images"]: format_json(preprocess.to_dict())}


def format_classes(class_names: Sequence[str], multilabel: bool) -> dict[str, str]:
    """Return the text of classes.json."""
    return {"classes.json": format_json({"several": [*class_names]} if multilabel else [*class_names])}


def format_json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
