"""What --like names, for tensors in timm's layout or MAE's: the rest of the description of the same model."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from vitkit.bundle.bundle import get_preprocess
from vitkit.bundle.folder import open_folder
from vitkit.convert.config_slots import read_part
from vitkit.convert.timm import config as timm_config
from vitkit.convert.timm import tensors as timm_tensors
from vitkit.convert.timm.catalog import create_timm_model, read_class_names, read_timm_preprocess
from vitkit.convert.timm.config import Facts
from vitkit.data.preprocess import Preprocess
from vitkit.nn import bicubic, bicubic_antialias
from vitkit.support.files import read_json


class Reference(NamedTuple):
    """What a model says of itself. Args: traits: as `vitkit.convert.timm.config.read_traits` has them."""

    facts: Facts
    traits: Mapping[str, object]
    preprocess: Preprocess
    class_names: tuple[str, ...] | None
    decoder_heads: int | None = None
    norm_pix: bool | None = None


def read_reference(like: str) -> Reference:
    """timm:NAME, or a folder of vitkit or in timm's format. Nothing is downloaded.

    Raises: ValueError for what cannot speak for such tensors.
    """
    name = like.removeprefix("timm:")
    if (folder := Path(name).expanduser()).is_dir():
        if (folder / "config.yaml").is_file():
            return read_folder_reference(folder)
        if (folder / "config.json").is_file() and "architecture" in read_json(folder / "config.json"):
            return read_timm_reference(like, f"local-dir:{folder}")
    if folder.is_dir() or re.match(r"[a-z]{2,}:", name):
        rule = "like must be timm:NAME, or a folder with vitkit's config.yaml or timm's config.json"
        raise ValueError(f"{rule}, for a file in timm's layout or MAE's, got like={like}")
    return read_timm_reference(f"timm:{name}", name)


def check_architecture(source: str, own: Mapping[str, object], like: str, theirs: Mapping[str, object]) -> None:
    """Raises: ValueError that lists where two architectures differ."""
    if wrong := [f"{name} {theirs[name]} for {own[name]}" for name in own if own[name] != theirs[name]]:
        raise ValueError(
            f"like must be a model of the same architecture as {source}, got {like} with {', '.join(wrong)}"
        )


def read_timm_reference(source: str, name: str) -> Reference:
    with torch.device("meta"):
        model = create_timm_model(source, name, pretrained=False)
    classes, _ = read_class_names(cast(Any, model).pretrained_cfg, cast(Any, model).num_classes)
    return Reference(
        timm_config.read_facts(model),
        timm_config.read_traits(model.state_dict()),
        read_timm_preprocess(model)[0],
        classes,
    )


def read_folder_reference(folder: Path) -> Reference:
    """Of a model folder. Raises: ValueError for a model that timm could not hold."""
    from timm.models.vision_transformer import VisionTransformer

    bundle = open_folder(folder)
    config: dict[str, Any] = {**bundle.config}
    state = bundle.model.state_dict()
    args = read_part(config).args
    decoder = read_part(args["decoder"]).args["heads"] if "decoder" in args else None
    if decoder is not None:
        kept = ("encoder", "image_size", "patch_size", "channels", "prefix", "table")
        said = config["init_args"]
        encoder = {name: said.get(name, args[name]) for name in kept} | {"outputs": 0, "pool": "vitkit.nn.Mean"}
        config = {"class_path": "vitkit.models.ViT", "init_args": encoder}
        state = {name: tensor for name, tensor in state.items() if not name.startswith("decoder.")}
    with torch.device("meta"):
        facts = timm_config.read_facts(VisionTransformer(**timm_config.make_arguments(config)))
    smooth = read_part(read_part(args["table"]).args.get("resample", bicubic_antialias)).kind is not bicubic
    traits = timm_config.read_traits(timm_tensors.from_vitkit(state, config))
    known = facts._replace(antialias=smooth), traits, get_preprocess(bundle), bundle.class_names
    return Reference(*known, decoder, args.get("norm_pix"))
