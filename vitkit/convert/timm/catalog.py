"""Models of timm: by name, or a folder in its format. timm's own loader unpickles nothing but tensors."""

import json
import textwrap
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from vitkit.bundle.meta_device import unallocated
from vitkit.convert.hub_download import OWN, OWN_PICKLED, fetched
from vitkit.convert.overrides import Imported, Told, choose_class_names, described_by, grid_of, in_channels
from vitkit.convert.timm import config as timm_config
from vitkit.convert.timm import tensors as timm_tensors
from vitkit.convert.weight_files import WEIGHTS, shapes_in, weights_in
from vitkit.data.preprocess import Preprocess
from vitkit.support.errors import prefix_errors, suggest


def of_timm(source: str, name: str, told: Told) -> Imported:
    """NAME or NAME.TAG as timm has them, or the folder, local or fetched, that holds one. Raises: ValueError."""
    import timm

    if (folder := Path(name).expanduser()).is_dir():
        return of_model(source, of_dir(source, folder), told)
    try:
        config = timm.get_pretrained_cfg(name, allow_unregistered=False)
    except RuntimeError:
        config = None
    if config is None or not config.has_weights:
        raise ValueError(f"{source} must name weights that timm knows; {nearest(name)}")
    with torch.device("meta"):  # whether it can be held is known before anything is fetched
        timm_config.read_facts(created(source, name, pretrained=False))
    own: dict[str, Any] = {}
    if config.hf_hub_id and not config.hf_hub_filename:
        # timm itself tries for a minute before it says that there is no network. What the folder says of itself is not
        # read: OpenAI's CLIP, with QuickGELU, shares one with a name that has GELU.
        path = weights_in(fetched(source, config.hf_hub_id, [OWN, OWN_PICKLED]), WEIGHTS)
        own = {"pretrained_cfg_overlay": {"file": str(path), "custom_load": False}}
    return of_model(source, created(source, name, pretrained=True, **own), told)


def of_dir(source: str, folder: Path) -> nn.Module:
    """A folder's model; nothing is allocated before its file of weights is known to be as large."""
    shapes = shapes_in(weights_in(folder, WEIGHTS))
    with prefix_errors(folder / "config.json") as path:
        asked = json.loads(path.read_text("utf-8")).get("model_args", {}).get("depth", 0)
        if asked > len(shapes):  # timm makes a number for each block, before the first block
            raise ValueError(f"depth must be of as many blocks as model.safetensors has, got depth={asked}")
    with unallocated(shapes):
        created(source, f"local-dir:{folder}", pretrained=False)
    return created(source, f"local-dir:{folder}", pretrained=True)


def created(source: str, name: str, pretrained: bool, **own: Any) -> nn.Module:
    import timm

    try:
        return timm.create_model(name, pretrained=pretrained, **own)
    except Exception as error:  # of the network, of pickles that are refused, of folders, of names
        reason = textwrap.shorten(str(error), 400)
        raise ValueError(f"{source} must be a model that timm makes: {type(error).__name__}: {reason}") from None


def of_model(source: str, model: nn.Module, told: Told) -> Imported:
    """A model of timm, in memory."""
    state, facts = model.state_dict(), timm_config.read_facts(model)
    config = timm_config.read_config(state, facts)
    converted = timm_tensors.to_vitkit(state, grid_of(config))
    outputs = config["init_args"]["outputs"]
    with prefix_errors(Path(source)):  # its config.json may come from a stranger
        own, notes = preprocessing(model)
        names, more = read_class_names(cast(Any, model).pretrained_cfg, outputs)
    preprocess, changes = described_by(source, in_channels(told, config["init_args"]["channels"]), own)
    classes, numbered = choose_class_names(told, outputs, names)
    notes += [*timm_tensors.list_left_out(state), *changes, *more, *numbered]
    return Imported(config, converted, preprocess, classes, tuple(notes))


def preprocessing(model: nn.Module) -> tuple[Preprocess, list[str]]:
    from timm.data.config import resolve_model_data_config

    told = resolve_model_data_config(model)
    size, mode = tuple(told["input_size"][1:]), told.get("crop_mode", "center")
    notes = [] if mode == "center" else [f"pictures are cropped at the centre; the source has crop_mode {mode}"]
    return Preprocess(
        size, tuple(told["mean"]), tuple(told["std"]), told["interpolation"], float(told["crop_pct"])
    ), notes


def read_class_names(config: Mapping[str, Any], outputs: int) -> tuple[tuple[str, ...] | None, list[str]]:
    """Those that stand in the config, or ImageNet's by their number, which is noted."""
    from timm.data.imagenet_info import ImageNetInfo, infer_imagenet_subset

    if not outputs:
        return (), []
    if labels := config.get("label_names"):
        names = [labels[key] for key in sorted(labels, key=int)] if isinstance(labels, Mapping) else labels
        described = config.get("label_descriptions") or {}
        return tuple(described.get(name, name) for name in names), []
    if config.get("num_classes") != outputs or not (subset := infer_imagenet_subset(dict(config))):
        return None, []
    info = ImageNetInfo(subset)
    found = [info.index_to_description(index) for index in range(outputs)]
    count = Counter(found)  # some synsets share a name, two in ImageNet-1k: their numbers tell them apart
    names = (f"{name} ({info.index_to_label_name(i)})" if count[name] > 1 else name for i, name in enumerate(found))
    return tuple(names), [f"the names of the {outputs} classes are those of {subset}"]


def nearest(name: str) -> str:
    import timm

    known = [
        model
        for kind in ("vit_*", "deit*")
        for tagged in (False, True)
        for model in timm.list_models(kind, pretrained=tagged)
    ]
    return f"timm.list_models(pretrained=True) lists them{suggest(name, known)}"
