"""The portable folder that holds a trained model: opened strictly, written as a whole.

A folder is config.yaml (class paths and numbers), preprocess.json, classes.json and model.safetensors, and with a text
tower text.json, perhaps a tokenizer.json too. It may come from a stranger: nothing in it is executed, and nothing is
allocated before the header of the weights fits the model.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from safetensors.torch import load_file

from vitkit.bundle import model_config
from vitkit.bundle.bundle import Bundle, get_preprocess
from vitkit.bundle.meta_device import unallocated
from vitkit.bundle.weights import differences, header, refuse_tied, save_weights, shapes_of
from vitkit.data import tokenizer as data_tokenizer
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer
from vitkit.models.parts import get_inputs
from vitkit.support.errors import blaming
from vitkit.support.files import replacing

FILES = ("config.yaml", "preprocess.json", "classes.json", "model.safetensors")


def classes_in(folder: Path) -> tuple[tuple[str, ...], bool]:
    """Return a model folder's class names, and whether an image may have several: {"several": [names]}, or [names]."""
    with blaming(folder / "classes.json") as path:
        match held := json.loads(path.read_text("utf-8")):
            case {"several": [*names]} | [*names] if all(isinstance(name, str) for name in names):
                return tuple(names), isinstance(held, dict)
        raise ValueError(f"must be a list of names, or one called several, got {held!r:.80}")


def open_folder(folder: str | Path) -> Bundle:
    """Open a model folder. Whatever is wrong with it is a ValueError of one line; nothing in it is executed."""
    folder = Path(folder)
    if absent := [name for name in FILES if not (folder / name).is_file()]:
        nested = all((folder / "model" / name).is_file() for name in FILES)
        hint = f"try {folder / 'model'}" if nested else f"it lacks {', '.join(absent)}"
        raise ValueError(
            f"source must be a model folder, got {folder}; {hint if folder.is_dir() else 'no such folder'}"
        )
    with blaming(folder / "preprocess.json") as path:
        preprocess = Preprocess.from_dict(json.loads(path.read_text("utf-8")))
    class_names, multilabel = classes_in(folder)
    with blaming(folder / "model.safetensors") as path:
        shapes = header(path)
    with blaming(folder / "config.yaml") as path, unallocated(shapes):
        model = model_config.build_model(config := model_config.read_yaml(path))
    with blaming(folder / "model.safetensors") as path:
        if problems := differences(shapes_of(model.state_dict()), shapes):
            raise ValueError(f"{len(problems)} tensors do not fit config.yaml, the first: {problems[0]}")
        model.load_state_dict(load_file(path), assign=True)
    match config:
        case {"init_args": {"channels": channels} | {"image": {"init_args": {"channels": channels}}}}:
            if channels != preprocess.channels:
                raise ValueError(f"{folder}/preprocess.json must be for {channels} channels, got {preprocess.channels}")
    with blaming(folder / data_tokenizer.TEXT):
        tokenizer = Tokenizer.from_folder(folder)
        if (get_inputs(model) == ("images", "texts")) != (tokenizer is not None):
            raise ValueError(f"must be there for a model with a text tower, and only then, got {type(model).__name__}")
    return Bundle(model.eval(), config, preprocess, class_names, multilabel, tokenizer, str(folder))


def save(folder: str | Path, bundle: Bundle) -> None:
    """Write a model folder: weights, config, preprocessing, class names, and the tokenizer if there is one.

    Raises: ValueError, before anything is written, where the config is not the model's, as of a tower that was taken
    out of a model.
    """
    _, config, _, class_names, multilabel, tokenizer, _ = bundle
    if not config:
        raise ValueError(f"bundle.config must describe bundle.model, got none for {type(bundle.model).__name__}")
    state = bundle.model.state_dict()
    with unallocated(shapes_of(state)):
        described = shapes_of(model_config.build_model(config).state_dict())
    if problems := differences(described, shapes_of(state)):
        raise ValueError(
            f"bundle.config must be of bundle.model, got {len(problems)} tensors that differ, the first: {problems[0]}"
        )
    refuse_tied(state)
    save_config(Path(folder), config, get_preprocess(bundle), class_names, multilabel, tokenizer)
    save_weights(Path(folder), state)


def save_config(
    folder: Path,
    config: Mapping[str, object],
    preprocess: Preprocess,
    class_names: Sequence[str],
    multilabel: bool = False,
    tokenizer: Tokenizer | None = None,
) -> None:
    """Write all but the weights, once: a folder that describes another model is an error and stays as it was."""
    plain = json.loads(json.dumps(config))  # tuples become lists; shared lists would become YAML aliases
    texts = {
        "config.yaml": yaml.safe_dump(plain, sort_keys=False),
        **format_preprocessing(preprocess, class_names, multilabel),
    }
    texts |= {} if tokenizer is None else data_tokenizer.format_tokenizer(tokenizer)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        if (folder / name).exists() and not is_same(folder / name, text):
            raise ValueError(f"folder must be new or of the same model, got {folder} with another {name}")
    for name, text in texts.items():
        with replacing(folder / name) as path:
            path.write_text(text, "utf-8")


def is_same(path: Path, text: str) -> bool:
    """Return whether a file of a model folder says the same as a text; a config lacks arguments that came later."""
    if path.read_text("utf-8") == text:
        return True
    try:
        return path.name == "config.yaml" and model_config.fill_defaults(
            model_config.read_yaml(path)
        ) == model_config.fill_defaults(yaml.safe_load(text))
    except ValueError:  # a class that no other config may name
        return False


def format_preprocessing(preprocess: Preprocess, class_names: Sequence[str], multilabel: bool) -> dict[str, str]:
    """Return the texts of preprocess.json and classes.json."""
    names = {"several": [*class_names]} if multilabel else [*class_names]
    held = {"preprocess.json": preprocess.to_dict(), "classes.json": names}
    return {name: json.dumps(value, indent=2, ensure_ascii=False) + "\n" for name, value in held.items()}
