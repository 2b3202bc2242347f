"""Weights in and out: strict loading, and the portable folder that holds a trained model.

A folder is config.yaml (class paths and numbers), preprocess.json, classes.json and model.safetensors, and with a text
tower text.json, perhaps a tokenizer.json too. It may come from a stranger: nothing in it is executed, and nothing is
allocated before the header of the weights fits the model.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from torch import nn

from vitkit.bundle.weights import save_weights
from vitkit.data import tokenizer as data_tokenizer
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer
from vitkit.support.errors import blaming
from vitkit.support.files import replacing

FILES = ("config.yaml", "preprocess.json", "classes.json", "model.safetensors")


def classes_in(folder: Path) -> tuple[tuple[str, ...], bool]:
    """The class names of a model folder, and whether a picture may have several: {"several": [names]}, or [names]."""
    with blaming(folder / "classes.json") as path:
        match held := json.loads(path.read_text("utf-8")):
            case {"several": [*names]} | [*names] if all(isinstance(name, str) for name in names):
                return tuple(names), isinstance(held, dict)
        raise ValueError(f"must be a list of names, or one called several, got {held!r:.80}")


def save(
    folder: str | Path,
    model: nn.Module,
    config: Mapping[str, object],
    preprocess: Preprocess,
    classes: Sequence[str],
    *,
    several: bool = False,
    tokenizer: Tokenizer | None = None,
) -> None:
    """Write a model folder. `config` is what `build` makes such a model from; `several` as in `classes_in`."""
    save_config(Path(folder), config, preprocess, classes, several, tokenizer)
    save_weights(Path(folder), model.state_dict())


def save_config(
    folder: Path,
    config: Mapping[str, object],
    preprocess: Preprocess,
    classes: Sequence[str],
    several: bool = False,
    tokenizer: Tokenizer | None = None,
) -> None:
    """Write all but the weights, once: a folder that describes another model is an error and stays as it was."""
    plain = json.loads(json.dumps(config))  # tuples become lists; shared lists would become YAML aliases
    texts = {"config.yaml": yaml.safe_dump(plain, sort_keys=False), **described(preprocess, classes, several)}
    texts |= {} if tokenizer is None else data_tokenizer.described(tokenizer)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        if (folder / name).exists() and (folder / name).read_text("utf-8") != text:
            raise ValueError(f"folder must be new or of the same model, got {folder} with another {name}")
    for name, text in texts.items():
        with replacing(folder / name) as path:
            path.write_text(text, "utf-8")


def described(preprocess: Preprocess, classes: Sequence[str], several: bool) -> dict[str, str]:
    """The texts of preprocess.json and classes.json."""
    names = {"several": [*classes]} if several else [*classes]
    held = {"preprocess.json": preprocess.to_dict(), "classes.json": names}
    return {name: json.dumps(value, indent=2, ensure_ascii=False) + "\n" for name, value in held.items()}
