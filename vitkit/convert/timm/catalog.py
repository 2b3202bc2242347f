"""Models of timm, by name or from a folder in its format. timm's loader unpickles nothing but tensors."""

import textwrap
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from vitkit.bundle.meta_device import use_meta_device
from vitkit.bundle.weights import Shapes
from vitkit.convert.config_slots import MULTILABEL
from vitkit.convert.hub_download import HF_PICKLES, HF_WEIGHTS, fetch_repository
from vitkit.convert.overrides import (
    Conversion,
    Overrides,
    check_channels,
    choose_class_names,
    get_grid,
    override_preprocess,
)
from vitkit.convert.timm import config as timm_config
from vitkit.convert.timm import tensors as timm_tensors
from vitkit.convert.weight_files import HF_STEMS, find_weights, read_shapes
from vitkit.data.preprocess import Preprocess
from vitkit.support.errors import prefix_errors, suggest
from vitkit.support.files import read_json
from vitkit.support.names import number_duplicates


def import_timm(source: str, name: str, overrides: Overrides) -> Conversion:
    """Import a model of timm by NAME or NAME.TAG, or from a folder in its format. Raises: ValueError."""
    import timm

    if (folder := Path(name).expanduser()).is_dir():
        conversion = convert_timm_model(source, load_timm_folder(source, folder), overrides)
        return conversion._replace(multilabel=is_multilabel(folder))
    try:
        config = timm.get_pretrained_cfg(name, allow_unregistered=False)
    except RuntimeError:
        config = None
    if config is None or not config.has_weights:
        raise ValueError(f"{source} must name weights that timm knows; {suggest_names(name)}")
    with torch.device("meta"):  # refuses what a ViT cannot hold before anything is fetched
        timm_config.read_facts(create_timm_model(source, name, pretrained=False))
    options: dict[str, Any] = {}
    if config.hf_hub_id and not config.hf_hub_filename:
        # timm itself retries for a minute without a network. The config of the repository is not read: OpenAI's CLIP,
        # with QuickGELU, shares one with a name that has GELU.
        path = find_weights(fetch_repository(source, config.hf_hub_id, [HF_WEIGHTS, HF_PICKLES]), HF_STEMS)
        options = {"pretrained_cfg_overlay": {"file": str(path), "custom_load": False}}
    return convert_timm_model(source, create_timm_model(source, name, pretrained=True, **options), overrides)


def load_timm_folder(source: str, folder: Path) -> nn.Module:
    """Load the model of a folder. Nothing is allocated before its file of weights is known to be as large."""
    shapes = read_shapes(path := find_weights(folder, HF_STEMS))
    create_timm_skeleton(source, folder, shapes)
    # By itself timm would choose among several files in another order.
    overlay = {"file": str(path), "source": "", "custom_load": False}
    return create_timm_model(source, f"local-dir:{folder}", pretrained=True, pretrained_cfg_overlay=overlay)


def create_timm_skeleton(source: str, folder: Path, shapes: Shapes) -> nn.Module:
    """Create the model that a folder describes on the meta device.

    Args: shapes: of its weights, which limit what its config.json may ask for.
    """
    from timm.models import is_model_in_modules

    with prefix_errors(folder / "config.json") as path:
        config = read_json(path)
        name, arguments = str(config.get("architecture")), config.get("model_args", {})
        if not isinstance(arguments, Mapping):
            raise ValueError(f"model_args must hold names and values, got model_args={arguments!r:.80}")
        if type(depth := arguments.get("depth", 0)) is not int:
            raise ValueError(f"depth must be a whole number, got depth={depth!r:.80}")
        if not is_model_in_modules(name, ("vision_transformer", "deit")):
            raise ValueError(f"architecture must be a VisionTransformer of timm, got architecture={name:.80}")
        if depth > len(shapes):  # timm makes a number for each block, before the first block
            raise ValueError(f"depth must be of as many blocks as the file of weights has, got {depth=}")
    with use_meta_device(shapes):
        return create_timm_model(source, f"local-dir:{folder}", pretrained=False)


def is_multilabel(folder: Path) -> bool:
    """Return whether the config.json of a folder says that an image may have several classes.

    timm has no name for it, and ignores that of transformers.
    """
    return read_json(folder / "config.json").get("problem_type") == MULTILABEL


def create_timm_model(source: str, name: str, pretrained: bool, **options: Any) -> nn.Module:
    """Create a model by timm, whose errors become one ValueError."""
    import timm

    try:
        return timm.create_model(name, pretrained=pretrained, **options)
    except Exception as error:  # from the network, pickles that it refuses, folders and names
        reason = textwrap.shorten(str(error), 400)
        raise ValueError(f"{source} must be a model that timm can create: {type(error).__name__}: {reason}") from None


def convert_timm_model(source: str, model: nn.Module, overrides: Overrides) -> Conversion:
    """Convert a model of timm in memory."""
    state, facts = model.state_dict(), timm_config.read_facts(model)
    config = timm_config.read_config(state, facts)
    tensors = timm_tensors.to_vitkit(state, get_grid(config))
    outputs = config["init_args"]["outputs"]
    with prefix_errors(Path(source)):  # its config.json may come from a stranger
        preprocess, crop_notes = read_timm_preprocess(model)
        names, name_notes = read_timm_class_names(cast(Any, model).pretrained_cfg, outputs)
    overrides = check_channels(overrides, config["init_args"]["channels"])
    preprocess, changes = override_preprocess(source, overrides, preprocess)
    class_names, number_notes = choose_class_names(overrides, outputs, names)
    notes = (*crop_notes, *timm_tensors.list_left_out(state), *changes, *name_notes, *number_notes)
    return Conversion(config, tensors, preprocess, class_names, notes)


def read_timm_preprocess(model: nn.Module) -> tuple[Preprocess, list[str]]:
    """Return the preprocessing of a model of timm, and a note where its crop is another."""
    from timm.data.config import resolve_model_data_config

    data = resolve_model_data_config(model)
    size, mode = tuple(data["input_size"][1:]), data.get("crop_mode", "center")
    notes = [] if mode == "center" else [f"pictures are cropped at the centre; the source has crop_mode {mode!r:.80}"]
    return Preprocess(
        size, tuple(data["mean"]), tuple(data["std"]), data["interpolation"], float(data["crop_pct"])
    ), notes


def read_timm_class_names(config: Mapping[str, Any], outputs: int) -> tuple[tuple[str, ...] | None, list[str]]:
    """Return the class names in a config, or ImageNet's where the number of outputs fits, with a note; else None."""
    from timm.data.imagenet_info import ImageNetInfo, infer_imagenet_subset

    if not outputs:
        return (), []
    if labels := config.get("label_names"):
        names = [labels[key] for key in sorted(labels, key=int)] if isinstance(labels, Mapping) else labels
        descriptions = config.get("label_descriptions") or {}
        return number_duplicates([descriptions.get(name, name) for name in names]), []
    if config.get("num_classes") != outputs or not (subset := infer_imagenet_subset(dict(config))):
        return None, []
    info = ImageNetInfo(subset)
    names = [info.index_to_description(index) for index in range(outputs)]
    counts = Counter(names)  # some synsets share a name, two in ImageNet-1k: their ids tell them apart
    unique = (f"{name} ({info.index_to_label_name(i)})" if counts[name] > 1 else name for i, name in enumerate(names))
    return tuple(unique), [f"the names of the {outputs} classes are those of {subset}"]


def suggest_names(name: str) -> str:
    import timm

    names = [
        model
        for wildcard in ("vit_*", "deit*")
        for pretrained in (False, True)
        for model in timm.list_models(wildcard, pretrained=pretrained)
    ]
    return f"timm.list_models(pretrained=True) lists them{suggest(name, names)}"
