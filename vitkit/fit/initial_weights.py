"""Start a training from a model folder, or a model of another library: its config, its preprocessing and its weights.

A whole model becomes a config before all others. A tower becomes one after them, because a config of a whole model must
not override its tower. Options override both.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from pydoc import locate
from types import FunctionType
from typing import Any, NamedTuple, cast

from jsonargparse import Namespace

from vitkit.bundle import model_config
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import INPUT_FILES, suggest_folder
from vitkit.bundle.transfer import load_pretrained, load_pretrained_tower, make_classifier_config
from vitkit.convert.open import fetch_model_folder, is_foreign, open_model
from vitkit.data.data_module import Data
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import FILE, PIECES, TEXT, Tokenizer
from vitkit.fit.data_links import LINKS, TOWER_LINKS, find_links, remove_links
from vitkit.fit.folder_options import Folders, read_folders
from vitkit.fit.parser import ClosingConfig, Parser
from vitkit.fit.run_options import TOWERS
from vitkit.models import CLIP, MAE, TextDecoder, ViT
from vitkit.models.protocol import Model
from vitkit.support.errors import prefix_errors, suggest
from vitkit.tasks.task import Task

ARGUMENTS = {"images": "preprocess", "texts": "tokenizer"}  # of data, for the inputs of models


class Training(NamedTuple):
    """The class paths of the task and the data that train a model.

    Args:
        next_training: the training of a folder's model without a given task, if it differs.
        requirement: the rule for a folder in an error, for tasks that need a model of their own.
        hint: the advice in that error.
    """

    task: str
    data: str
    next_training: "Training | None" = None
    requirement: str = ""
    hint: str = ""


CLASSIFY = Training("vitkit.tasks.classify.Classify", "vitkit.data.images.Images")
RECONSTRUCT = Training(
    "vitkit.tasks.reconstruction.Reconstruct",
    "vitkit.data.images.Images",
    next_training=CLASSIFY,
    requirement="be an MAE to be pretrained further",
)
CONTRAST = Training(
    "vitkit.tasks.contrast.Contrast",
    "vitkit.data.pairs.Pairs",
    requirement="have two towers for Contrast alone",
    hint="; take pretrained_image for one tower",
)
MODEL_LANGUAGE = Training(
    "vitkit.tasks.language_modelling.LanguageModelling",
    "vitkit.data.corpus.Corpus",
    requirement="be a text decoder for LanguageModelling",
)
# The training of a model of each class.
TRAININGS: Mapping[object, Training] = {
    ViT: CLASSIFY,
    MAE: RECONSTRUCT,
    CLIP: CONTRAST,
    TextDecoder: MODEL_LANGUAGE,
}
# Functions from the config of a model to that for another task, by the old and the new training.
CONVERSIONS = {(RECONSTRUCT, CLASSIFY): make_classifier_config}


def insert_folders(parser: Parser, arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the config of a folder in front, or let the parser add that of a tower at the end.

    The encoder of an MAE becomes a classifier, unless the task is to reconstruct.

    Raises: ValueError for a path that is no model folder, a config that is not allowed, or a model that does not suit
        the task.
    """
    folders = read_folders(arguments)
    if folders.whole is not None and folders.towers:
        towers = ", ".join(f"pretrained_{tower}={folder}" for tower, folder in folders.towers.items())
        raise ValueError(f"pretrained must be given alone, got pretrained={folders.whole} and {towers}")
    if folders.whole is not None:
        return [f"--config={json.dumps(describe_whole(folders.whole, folders.task, folders.data))}", *arguments]
    if not folders.towers:
        return [*arguments]
    towers = json.dumps(describe_towers(folders))
    if not folders.configs:
        return [f"--config={towers}", *arguments]
    parser.closing = ClosingConfig(folders.configs, towers)
    return [*arguments]


def describe_whole(source: str | Path, task: str | None, data: str | None = None) -> dict[str, Any]:
    """Return the config of a model, its training for a task, and its preprocessing.

    A model or a task that is not in TRAININGS needs both task and data.
    """
    model, arguments = read_description(source, "pretrained")
    if task is not None and data is not None and (look_up(model) not in TRAININGS or find_task(task) is None):
        training = Training(task, data)
    else:
        before = find_training(model, source)
        training = require_task(task) if task is not None else before.next_training or before
        if training is not before and (before, training) not in CONVERSIONS:
            name = task or training.task
            rule, hint = training.requirement, training.hint
            if not rule:
                rule, hint = before.requirement, f"; {name} has one"
            raise ValueError(f"pretrained must {rule}, got {model['class_path']} in {source}{hint}")
        if training is not before:
            model = CONVERSIONS[before, training](model, outputs=0)
    kind = locate(training.data)
    links = find_links(cast(type[Data], kind)) if isinstance(kind, type) else LINKS
    return {
        "model": {"class_path": training.task, "init_args": {"model": remove_links(model, links)}},
        "data": {"class_path": training.data, "init_args": arguments},
    }


def find_task(task: str) -> Training | None:
    """Return the training for a task, given the class path or name of the task or of a subclass."""
    trainings = {training.task: training for training in TRAININGS.values()}
    short = {path.rpartition(".")[2]: training for path, training in trainings.items()}
    if task in trainings or task in short:
        return trainings.get(task) or short[task]
    kind = locate(task)
    bases = kind.__mro__ if isinstance(kind, type) else ()
    return next((training for base in bases for path, training in trainings.items() if locate(path) is base), None)


def require_task(task: str) -> Training:
    """Return the training for a task. Raises: ValueError for an unknown task."""
    if (training := find_task(task)) is None:
        known = [training.task for training in dict.fromkeys(TRAININGS.values())]
        raise ValueError(
            f"model must be {', '.join(known)} or a subclass of one for a model to be pretrained, got "
            f"model={task}{suggest(task, known)}; a task of your own needs --data too"
        )
    return training


def describe_towers(folders: Folders) -> dict[str, Any]:
    """Return the config of towers as in their folders, with all defaults, and with the outputs of the other tower."""
    towers: dict[str, Any] = {}
    data: dict[str, Any] = {}
    for name, source in folders.towers.items():
        model, arguments = read_description(source, f"pretrained_{name}")
        model = select_tower(model, name)
        spelled = remove_links(model_config.fill_defaults(model), TOWER_LINKS)
        outputs = [value for tower, value in folders.outputs.items() if tower != name]
        if outputs and "outputs" in spelled["init_args"]:
            spelled["init_args"]["outputs"] = outputs[0]
        towers[name] = drop_nulls(spelled)
        data |= {key: arguments[key] for key in [ARGUMENTS[kind] for kind in TOWERS[name]] if key in arguments}
    return {"model": {"init_args": {"model": {"init_args": towers}}}, "data": {"init_args": data}}


def select_tower(model: Mapping[str, object], name: str) -> Mapping[str, object]:
    """Return the config of a tower of a model: a part of it or the whole, for an MAE that of a classifier."""
    match model:
        case {"init_args": {**parts}} if name in parts:
            return cast(Any, parts[name])
    if read_inputs(model) != TOWERS[name]:
        article = "an" if name == "image" else "a"
        raise ValueError(
            f"pretrained_{name} must be the folder of a model with {article} {name} tower, got {model['class_path']}"
        )
    training = TRAININGS.get(look_up(model))
    if training is None or (training, CLASSIFY) not in CONVERSIONS:
        return model
    return CONVERSIONS[training, CLASSIFY](model, outputs=0)


def find_training(model: Mapping[str, object], source: str | Path) -> Training:
    """Return the training for a model's config. Raises: ValueError for a class of models without one."""
    if (kind := look_up(model)) not in TRAININGS:
        known = ", ".join(cast(type, kind).__name__ for kind in TRAININGS)
        towers = [f", or take pretrained_{tower}" for tower, inputs in TOWERS.items() if inputs == read_inputs(model)]
        raise ValueError(
            f"pretrained must be a model with a known task ({known}), got "
            f"{str(model['class_path']).rpartition('.')[2]} in {source}; give --model and --data{''.join(towers[:1])}"
        )
    return TRAININGS[kind]


def look_up(model: Mapping[str, object]) -> object:
    return model_config.look_up_name(str(model["class_path"]), "class_path")


def read_inputs(model: Mapping[str, object]) -> tuple[str, ...]:
    """Return the inputs of a model of this config; () for a part that is no model, such as an Encoder."""
    declared = look_up(model)
    return declared.inputs if isinstance(declared, Model) else ()


def drop_nulls(value: Any) -> Any:
    """Return a config without nulls, and with functions by their names."""
    match value:
        case dict():
            return {name: drop_nulls(item) for name, item in value.items() if item is not None}
        case list() | tuple():
            return [drop_nulls(item) for item in value]
        case FunctionType():
            return f"{value.__module__}.{value.__qualname__}"
    return value


def read_description(source: str | Path, option: str) -> tuple[Mapping[str, object], dict[str, Any]]:
    """Return the config of a model, and its preprocessing and tokenizer as arguments of data."""
    if is_foreign(path := fetch_model_folder(source)):
        from vitkit.convert.importer import import_source  # other libraries, which a folder of our own does not need

        conversion = import_source(source)
        preprocess, tokenizer = conversion.preprocess, conversion.tokenizer
        arguments = {} if preprocess is None else make_preprocessing(preprocess.to_dict())
        return conversion.config, arguments | ({} if tokenizer is None else describe_tokenizer(tokenizer, source))
    folder = Path(path)
    return read_model(folder, option), read_preprocessing(folder) | read_tokenizer(folder)


def read_model(folder: Path, option: str) -> Mapping[str, object]:
    """Return the config of a model folder. Raises: ValueError for another folder, or names that are not allowed."""
    has_inputs = any((folder / name).is_file() for name in INPUT_FILES.values())
    if not (has_inputs and (folder / "config.yaml").is_file()):
        raise ValueError(
            f"{option} must be a model folder, timm:NAME, openclip:NAME@PRETRAINED or hf:NAME, got "
            f"{option}={folder}{suggest_folder(folder)}"
        )
    with prefix_errors(folder / "config.yaml") as path:
        model = model_config.read_yaml(path)
    model_config.check_config(model, f"{folder}/config.yaml")
    return model


def read_preprocessing(folder: Path) -> dict[str, Any]:
    """Return the preprocessing of a folder as arguments of data, empty for a model without images."""
    path = folder / INPUT_FILES["images"]
    return make_preprocessing(json.loads(path.read_text("utf-8")) if path.is_file() else {})


def make_preprocessing(preprocess: Mapping[str, object]) -> dict[str, Any]:
    """Return the content of preprocess.json as arguments of data."""
    arguments = {field.name: preprocess[field.name] for field in fields(Preprocess) if field.name in preprocess}
    return {"preprocess": arguments} if arguments else {}


def read_tokenizer(folder: Path) -> dict[str, Any]:
    """Return the tokenizer of a folder as arguments of data, empty for a model without texts. Nothing is checked."""
    tokenizer = json.loads((folder / TEXT).read_text("utf-8")) if (folder / TEXT).is_file() else {}
    others = tokenizer.keys() - {"vocabulary", "context", "whole"}
    if others or tokenizer.get("vocabulary") in (FILE, PIECES):  # more than a name: read from the folder
        tokenizer["vocabulary"] = str(folder)
    arguments = {name: tokenizer[name] for name in ("context", "whole", "vocabulary") if name in tokenizer}
    return {"tokenizer": arguments} if arguments else {}


def describe_tokenizer(tokenizer: Tokenizer, source: str | Path) -> dict[str, Any]:
    """Return the tokenizer of another library as arguments of data.

    Raises: ValueError for a vocabulary that is no file until the model is imported.
    """
    if tokenizer.text is not None:
        raise ValueError(
            f"pretrained must have a vocabulary that data may name, got {source}, whose vocabulary is made of several "
            f"files; import it into a folder: vitkit import {source} --out DIR"
        )
    files = {"vocabulary": tokenizer.name, "numbers": tokenizer.numbers}
    values = tokenizer.to_dict() | {name: str(value) for name, value in files.items() if value is not None}
    return {"tokenizer": {name: value for name, value in values.items() if value is not None}}


def load_initial_weights(config: Namespace, task: Task, data: Data) -> list[list[str]]:
    """Copy the weights of the sources into the task's model, and return a list of the changes for each source."""
    lines = []
    if config.pretrained:
        bundle, notes = open_pretrained(config.pretrained)
        lines.append([*load_pretrained(bundle, task.model, task.names, data.preprocess), *notes])
    for tower in TOWERS:
        if source := config[f"pretrained_{tower}"]:
            bundle, notes = open_pretrained(source)
            lines.append([*load_pretrained_tower(bundle, task.model, tower), *notes])
    return lines


def open_pretrained(source: str) -> tuple[Bundle, Sequence[str]]:
    """Open a model as `open_model` does, with the notes of an import on what it leaves out or changes."""
    if not is_foreign(fetch_model_folder(source)):
        return open_model(source), ()
    from vitkit.convert.importer import build_bundle, import_source

    conversion = import_source(source)
    return build_bundle(conversion)._replace(source=source), conversion.notes
