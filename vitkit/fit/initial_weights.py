"""--pretrained FOLDER and --pretrained_TOWER FOLDER: the folder's model and preprocessing as a config, and its weights.

The folder of a whole model is a config in front of all others; that of a tower is one behind them, since a config that
describes a whole model must not undo one of its towers. Options have the last word.
"""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple, cast

from jsonargparse import ArgumentParser, Namespace

from vitkit.bundle import model_config
from vitkit.bundle.transfer import make_classifier_config, start_from, start_tower
from vitkit.data.data_module import Data
from vitkit.data.tokenizer import FILE, PIECES, TEXT
from vitkit.fit.parser import MODE, Closing, Parser, Preview
from vitkit.models import CLIP, MAE, ViT
from vitkit.models.protocol import Model
from vitkit.tasks.task import Task

# Nobody configures what the data knows about the model, or about the one of two towers that reads pictures.
LINKS = {"outputs": "classes", "image_size": "size", "channels": "channels"}
TOWER, TOWER_LINKS = "image", {"image_size": "size", "channels": "channels"}
READ = ("size", "mean", "std", "interpolation", "crop")  # what a folder says about its pictures
PREPROCESS = "preprocess.json"
# Parts of a model, each of which may start from a folder: with the inputs of a model that is such a part as a whole.
TOWERS: Mapping[str, tuple[str, ...]] = {"image": ("images",), "text": ("texts",), "decoder": ("texts",)}
PARTS = "model.init_args.model.init_args"


class Training(NamedTuple):
    """How a model is trained: the class paths of a task and of its data.

    Args:
        following: how it is trained when its folder is given and no task, where that is another way.
        demand: what a folder must be or have for this task, where it is for models of its own.
        hint: what to do with another folder.
    """

    task: str
    data: str
    following: "Training | None" = None
    demand: str = ""
    hint: str = ""


CLASSIFY = Training("vitkit.tasks.classify.Classify", "vitkit.data.images.Images")
RECONSTRUCT = Training(
    "vitkit.tasks.reconstruction.Reconstruct",
    "vitkit.data.images.Images",
    following=CLASSIFY,
    demand="be an MAE to be pretrained further",
)
CONTRAST = Training(
    "vitkit.tasks.contrast.Contrast",
    "vitkit.data.pairs.Pairs",
    demand="have two towers for Contrast alone",
    hint="; take pretrained_image for one tower",
)
# How a model of each class is trained; what is not here is for Classify.
TRAININGS: Mapping[object, Training] = {ViT: CLASSIFY, MAE: RECONSTRUCT, CLIP: CONTRAST}
# The config of a model for another task, by how it was trained and how it will be.
CONVERSIONS = {(RECONSTRUCT, CLASSIFY): make_classifier_config}


class Folders(NamedTuple):
    """What configs and options say of folders, and of what decides how these are read.

    Args:
        whole: the folder of a model. towers: of one tower, by its name.
        task: the class path of the task.
        outputs: of each tower, by its name.
        configs: how many there are.
    """

    whole: str | None
    towers: Mapping[str, str]
    task: str | None
    outputs: Mapping[str, int]
    configs: int


def add_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("Start from the weights of a model folder")
    group.add_argument(
        "--pretrained", type=str | None, help="a model folder: its model, its weights and its preprocessing"
    )
    for tower in TOWERS:
        text = f"a model folder: the {tower} tower is as there, and starts from its weights"
        group.add_argument(f"--pretrained_{tower}", type=str | None, help=text)


def read_folders(arguments: Sequence[str]) -> Folders:
    """Return what configs and options say, the last of each, as the whole parser would read them."""
    parser = Preview(parser_mode=MODE, add_help=False)
    parser.add_argument("-c", "--config", action="config")
    add_options(parser)
    parser.add_argument("--model.class_path", type=Any)
    for tower in TOWERS:
        parser.add_argument(f"--{PARTS}.{tower}.init_args.outputs", type=Any)
    names = {"config": ("-c", "--config"), "model.class_path": ("--model", "--model.class_path")}
    names |= {name: (f"--{name}",) for name in ("pretrained", *(f"pretrained_{tower}" for tower in TOWERS))}
    names |= {f"{PARTS}.{tower}.init_args.outputs": (f"--model.model.{tower}.outputs",) for tower in TOWERS}
    config = parser.parse_args(select_options(arguments, names))
    match config.get("model.class_path"):
        case str(task) | {"class_path": str(task)}:
            pass
        case _:
            task = None
    outputs = {tower: config.get(f"{PARTS}.{tower}.init_args.outputs") for tower in TOWERS}
    return Folders(
        config.pretrained,
        {tower: folder for tower in TOWERS if (folder := config[f"pretrained_{tower}"]) is not None},
        task,
        {tower: value for tower, value in outputs.items() if isinstance(value, int)},
        len(config.config or []),
    )


class Keep(argparse.Action):
    """Add an option to a list, under its full name."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        namespace.kept.append(f"--{self.dest}={values}")


def select_options(arguments: Sequence[str], names: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the options of these names, under the full one, in their order. What is wrong with them, others say."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name, spellings in names.items():
        parser.add_argument(*spellings, dest=name, action=Keep)
    kept: list[str] = []
    try:
        parser.parse_known_args(arguments, argparse.Namespace(kept=kept))
    except argparse.ArgumentError:  # an option without a value
        return []
    return kept


def insert_folders(parser: Parser, arguments: Sequence[str]) -> list[str]:
    """Return a command line whose first config is what a folder says, and let the parser put a tower behind the last.

    An MAE gives a classifier its encoder, unless the task is to reconstruct.

    Raises: ValueError for what is no model folder, has a config that may not be built, or does not suit the task.
    """
    folders = read_folders(arguments)
    if folders.whole is not None and folders.towers:
        raise ValueError(
            f"pretrained must not meet pretrained_image and pretrained_text, got pretrained={folders.whole}"
        )
    if folders.whole is not None:
        return [f"--config={json.dumps(describe_whole(Path(folders.whole), folders.task))}", *arguments]
    if not folders.towers:
        return [*arguments]
    towers = json.dumps(describe_towers(folders))
    if not folders.configs:
        return [f"--config={towers}", *arguments]
    parser.closing = Closing(folders.configs, towers)
    return [*arguments]


def describe_whole(folder: Path, task: str | None) -> dict[str, Any]:
    """Return the config of a folder's model, of its training for a task, and of what its data are made of."""
    model = read_model(folder, "pretrained")
    before = find_training(model)
    task = task or (before.following or before).task
    training = next((known for known in TRAININGS.values() if known.task == task), CLASSIFY)
    if training is not before and (before, training) not in CONVERSIONS:
        demand, hint = (training.demand, training.hint) if training.demand else (before.demand, f"; {task} has one")
        raise ValueError(f"pretrained must {demand}, got {model['class_path']} in {folder}{hint}")
    if training is not before:
        model = CONVERSIONS[before, training](model, outputs=0)
    return {
        "model": {"class_path": training.task, "init_args": {"model": unlinked(model)}},
        "data": {"class_path": training.data, "init_args": read_preprocessing(folder) | read_tokenizer(folder)},
    }


def describe_towers(folders: Folders) -> dict[str, Any]:
    """Return the config of towers as folders have them, every argument spelled out; the outputs are another tower's."""
    towers: dict[str, Any] = {}
    data: dict[str, Any] = {}
    for name, folder in ((name, Path(folder)) for name, folder in folders.towers.items()):
        model = read_tower(folder, name)
        spelled = unlinked(model_config.fill_defaults(model), TOWER_LINKS)
        outputs = [value for tower, value in folders.outputs.items() if tower != name]
        if outputs and "outputs" in spelled["init_args"]:
            spelled["init_args"]["outputs"] = outputs[0]
        towers[name] = drop_nulls(spelled)
        inputs = read_inputs(model)
        data |= read_preprocessing(folder) if "images" in inputs else {}
        data |= read_tokenizer(folder) if "texts" in inputs else {}
    return {"model": {"init_args": {"model": {"init_args": towers}}}, "data": {"init_args": data}}


def read_tower(folder: Path, name: str) -> Mapping[str, object]:
    """Return the config of a tower in a folder: a part of its model, or all of it, an MAE's as that of a classifier."""
    model = read_model(folder, f"pretrained_{name}")
    match model:
        case {"init_args": {**parts}} if name in parts:
            return cast(Any, parts[name])
    if read_inputs(model) != TOWERS[name]:
        article = "an" if name == "image" else "a"
        raise ValueError(
            f"pretrained_{name} must be the folder of a model with {article} {name} tower, got {model['class_path']}"
        )
    training = find_training(model)
    return CONVERSIONS[training, CLASSIFY](model, outputs=0) if (training, CLASSIFY) in CONVERSIONS else model


def find_training(model: Mapping[str, object]) -> Training:
    """Return how a model of this config is trained."""
    return TRAININGS.get(look_up(model), CLASSIFY)


def look_up(model: Mapping[str, object]) -> object:
    return model_config.look_up(str(model["class_path"]), "class_path")


def read_inputs(model: Mapping[str, object]) -> tuple[str, ...]:
    """Return the inputs of a model of this config; () for a part that is no model, such as an Encoder."""
    declared = look_up(model)
    return declared.inputs if isinstance(declared, Model) else ()


def drop_nulls(value: Any) -> Any:
    """Return a config without what is null, and with functions by their names."""
    match value:
        case dict():
            return {name: drop_nulls(item) for name, item in value.items() if item is not None}
        case list() | tuple():
            return [drop_nulls(item) for item in value]
        case FunctionType():
            return f"{value.__module__}.{value.__qualname__}"
    return value


def read_model(folder: Path, option: str) -> Mapping[str, object]:
    """Return the config of a model folder, every name in it looked up."""
    reads = any((folder / name).is_file() for name in (PREPROCESS, TEXT))
    if not (reads and (folder / "config.yaml").is_file()):
        hint = f"; make one: vitkit import {folder} --out DIR" if re.match("(timm|openclip|hf):", str(folder)) else ""
        hint = f"; try {folder / 'model'}" if (folder / "model" / "config.yaml").is_file() else hint
        raise ValueError(f"{option} must be a model folder, got {option}={folder}{hint}")
    model = model_config.read_yaml(folder / "config.yaml")
    model_config.check_config(model, f"{folder}/config.yaml")
    return model


def read_preprocessing(folder: Path) -> dict[str, Any]:
    """Return how the folder's model reads images, if it does, as arguments of data."""
    path = folder / PREPROCESS
    preprocess = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return {name: preprocess[name] for name in READ if name in preprocess}


def read_tokenizer(folder: Path) -> dict[str, Any]:
    """Return how it reads texts, if it does. What is wrong there, opening the folder will say."""
    tokenizer = json.loads((folder / TEXT).read_text("utf-8")) if (folder / TEXT).is_file() else {}
    further = tokenizer.keys() - {"vocabulary", "context", "whole"}
    if further or tokenizer.get("vocabulary") in (FILE, PIECES):  # more than its name: all of it is in the folder
        tokenizer["vocabulary"] = str(folder)
    return {name: tokenizer[name] for name in ("context", "whole", "vocabulary") if name in tokenizer}


def is_pretrained(config: Namespace) -> bool:
    """Return whether any part of the model starts from a folder."""
    return any(config[name] is not None for name in ("pretrained", *(f"pretrained_{tower}" for tower in TOWERS)))


def load_initial_weights(config: Namespace, task: Task, data: Data) -> list[list[str]]:
    """Copy the weights of the folders into the task's model; return what is not as it was, a list for each folder."""
    lines = [start_from(config.pretrained, task.model, task.names, data.preprocess)] if config.pretrained else []
    folders = ((tower, config[f"pretrained_{tower}"]) for tower in TOWERS)
    return lines + [start_tower(folder, task.model, tower) for tower, folder in folders if folder]


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
