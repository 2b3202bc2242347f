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
from vitkit.convert.openclip.catalog import look_up_configs
from vitkit.convert.overrides import (
    PREPROCESSING,
    Imported,
    Ledger,
    Overrides,
    check_channels,
    choose_class_names,
    count_outputs,
    get_image_config,
    get_model_class,
    get_text_config,
    override_preprocess,
    refuse_overrides,
    settle_preprocess,
)
from vitkit.convert.timm.catalog import import_timm
from vitkit.convert.weight_files import HF_STEMS, WeightFile, check_dtypes, find_weights, read_weights
from vitkit.data.preprocess import Preprocess
from vitkit.models.parts import get_inputs
from vitkit.support.errors import prefix_errors
from vitkit.support.files import read_json

OPENCLIP_STEMS = ("open_clip_model", "open_clip_pytorch_model")
DESCRIPTIONS = ("config.json", "open_clip_config.json")


def import_folder(source: str, folder: Path, overrides: Overrides) -> Imported:
    """What a folder holds, by the description in it. Raises: ValueError."""
    config = folder / "config.json"
    if config.is_file() and "architecture" in read_json(config):
        return import_timm(source, str(folder), overrides)
    if config.is_file() and "model_type" in read_json(config):
        return import_hf_folder(source, folder, read_weights(find_weights(folder, HF_STEMS)), overrides)
    if (folder / "open_clip_config.json").is_file():
        return import_openclip_folder(source, folder, read_weights(find_weights(folder, OPENCLIP_STEMS)), overrides)
    raise ValueError(
        f"{source} must be a folder with a config.json of transformers or timm, or an open_clip_config.json; "
        "a file of weights is named itself"
    )


def import_hf_folder(source: str, folder: Path, held: WeightFile, overrides: Overrides) -> Imported:
    """The description of a folder of transformers, and the tensors, in it or elsewhere."""
    config = read_json(folder / "config.json")
    with prefix_errors(folder / "config.json"):
        converter, left = choose_converter(config, held, overrides)
    if (read_class_names := converter.read_class_names) is None:
        refuse_classes(source, overrides)
    with prefix_errors(folder / "config.json"):
        described = converter.read_config(config)
        names = () if read_class_names is None else read_class_names(config)
    with prefix_errors(Path(source)):
        beside = converter.find_left_out(held.state, config)
        state = converter.to_vitkit(held.state, config)
    state = {name: state[name] for name in state if not any(fnmatchcase(name, wild) for wild in beside.patterns)}
    classes, numbered = (
        ((), []) if read_class_names is None else choose_class_names(overrides, count_outputs(described), names)
    )
    inputs, notes = get_inputs(get_model_class(described)), [*held.notes, *left, *beside.notes]
    preprocess, tokenizer = None, None
    if "images" in inputs:
        preprocess, further = read_hf_preprocess(
            source, folder, described, converter.model_types[config["model_type"]], overrides
        )
        notes += further
    else:
        refuse_overrides(source, overrides, PREPROCESSING)
    if "texts" in inputs:
        tokenizer, assumed = tokenizer_files.choose_hf_tokenizer(source, folder, get_text_config(described))
        notes += assumed
    return Imported(described, state, preprocess, classes, (*notes, *numbered), tokenizer=tokenizer)


def choose_converter(config: Mapping[str, Any], held: WeightFile, overrides: Overrides) -> tuple[Converter, list[str]]:
    """Return the converter of a config.json, for the image tower where the file or the user has no more, and notes.

    Raises: ValueError for a model type that is not known.
    """
    converter = find_reader(config["model_type"])
    alone = converter.is_image_tower(held.state)
    if converter.image is None or not (alone or overrides.tower == "image"):
        return converter, []
    return converter.image, [] if alone else ["the text tower is left out"]


def read_hf_preprocess(
    source: str, folder: Path, config: Mapping[str, Any], processor: str, overrides: Overrides
) -> tuple[Preprocess, list[str]]:
    """The preprocessing of a folder of transformers, or what is told, and notes.

    Args: processor: of files that name none.
    """
    args = get_image_config(config)["init_args"]
    overrides = check_channels(overrides, args["channels"])
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (path := folder / name).is_file():
            pictures = read_json(path)
            with prefix_errors(path):
                pictures = pictures.get("image_processor", pictures)
                own = image_processor.read_image_processor(pictures, processor)
                notes = image_processor.list_differences(pictures, processor)
            preprocess, changes = override_preprocess(source, overrides._replace(like=None), own)
            return preprocess, [*notes, *changes]
    ledger = Ledger()
    preprocess = settle_preprocess(ledger, overrides, tuple(args["image_size"]))
    ledger.close(f"{source}, without a preprocessor_config.json,")
    return preprocess, ledger.notes


def import_openclip_folder(source: str, folder: Path, held: WeightFile, overrides: Overrides) -> Imported:
    config = read_json(path := folder / "open_clip_config.json")
    match config:
        case {"model_cfg": {"vision_cfg": {}, "embed_dim": int()} as model}:
            pictures = config.get("preprocess_cfg") or {}
            if not isinstance(pictures, Mapping):
                raise ValueError(f"{path}: preprocess_cfg must hold names and values, got {pictures!r:.80}")
            return import_openclip_weights(source, held, model, pictures, overrides, folder)
    raise ValueError(f"{path}: model_cfg must hold vision_cfg and embed_dim, got {config.get('model_cfg')!r:.80}")


def import_openclip_weights(
    source: str,
    held: WeightFile,
    model: Mapping[str, Any],
    pictures: Mapping[str, Any],
    overrides: Overrides,
    folder: Path | None = None,
) -> Imported:
    """A model of open_clip, or its image tower where the file or the user has no more."""
    refuse_classes(source, overrides)
    if overrides.tower == "image" or not two_towers.has_text_tower(held.state):
        return import_openclip_tower(source, held, model, pictures, overrides)
    if not isinstance(model.get("text_cfg"), Mapping):
        rule = "model_cfg must hold text_cfg, as the file holds a text tower; or import the other by --tower image"
        raise ValueError(f"{source}: {rule}")
    with prefix_errors(Path(source)):
        check_dtypes(held.state)
        described, state = two_towers.read_config(held.state, model), two_towers.to_vitkit(held.state, model)
    preprocess, notes = read_openclip_preprocess(source, described, pictures, overrides)
    text = described["init_args"]["text"]
    tokenizer = tokenizer_files.read_openclip_tokenizer(source, folder, model["text_cfg"], text)
    return Imported(described, state, preprocess, (), (*held.notes, *notes), tokenizer=tokenizer)


def import_openclip_tower(
    source: str, held: WeightFile, model: Mapping[str, Any], pictures: Mapping[str, Any], overrides: Overrides
) -> Imported:
    """The image tower of a model of open_clip."""
    tower = {name: tensor for name, tensor in held.state.items() if name.startswith("visual.")}
    notes = [*held.notes]
    if beside := len(held.state) - len(tower):
        notes.append(f"{beside} tensors beside the image tower are left out")
    with prefix_errors(Path(source)):
        described, state = openclip_config.read_config(tower, model), openclip_tensors.to_vitkit(tower, model)
    preprocess, more = read_openclip_preprocess(source, described, pictures, overrides)
    return Imported(described, state, preprocess, (), (*notes, *more))


def read_openclip_preprocess(
    source: str, config: Mapping[str, Any], pictures: Mapping[str, Any], overrides: Overrides
) -> tuple[Preprocess, tuple[str, ...]]:
    args = get_image_config(config)["init_args"]
    with prefix_errors(Path(source)):
        own, notes = openclip_config.read_preprocess_cfg({"size": tuple(args["image_size"]), **pictures})
    overrides = check_channels(overrides, args.get("channels", 3))
    preprocess, changes = override_preprocess(source, overrides._replace(like=None), own)
    return preprocess, (*notes, *changes)


def refuse_classes(source: str, overrides: Overrides) -> None:
    """Raises: ValueError where classes are told of what has none."""
    if overrides.classes:
        raise ValueError(f"{source} has an embedding for its output, and no classes; leave out --classes")


def import_described_file(path: Path, held: WeightFile, overrides: Overrides) -> Imported:
    """A file of one of these layouts, with the folder that --like names, or the one that it lies in."""
    folder = Path(overrides.like).expanduser() if overrides.like else path.parent
    if (folder / "config.json").is_file() and "model_type" in read_json(folder / "config.json"):
        return import_hf_folder(str(path), folder, held, overrides)
    if (folder / "open_clip_config.json").is_file():
        return import_openclip_folder(str(path), folder, held, overrides)
    if overrides.like and overrides.like.startswith("openclip:"):
        model, pictures = look_up_configs(overrides.like)
        return import_openclip_weights(str(path), held, model, pictures, overrides)
    raise ValueError(
        f"{path} must lie beside one of {', '.join(DESCRIPTIONS)}, which say what its tensors do not; "
        "or name a folder with one, or openclip:NAME, by --like"
    )
