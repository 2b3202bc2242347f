"""Models of timm: by name, or a folder in its format. timm's own loader unpickles nothing but tensors."""

import textwrap
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from vitkit.convert import timm as layout
from vitkit.convert.timm import Facts
from vitkit.foreign.files import WEIGHTS, weights_in
from vitkit.foreign.hub import OWN, OWN_PICKLED, fetched
from vitkit.foreign.told import Imported, Told, described_by, grid_of, named
from vitkit.preprocess import Preprocess


class Like(NamedTuple):
    """What a name of timm says without its weights."""

    facts: Facts
    preprocess: Preprocess
    classes: tuple[str, ...] | None
    notes: tuple[str, ...]


def of_timm(source: str, name: str, told: Told) -> Imported:
    """NAME or NAME.TAG as timm has them, or the folder, local or fetched, that holds one. Raises: ValueError."""
    import timm

    if (folder := Path(name).expanduser()).is_dir():
        return of_model(source, created(source, f"local-dir:{folder}", pretrained=True), told)
    try:
        config = timm.get_pretrained_cfg(name, allow_unregistered=False)
    except RuntimeError:
        config = None
    if config is None or not config.has_weights:
        raise ValueError(f"{source} must name weights that timm knows; {nearest(name)}")
    own: dict[str, Any] = {}
    if config.hf_hub_id and not config.hf_hub_filename:
        # timm itself tries for a minute before it says that there is no network. What the folder says of itself is not
        # read: OpenAI's CLIP, with QuickGELU, shares one with a name that has GELU.
        path = weights_in(fetched(source, config.hf_hub_id, [OWN, OWN_PICKLED]), WEIGHTS)
        own = {"pretrained_cfg_overlay": {"file": str(path), "custom_load": False}}
    return of_model(source, created(source, name, pretrained=True, **own), told)


def alike(name: str) -> Like:
    """The architecture and preprocessing of a name; nothing is downloaded, nothing allocated."""
    with torch.device("meta"):
        model = created(f"timm:{name}", name, pretrained=False)
    preprocess, notes = preprocessing(model)
    classes, more = class_names(cast(Any, model).pretrained_cfg, cast(Any, model).num_classes)
    return Like(layout.facts(model), preprocess, classes, (*notes, *more))


def created(source: str, name: str, pretrained: bool, **own: Any) -> nn.Module:
    import timm

    try:
        return timm.create_model(name, pretrained=pretrained, **own)
    except Exception as error:  # of the network, of pickles that are refused, of folders, of names
        reason = textwrap.shorten(str(error), 400)
        raise ValueError(f"{source} must be a model that timm makes: {type(error).__name__}: {reason}") from None


def of_model(source: str, model: nn.Module, told: Told) -> Imported:
    """A model of timm, in memory."""
    state, facts = model.state_dict(), layout.facts(model)
    config = layout.describe(state, facts)
    converted = layout.convert(state, grid_of(config))
    own, notes = preprocessing(model)
    preprocess, changes = described_by(source, told, own)
    names, more = class_names(cast(Any, model).pretrained_cfg, outputs := config["init_args"]["outputs"])
    classes, numbered = named(told, outputs, names)
    notes += [*layout.left_out(state), *changes, *more, *numbered]
    return Imported(config, converted, preprocess, classes, tuple(notes))


def preprocessing(model: nn.Module) -> tuple[Preprocess, list[str]]:
    from timm.data.config import resolve_model_data_config

    told = resolve_model_data_config(model)
    size, mode = tuple(told["input_size"][1:]), told.get("crop_mode", "center")
    notes = [] if mode == "center" else [f"pictures are cropped at the centre; the source has crop_mode {mode}"]
    return Preprocess(
        size, tuple(told["mean"]), tuple(told["std"]), told["interpolation"], float(told["crop_pct"])
    ), notes


def class_names(config: Mapping[str, Any], outputs: int) -> tuple[tuple[str, ...] | None, list[str]]:
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

    from vitkit.configs import near

    known = [
        model
        for kind in ("vit_*", "deit*")
        for tagged in (False, True)
        for model in timm.list_models(kind, pretrained=tagged)
    ]
    return f"timm.list_models(pretrained=True) lists them{near(name, known)}"
