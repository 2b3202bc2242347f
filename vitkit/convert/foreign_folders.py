"""Folders that describe themselves: of transformers, open_clip and timm, as their hubs have them."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from vitkit.convert import tokenizer_files
from vitkit.convert.hf import image_processor
from vitkit.convert.hf.converter import Converter
from vitkit.convert.hf.model_types import find_reader
from vitkit.convert.openclip import config as openclip_config
from vitkit.convert.openclip import tensors as openclip_tensors
from vitkit.convert.openclip import two_towers
from vitkit.convert.openclip.catalog import told_by
from vitkit.convert.overrides import (
    PREPROCESSING,
    Imported,
    Ledger,
    Told,
    choose_class_names,
    described_by,
    image_of,
    in_channels,
    model_class,
    outputs_of,
    preprocessed,
    refuse_overrides,
    text_of,
)
from vitkit.convert.timm.catalog import import_timm
from vitkit.convert.weight_files import WEIGHTS, Held, only_floats, tensors, weights_in
from vitkit.data.preprocess import Preprocess
from vitkit.models.parts import get_inputs
from vitkit.support.errors import prefix_errors
from vitkit.support.files import read_json

CLIP_WEIGHTS = ("open_clip_model", "open_clip_pytorch_model")
DESCRIPTIONS = ("config.json", "open_clip_config.json")


def of_folder(source: str, folder: Path, told: Told) -> Imported:
    """What a folder holds, by the description in it. Raises: ValueError."""
    config = folder / "config.json"
    if config.is_file() and "architecture" in read_json(config):
        return import_timm(source, str(folder), told)
    if config.is_file() and "model_type" in read_json(config):
        return of_hf(source, folder, tensors(weights_in(folder, WEIGHTS)), told)
    if (folder / "open_clip_config.json").is_file():
        return of_openclip(source, folder, tensors(weights_in(folder, CLIP_WEIGHTS)), told)
    raise ValueError(
        f"{source} must be a folder with a config.json of transformers or timm, or an open_clip_config.json; "
        "a file of weights is named itself"
    )


def of_hf(source: str, folder: Path, held: Held, told: Told) -> Imported:
    """The description of a folder of transformers, and the tensors, in it or elsewhere."""
    config = read_json(folder / "config.json")
    with prefix_errors(folder / "config.json"):
        converter, left = choose_converter(config, held, told)
    if (read_class_names := converter.read_class_names) is None:
        no_classes(source, told)
    with prefix_errors(folder / "config.json"):
        described = converter.read_config(config)
        names = () if read_class_names is None else read_class_names(config)
    with prefix_errors(Path(source)):
        beside = converter.find_left_out(held.state, config)
        state = converter.to_vitkit(held.state, config)
    state = {name: state[name] for name in state if not any(fnmatchcase(name, wild) for wild in beside.patterns)}
    classes, numbered = ((), []) if read_class_names is None else choose_class_names(told, outputs_of(described), names)
    inputs, notes = get_inputs(model_class(described)), [*held.notes, *left, *beside.notes]
    preprocess, tokenizer = None, None
    if "images" in inputs:
        preprocess, further = pictured(source, folder, described, converter.model_types[config["model_type"]], told)
        notes += further
    else:
        refuse_overrides(source, told, PREPROCESSING)
    if "texts" in inputs:
        tokenizer, assumed = tokenizer_files.of_hf(source, folder, text_of(described))
        notes += assumed
    return Imported(described, state, preprocess, classes, (*notes, *numbered), tokenizer=tokenizer)


def choose_converter(config: Mapping[str, Any], held: Held, told: Told) -> tuple[Converter, list[str]]:
    """Return the converter of a config.json, for the image tower where the file or the user has no more, and notes.

    Raises: ValueError for a model type that is not known.
    """
    converter = find_reader(config["model_type"])
    alone = converter.is_image_tower(held.state)
    if converter.image is None or not (alone or told.tower == "image"):
        return converter, []
    return converter.image, [] if alone else ["the text tower is left out"]


def pictured(
    source: str, folder: Path, config: Mapping[str, Any], processor: str, told: Told
) -> tuple[Preprocess, list[str]]:
    """The preprocessing of a folder of transformers, or what is told, and notes.

    Args: processor: of files that name none.
    """
    args = image_of(config)["init_args"]
    told = in_channels(told, args["channels"])
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (path := folder / name).is_file():
            pictures = read_json(path)
            with prefix_errors(path):
                pictures = pictures.get("image_processor", pictures)
                own = image_processor.read_image_processor(pictures, processor)
                notes = image_processor.preprocess_notes(pictures, processor)
            preprocess, changes = described_by(source, told._replace(like=None), own)
            return preprocess, [*notes, *changes]
    ledger = Ledger()
    preprocess = preprocessed(ledger, told, tuple(args["image_size"]))
    ledger.close(f"{source}, without a preprocessor_config.json,")
    return preprocess, ledger.notes


def of_openclip(source: str, folder: Path, held: Held, told: Told) -> Imported:
    config = read_json(path := folder / "open_clip_config.json")
    match config:
        case {"model_cfg": {"vision_cfg": {}, "embed_dim": int()} as model}:
            pictures = config.get("preprocess_cfg") or {}
            if not isinstance(pictures, Mapping):
                raise ValueError(f"{path}: preprocess_cfg must hold names and values, got {pictures!r:.80}")
            return of_clip(source, held, model, pictures, told, folder)
    raise ValueError(f"{path}: model_cfg must hold vision_cfg and embed_dim, got {config.get('model_cfg')!r:.80}")


def of_clip(
    source: str,
    held: Held,
    model: Mapping[str, Any],
    pictures: Mapping[str, Any],
    told: Told,
    folder: Path | None = None,
) -> Imported:
    """A model of open_clip, or its image tower where the file or the user has no more."""
    no_classes(source, told)
    if told.tower == "image" or not two_towers.is_whole(held.state):
        return of_tower(source, held, model, pictures, told)
    if not isinstance(model.get("text_cfg"), Mapping):
        rule = "model_cfg must hold text_cfg, as the file holds a text tower; or import the other by --tower image"
        raise ValueError(f"{source}: {rule}")
    with prefix_errors(Path(source)):
        only_floats(held.state)
        described, state = two_towers.read_config(held.state, model), two_towers.to_vitkit(held.state, model)
    preprocess, notes = openclip_pictured(source, described, pictures, told)
    text = described["init_args"]["text"]
    tokenizer = tokenizer_files.read_openclip_tokenizer(source, folder, model["text_cfg"], text)
    return Imported(described, state, preprocess, (), (*held.notes, *notes), tokenizer=tokenizer)


def of_tower(source: str, held: Held, model: Mapping[str, Any], pictures: Mapping[str, Any], told: Told) -> Imported:
    """The image tower of a model of open_clip."""
    tower = {name: tensor for name, tensor in held.state.items() if name.startswith("visual.")}
    notes = [*held.notes]
    if beside := len(held.state) - len(tower):
        notes.append(f"{beside} tensors beside the image tower are left out")
    with prefix_errors(Path(source)):
        described, state = openclip_config.read_config(tower, model), openclip_tensors.to_vitkit(tower, model)
    preprocess, more = openclip_pictured(source, described, pictures, told)
    return Imported(described, state, preprocess, (), (*notes, *more))


def openclip_pictured(
    source: str, config: Mapping[str, Any], pictures: Mapping[str, Any], told: Told
) -> tuple[Preprocess, tuple[str, ...]]:
    args = image_of(config)["init_args"]
    with prefix_errors(Path(source)):
        own, notes = openclip_config.read_preprocess_cfg({"size": tuple(args["image_size"]), **pictures})
    told = in_channels(told, args.get("channels", 3))
    preprocess, changes = described_by(source, told._replace(like=None), own)
    return preprocess, (*notes, *changes)


def no_classes(source: str, told: Told) -> None:
    """Raises: ValueError where classes are told of what has none."""
    if told.classes:
        raise ValueError(f"{source} has an embedding for its output, and no classes; leave out --classes")


def with_description_of(path: Path, held: Held, told: Told) -> Imported:
    """A file of one of these layouts, with the folder that --like names, or the one that it lies in."""
    folder = Path(told.like).expanduser() if told.like else path.parent
    if (folder / "config.json").is_file() and "model_type" in read_json(folder / "config.json"):
        return of_hf(str(path), folder, held, told)
    if (folder / "open_clip_config.json").is_file():
        return of_openclip(str(path), folder, held, told)
    if told.like and told.like.startswith("openclip:"):
        model, pictures = told_by(told.like)
        return of_clip(str(path), held, model, pictures, told)
    raise ValueError(
        f"{path} must lie beside one of {', '.join(DESCRIPTIONS)}, which say what its tensors do not; "
        "or name a folder with one, or openclip:NAME, by --like"
    )
