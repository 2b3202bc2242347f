"""Weights in and out: strict loading, and the portable folder that holds a trained model.

A folder is config.yaml (class paths and numbers), preprocess.json, classes.json and model.safetensors, and with a text
tower text.json, perhaps a tokenizer.json too. It may come from a stranger: nothing in it is executed, and nothing is
allocated before the header of the weights fits the model.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vitkit import configs
from vitkit.data import tokenizer as data_tokenizer
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer
from vitkit.models import CLIP
from vitkit.support.errors import blaming
from vitkit.support.files import replacing
from vitkit.unallocated import unallocated

FILES = ("config.yaml", "preprocess.json", "classes.json", "model.safetensors")


Shapes = Mapping[str, tuple[int, ...]]


class Opened(NamedTuple):
    """A model in eval mode and what belongs to it."""

    model: nn.Module
    preprocess: Preprocess
    classes: tuple[str, ...]
    tokenizer: Tokenizer | None


def open_model(source: str | Path) -> Opened:
    """Open a model folder, or by name what `vitkit import` takes: timm:NAME, openclip:NAME@PRETRAINED, hf:USER/NAME.

    Whatever is wrong with a folder is a ValueError of one line; nothing in it is executed.
    """
    if re.match(r"[a-z]{2,}:", str(source := at_hand(source))):
        from vitkit.foreign.sources import opened  # other libraries, which a folder of our own does not need

        return opened(str(source))
    folder = Path(source)
    if absent := [name for name in FILES if not (folder / name).is_file()]:
        nested = all((folder / "model" / name).is_file() for name in FILES)
        hint = f"try {folder / 'model'}" if nested else f"it lacks {', '.join(absent)}"
        raise ValueError(
            f"source must be a model folder, got {folder}; {hint if folder.is_dir() else 'no such folder'}"
        )
    with blaming(folder / "preprocess.json") as path:
        preprocess = Preprocess.from_dict(json.loads(path.read_text("utf-8")))
    classes, _ = classes_in(folder)
    with blaming(folder / "model.safetensors") as path:
        shapes = header(path)
    with blaming(folder / "config.yaml") as path, unallocated(shapes):
        model = configs.build(config := configs.read(path))
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
        if isinstance(model, CLIP) != (tokenizer is not None):
            raise ValueError(f"must be there for a model with a text tower, and only then, got {type(model).__name__}")
    return Opened(model.eval(), preprocess, classes, tokenizer)


def at_hand(source: str | Path) -> str | Path:
    """The folder of hf:NAME, if its repository holds a model folder; others as they are."""
    if not str(source).startswith("hf:"):
        return source
    from vitkit.foreign.hub import fetched

    folder = fetched(str(source), str(source).removeprefix("hf:"))
    return folder if (folder / "config.yaml").is_file() else source


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


def save_weights(folder: Path, state: Mapping[str, Tensor]) -> None:
    """Replace model.safetensors as a whole."""
    places = Counter((tensor.data_ptr(), tensor.shape) for tensor in state.values() if tensor.numel())
    if tied := [name for name, tensor in state.items() if places[tensor.data_ptr(), tensor.shape] > 1]:
        raise ValueError(f"parameters must be saved under one name each, got one for {', '.join(tied)}")
    with replacing(folder / "model.safetensors") as path:
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        save_file(plain, path, metadata={"format": "pt"})


def load(
    model: nn.Module, state: Mapping[str, Tensor], *, missing: Iterable[str] = (), unused: Iterable[str] = ()
) -> None:
    """Copy `state` into `model`, all of it into all of it, or raise one error that lists every difference.

    Patterns such as "head.*" excuse by name: `missing` what may keep its initial values, `unused` what may be left
    over. A tensor of another shape is both.
    """
    own = model.state_dict()
    if problems := differences(shapes_of(own), shapes_of(state), tuple(missing), tuple(unused)):
        raise ValueError("\n  ".join(["state must fit the model, got", *problems]))
    model.load_state_dict({k: v for k, v in state.items() if k in own and v.shape == own[k].shape}, strict=False)


def differences(own: Shapes, found: Shapes, missing: Sequence[str] = (), unused: Sequence[str] = ()) -> list[str]:
    """One line per name that does not fit and is not excused: `-` missing, `+` surplus, `!` another shape."""

    def line(name: str) -> str | None:
        excused = [any(fnmatchcase(name, pattern) for pattern in patterns) for patterns in (missing, unused)]
        match name in own, name in found:
            case True, False if not excused[0]:
                return f"- {name}: model {own[name]}, not in the file"
            case False, True if not excused[1]:
                return f"+ {name}: file {found[name]}, not in the model"
            case True, True if own[name] != found[name] and not all(excused):
                return f"! {name}: model {own[name]}, file {found[name]}"
        return None

    return [text for name in sorted({*own, *found}) if (text := line(name))]


def header(path: Path) -> Shapes:
    """Of a .safetensors, whose tensors are not read."""
    with safe_open(path, framework="pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def shapes_of(state: Mapping[str, Tensor]) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in state.items()}
