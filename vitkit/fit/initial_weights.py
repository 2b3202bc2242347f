"""What --pretrained FOLDER stands for: the folder's model and preprocessing, as arguments that others override.

--pretrained_image and --pretrained_text do the same for one tower of two.
"""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple, cast

import yaml

from vitkit.bundle import model_config
from vitkit.bundle.old_names import update_names
from vitkit.bundle.transfer import make_classifier_config
from vitkit.data.data_module import Data
from vitkit.data.tokenizer import FILE, PIECES, TEXT
from vitkit.models import CLIP, MAE, ViT

# Nobody configures what the data knows about the model, or about the one of two towers that reads pictures.
LINKS = {"outputs": "classes", "image_size": "size", "channels": "channels"}
TOWER, TOWER_LINKS = "image", {"image_size": "size", "channels": "channels"}
READ = ("size", "mean", "std", "interpolation", "crop")  # what a folder says about its pictures
MODEL = "model.init_args.model"


class Training(NamedTuple):
    """The class paths of a task and of its data."""

    task: str
    data: str


CLASSIFY = Training("vitkit.tasks.classify.Classify", "vitkit.data.images.Images")
RECONSTRUCT = Training("vitkit.tasks.reconstruction.Reconstruct", "vitkit.data.images.Images")
CONTRAST = Training("vitkit.tasks.contrast.Contrast", "vitkit.data.pairs.Pairs")
# How a model of each class is trained; what is not here is for Classify.
TRAININGS: Mapping[object, Training] = {ViT: CLASSIFY, MAE: RECONSTRUCT, CLIP: CONTRAST}


def pretrained(arguments: Sequence[str]) -> list[str]:
    """All arguments, with what the folders say where configs end and options begin.

    An MAE gives a classifier its encoder, unless the task is to reconstruct.

    Raises: ValueError for what is no model folder, has a config that may not be built, or does not suit the task.
    """
    folder, (image, text) = named(arguments), towers(arguments)
    if folder is not None and (image or text):
        raise ValueError(f"pretrained must not meet pretrained_image and pretrained_text, got pretrained={folder}")
    options = whole(folder, arguments) if folder is not None else []
    if image is not None:
        options += tower_of(image, "image", arguments) + read(image)
    if text is not None:
        options += tower_of(text, "text", arguments) + spoken(text)
    # A config that describes both towers must not undo one of them.
    end = (
        0
        if folder is not None
        else max((i + 1 for i, word in enumerate(arguments) if config_at(arguments, i)), default=0)
    )
    end += end > 0 and "=" not in arguments[end - 1]
    return [*arguments[:end], *options, *arguments[end:]]


def whole(folder: Path, arguments: Sequence[str]) -> list[str]:
    model = model_in(folder, "pretrained")
    before = find_training(model)
    task = last(arguments, ("--model", "--model.class_path"), "model", "class_path")
    task = str(task or (CONTRAST if before is CONTRAST else CLASSIFY).task)
    further, contrast = (task.endswith(f".{name}") for name in ("Reconstruct", "Contrast"))
    if further and before is not RECONSTRUCT:
        raise ValueError(f"pretrained must be an MAE to be pretrained further, got {model['class_path']} in {folder}")
    if contrast != (before is CONTRAST):
        hint = "take pretrained_image for one tower" if contrast else f"{task} has one"
        raise ValueError(
            f"pretrained must have two towers for Contrast alone, got {model['class_path']} in {folder}; {hint}"
        )
    training = before if further or contrast else CLASSIFY
    if before is RECONSTRUCT and training is CLASSIFY:
        model = make_classifier_config(model, outputs=0)
    return [
        f"--model={training.task}",
        f"--{MODEL}={json.dumps(unlinked(model))}",
        f"--data={training.data}",
        *read(folder),
        *(spoken(folder) if contrast else ()),
    ]


def tower_of(folder: Path, name: str, arguments: Sequence[str]) -> list[str]:
    """A tower as the folder has it, every argument spelled out; its outputs are those of the other one."""
    model, option = model_in(folder, f"pretrained_{name}"), f"pretrained_{name}"
    if find_training(model) is CONTRAST:
        model = cast(Any, model)["init_args"][name]
    elif name == "text":
        raise ValueError(f"{option} must be the folder of a model with a text tower, got {model['class_path']}")
    elif find_training(model) is RECONSTRUCT:
        model = make_classifier_config(model, outputs=0)
    other = "text" if name == "image" else "image"
    outputs = last(
        arguments, (f"--model.model.{other}.outputs",), *f"{MODEL}.init_args.{other}.init_args.outputs".split(".")
    )
    spelled = unlinked(model_config.fill_defaults(model), TOWER_LINKS)
    if outputs is not None:
        spelled["init_args"]["outputs"] = int(outputs)
    return [f"--{MODEL}.init_args.{name}={json.dumps(said(spelled))}"]


def find_training(model: Mapping[str, object]) -> Training:
    """Return how a model of this config is trained."""
    return TRAININGS.get(model_config.look_up(str(model["class_path"]), "class_path"), CLASSIFY)


def said(value: Any) -> Any:
    """A config without what is null, which jsonargparse takes for a word there, and with functions by their names."""
    match value:
        case dict():
            return {name: said(item) for name, item in value.items() if item is not None}
        case list() | tuple():
            return [said(item) for item in value]
        case FunctionType():
            return f"{value.__module__}.{value.__qualname__}"
    return value


def model_in(folder: Path, option: str) -> Mapping[str, object]:
    """The config of a model folder, looked through."""
    if not all((folder / name).is_file() for name in ("config.yaml", "preprocess.json")):
        hint = f"; make one: vitkit import {folder} --out DIR" if re.match("(timm|openclip|hf):", str(folder)) else ""
        hint = f"; try {folder / 'model'}" if (folder / "model" / "config.yaml").is_file() else hint
        raise ValueError(f"{option} must be a model folder, got {option}={folder}{hint}")
    model = model_config.read_yaml(folder / "config.yaml")
    model_config.check_config(model, f"{folder}/config.yaml")
    return model


def read(folder: Path) -> list[str]:
    """How the folder's model sees pictures."""
    told = json.loads((folder / "preprocess.json").read_text("utf-8"))
    return [option(name, told[name]) for name in READ if name in told]


def spoken(folder: Path) -> list[str]:
    """How it reads texts. What is wrong there, opening the folder will say."""
    told = json.loads((folder / TEXT).read_text("utf-8")) if (folder / TEXT).is_file() else {}
    if told.get("vocabulary") in (FILE, PIECES):  # of a file, with all that says how it is read
        told["vocabulary"] = str(folder)
    return [option(name, told[name]) for name in ("context", "whole", "vocabulary") if name in told]


def option(name: str, value: object) -> str:
    return f"--data.init_args.{name}={value if isinstance(value, str) else json.dumps(value)}"


def find_links(data: Data | type[Data]) -> dict[str, str]:
    """Return the links whose attribute the data has: jsonargparse too leaves alone what data has nothing to say of."""
    return {name: attribute for name, attribute in LINKS.items() if attribute in dir(data)}


def unlinked(model: Mapping[str, Any], links: Mapping[str, str] = LINKS) -> dict[str, Any]:
    """A model's config without what the data knows about it."""
    own = {name: value for name, value in model.get("init_args", {}).items() if name not in links}
    match own:
        case {"image": {"class_path": _} as tower}:
            own[TOWER] = unlinked(tower, TOWER_LINKS)
    return {**model, "init_args": own}


def linked(model: Mapping[str, Any], data: Data, links: Mapping[str, str] = LINKS) -> dict[str, Any]:
    """A model's config with what the data says of it."""
    own: dict[str, Any] = dict(model.get("init_args", {}))
    own |= {name: getattr(data, links[name]) for name in links if name in own}
    match own:
        case {"image": {"class_path": _} as tower}:
            own[TOWER] = linked(tower, data, TOWER_LINKS)
    return {**model, "init_args": own}


def named(arguments: Sequence[str]) -> Path | None:
    """The last folder that a config or an option names; null is none."""
    found = last(arguments, ("--pretrained",), "pretrained")
    return None if found is None else Path(found)


def towers(arguments: Sequence[str]) -> tuple[Path | None, Path | None]:
    names = ("pretrained_image", "pretrained_text")
    image, text = (last(arguments, (f"--{name}",), name) for name in names)
    return None if image is None else Path(image), None if text is None else Path(text)


def config_at(arguments: Sequence[str], place: int) -> bool:
    return arguments[place].partition("=")[0] in ("-c", "--config")


def last(arguments: Sequence[str], options: Sequence[str], *keys: str) -> Any:
    """What one of these options says, or a config has at these keys, one inside the other: the last that is said."""
    found: Any = None
    for word, following in pairwise([*arguments, ""]):
        option, given, value = word.partition("=")
        value = value if given else following
        if option in ("-c", "--config") and Path(value).is_file():
            held: Any = _content(Path(value))
            for key in keys[:-1]:
                held = held.get(key)
                held = held if isinstance(held, dict) else {}
            found = held.get(keys[-1], found)
        elif option in options:
            found = None if value == "null" else value
    return found


def _content(config: Path) -> dict[str, Any]:
    """With present names. What is wrong with it as a config, its parser will say."""
    try:
        content = yaml.safe_load(config.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        return {}
    return update_names(content) if isinstance(content, dict) else {}
