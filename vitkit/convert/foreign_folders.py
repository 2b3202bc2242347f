"""Folders of transformers, open_clip and timm as their hubs hold them: weights beside a config."""

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
    Conversion,
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
from vitkit.support.errors import format_count, prefix_errors
from vitkit.support.files import read_json

OPENCLIP_STEMS = ("open_clip_model", "open_clip_pytorch_model")
DESCRIPTIONS = ("config.json", "open_clip_config.json")


def import_folder(source: str, folder: Path, overrides: Overrides) -> Conversion:
    """Import a folder of the library whose config it holds. Raises: ValueError."""
    config = folder / "config.json"
    if config.is_file() and "architecture" in read_json(config):
        return import_timm(source, str(folder), overrides)
    if config.is_file() and "model_type" in read_json(config):
        return import_hf_folder(source, folder, read_weights(find_weights(folder, HF_STEMS)), overrides)
    if (folder / "open_clip_config.json").is_file():
        return import_openclip_folder(source, folder, read_weights(find_weights(folder, OPENCLIP_STEMS)), overrides)
    raise ValueError(
        f"{source} must be a folder with a config.json of transformers or timm, or an open_clip_config.json; "
        "give a file of weights by its own path"
    )


def import_hf_folder(source: str, folder: Path, weights: WeightFile, overrides: Overrides) -> Conversion:
    """Import weights, from a folder or elsewhere, by the config.json of transformers in the folder."""
    hf_config = read_json(folder / "config.json")
    with prefix_errors(folder / "config.json"):
        converter, tower_notes = choose_converter(hf_config, weights, overrides)
    if (read_classes := converter.read_classes) is None:
        refuse_classes(source, overrides)
    with prefix_errors(folder / "config.json"):
        config = converter.read_config(hf_config)
        source_names, multilabel = ((), False) if read_classes is None else read_classes(hf_config)
    with prefix_errors(Path(source)):
        left_out = converter.find_left_out(weights.state, hf_config)
        state = converter.to_vitkit(weights.state, hf_config)
    patterns = left_out.patterns
    state = {name: state[name] for name in state if not any(fnmatchcase(name, pattern) for pattern in patterns)}
    class_names, class_notes = (), []
    if read_classes is not None:
        class_names, class_notes = choose_class_names(overrides, count_outputs(config), source_names)
    inputs, notes = get_inputs(get_model_class(config)), [*weights.notes, *tower_notes, *left_out.notes]
    preprocess, tokenizer = None, None
    if "images" in inputs:
        processor = converter.model_types[hf_config["model_type"]]
        preprocess, preprocess_notes = read_hf_preprocess(source, folder, config, processor, overrides)
        notes += preprocess_notes
    else:
        refuse_overrides(source, overrides, PREPROCESSING)
    if "texts" in inputs:
        tokenizer, tokenizer_notes = tokenizer_files.choose_hf_tokenizer(source, folder, get_text_config(config))
        notes += tokenizer_notes
    return Conversion(
        config, state, preprocess, class_names, (*notes, *class_notes), multilabel=multilabel, tokenizer=tokenizer
    )


def choose_converter(
    hf_config: Mapping[str, Any], weights: WeightFile, overrides: Overrides
) -> tuple[Converter, list[str]]:
    """Return the converter of a config.json, and notes; the image tower's if the file has no more or the user asks.

    Raises: ValueError for an unknown model type.
    """
    converter = find_reader(hf_config["model_type"])
    is_tower = converter.is_image_tower(weights.state)
    if converter.image is None or not (is_tower or overrides.tower == "image"):
        return converter, []
    return converter.image, [] if is_tower else ["the text tower is left out"]


def read_hf_preprocess(
    source: str, folder: Path, config: Mapping[str, Any], processor: str, overrides: Overrides
) -> tuple[Preprocess, list[str]]:
    """Return the preprocessing of a folder of transformers, or of the overrides if it has none, and notes.

    Args: processor: the class of image processors whose config names none.
    """
    args = get_image_config(config)["init_args"]
    overrides = check_channels(overrides, args["channels"])
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (path := folder / name).is_file():
            processor_config = read_json(path)
            with prefix_errors(path):
                processor_config = processor_config.get("image_processor", processor_config)
                preprocess = image_processor.read_image_processor(processor_config, processor)
                notes = image_processor.list_differences(processor_config, processor)
            preprocess, changes = override_preprocess(source, overrides._replace(like=None), preprocess)
            return preprocess, [*notes, *changes]
    ledger = Ledger()
    preprocess = settle_preprocess(ledger, overrides, tuple(args["image_size"]))
    ledger.close(f"{source}, without a preprocessor_config.json,")
    return preprocess, ledger.notes


def import_openclip_folder(source: str, folder: Path, weights: WeightFile, overrides: Overrides) -> Conversion:
    config = read_json(path := folder / "open_clip_config.json")
    match config:
        case {"model_cfg": {"vision_cfg": {}, "embed_dim": int()} as model_cfg}:
            preprocess_cfg = config.get("preprocess_cfg") or {}
            if not isinstance(preprocess_cfg, Mapping):
                raise ValueError(f"{path}: preprocess_cfg must hold names and values, got {preprocess_cfg!r:.80}")
            return import_openclip_weights(source, weights, model_cfg, preprocess_cfg, overrides, folder)
    raise ValueError(f"{path}: model_cfg must hold vision_cfg and embed_dim, got {config.get('model_cfg')!r:.80}")


def import_openclip_weights(
    source: str,
    weights: WeightFile,
    model_cfg: Mapping[str, Any],
    preprocess_cfg: Mapping[str, Any],
    overrides: Overrides,
    folder: Path | None = None,
) -> Conversion:
    """Import a model of open_clip; its image tower if the file has no more or the user asks."""
    refuse_classes(source, overrides)
    if overrides.tower == "image" or not two_towers.has_text_tower(weights.state):
        return import_openclip_tower(source, weights, model_cfg, preprocess_cfg, overrides)
    if not isinstance(model_cfg.get("text_cfg"), Mapping):
        rule = "model_cfg must hold text_cfg, as the file holds a text tower"
        raise ValueError(f"{source}: {rule}; or import the image tower alone by --tower image")
    with prefix_errors(Path(source)):
        check_dtypes(weights.state)
        config, state = two_towers.read_config(weights.state, model_cfg), two_towers.to_vitkit(weights.state, model_cfg)
    preprocess, notes = read_openclip_preprocess(source, config, preprocess_cfg, overrides)
    text = config["init_args"]["text"]
    tokenizer = tokenizer_files.read_openclip_tokenizer(source, folder, model_cfg["text_cfg"], text)
    return Conversion(config, state, preprocess, (), (*weights.notes, *notes), tokenizer=tokenizer)


def import_openclip_tower(
    source: str,
    weights: WeightFile,
    model_cfg: Mapping[str, Any],
    preprocess_cfg: Mapping[str, Any],
    overrides: Overrides,
) -> Conversion:
    """Import the image tower of a model of open_clip."""
    tower = {name: tensor for name, tensor in weights.state.items() if name.startswith("visual.")}
    notes = [*weights.notes]
    if others := len(weights.state) - len(tower):
        notes.append(f"left out: {format_count(others, 'tensors')} beside the image tower")
    with prefix_errors(Path(source)):
        config, state = openclip_config.read_config(tower, model_cfg), openclip_tensors.to_vitkit(tower, model_cfg)
    preprocess, preprocess_notes = read_openclip_preprocess(source, config, preprocess_cfg, overrides)
    return Conversion(config, state, preprocess, (), (*notes, *preprocess_notes))


def read_openclip_preprocess(
    source: str, config: Mapping[str, Any], preprocess_cfg: Mapping[str, Any], overrides: Overrides
) -> tuple[Preprocess, tuple[str, ...]]:
    args = get_image_config(config)["init_args"]
    with prefix_errors(Path(source)):
        preprocess, notes = openclip_config.read_preprocess_cfg({"size": tuple(args["image_size"]), **preprocess_cfg})
    overrides = check_channels(overrides, args.get("channels", 3))
    preprocess, changes = override_preprocess(source, overrides._replace(like=None), preprocess)
    return preprocess, (*notes, *changes)


def refuse_classes(source: str, overrides: Overrides) -> None:
    """Raise ValueError if the user names classes, for a model without any."""
    if overrides.classes:
        raise ValueError(f"{source} returns embeddings and has no classes; leave out --classes")


def import_described_file(path: Path, weights: WeightFile, overrides: Overrides) -> Conversion:
    """Import a file of weights by the config in the folder of --like, by default in the file's own folder."""
    folder = Path(overrides.like).expanduser() if overrides.like else path.parent
    if (folder / "config.json").is_file() and "model_type" in read_json(folder / "config.json"):
        return import_hf_folder(str(path), folder, weights, overrides)
    if (folder / "open_clip_config.json").is_file():
        return import_openclip_folder(str(path), folder, weights, overrides)
    if overrides.like and overrides.like.startswith("openclip:"):
        model_cfg, preprocess_cfg, notes = look_up_configs(overrides.like)
        weights = weights._replace(notes=(*weights.notes, *notes))
        return import_openclip_weights(str(path), weights, model_cfg, preprocess_cfg, overrides)
    raise ValueError(
        f"{path} must lie beside one of {', '.join(DESCRIPTIONS)}, which describe its model; "
        "or give a folder with one, or openclip:NAME, by --like"
    )
