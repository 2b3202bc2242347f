"""The libraries that a model can be exported to, known before it is trained."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from vitkit.bundle import model_config
from vitkit.bundle.transfer import make_classifier_config
from vitkit.convert.export_targets import find_export_targets, format_export_targets
from vitkit.convert.overrides import Conversion
from vitkit.convert.write import WRITERS
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer

CONFIGS = Path(__file__).parents[2] / "configs"
OVERLAYS = {"contrast_siglip": "contrast_openmoji", "contrast_lit": "contrast_folder"}


def merge(first: Any, second: Any) -> Any:
    if not (isinstance(first, dict) and isinstance(second, dict)):
        return second
    return first | {name: merge(first.get(name), value) for name, value in second.items()}


def read_recipe(name: str) -> dict[str, Any]:
    recipe = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text("utf-8"))
    return merge(read_recipe(OVERLAYS[name]), recipe) if name in OVERLAYS else recipe


def fill_links(model: dict[str, Any], size: list[int], channels: int) -> dict[str, Any]:
    """Return the model's config with the arguments that follow from data."""
    arguments = model["init_args"]
    if "image" in arguments:
        image = fill_links(arguments["image"], size, channels)
        return {**model, "init_args": arguments | {"image": image}}
    return {**model, "init_args": {"outputs": 10} | arguments | {"image_size": size, "channels": channels}}


def list_recipes() -> list[str]:
    recipes = {path.stem: read_recipe(path.stem) for path in sorted(CONFIGS.glob("*.yaml"))}
    return [name for name, recipe in recipes.items() if recipe.get("model", {}).get("init_args", {}).get("model")]


@pytest.mark.parametrize("name", list_recipes())
def test_each_config_s_model_is_held_by_a_library(name: str) -> None:
    recipe = read_recipe(name)
    model = recipe["model"]["init_args"]["model"]
    if name == "finetune_mae_imagenet_b16":  # its model comes from a folder
        recipe = read_recipe("pretrain_mae_imagenet_b16")
        pretrained = fill_links(recipe["model"]["init_args"]["model"], [224, 224], 3)
        pretrained["init_args"].pop("outputs")
        model = merge(make_classifier_config(pretrained, outputs=10), model)
    preprocess = None
    if values := recipe["data"]["init_args"].get("preprocess"):
        model = fill_links(model, values["size"], len(values["mean"]))
        if model["class_path"].endswith("MAE"):
            model["init_args"].pop("outputs")
        preprocess = Preprocess(tuple(values["size"]), tuple(values["mean"]), tuple(values["std"]))
    targets = find_export_targets(model, preprocess, Tokenizer())
    assert targets.layouts, targets.obstacles
    assert targets.programs or model["class_path"].endswith("TextDecoder")


def make_encoder(**arguments: Any) -> dict[str, Any]:
    return {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 32, "depth": 1, "heads": 2, **arguments}}


def make_vit(**arguments: Any) -> dict[str, Any]:
    sizes = {"image_size": [16, 16], "patch_size": [8, 8], "outputs": 6}
    return {"class_path": "vitkit.models.ViT", "init_args": {**sizes, "encoder": make_encoder(), **arguments}}


def make_clip(text: dict[str, Any], **image: Any) -> dict[str, Any]:
    pool = {"class_path": "vitkit.nn.EndOfText", "init_args": {"end": 256}}
    tower = {"encoder": make_encoder(causal=True), "vocabulary": 257, "context": 8, "outputs": 6, "pool": pool, **text}
    towers = {"image": make_vit(**image), "text": {"class_path": "vitkit.models.TextTower", "init_args": tower}}
    return {"class_path": "vitkit.models.CLIP", "init_args": towers}


UNBIASED = {"head": {"class_path": "torch.nn.Linear", "init_args": {"bias": False}}}
ROTARY = {"class_path": "vitkit.nn.Rotary", "init_args": {"axes": 2}}
DECODER = {"class_path": "vitkit.models.MAE", "init_args": {"encoder": make_encoder(), "decoder": make_encoder(dim=16)}}
DECODER["init_args"] |= {"image_size": [16, 16], "patch_size": [8, 8]}
MODELS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "ViT": (make_vit(), ("timm", "hf", "mae")),
    "mean": (make_vit(pool="vitkit.nn.Mean", **UNBIASED), ("timm", "openclip")),
    "rotary": (make_vit(encoder=make_encoder(position=ROTARY)), ()),
    "MAE": (DECODER, ("hf", "mae")),
    "CLIP": (make_clip(UNBIASED, pre_norm="vitkit.nn.LayerNorm", **UNBIASED), ("hf", "openclip")),
    "no pre_norm": (make_clip(UNBIASED, **UNBIASED), ("openclip",)),
    "bias in the image tower": (make_clip(UNBIASED), ()),
    "bias in the text tower": (make_clip({}, pre_norm="vitkit.nn.LayerNorm", **UNBIASED), ("openclip",)),
}


@pytest.mark.parametrize("name", MODELS)
def test_targets_are_the_layouts_that_a_trained_model_is_written_to(name: str, tmp_path: Path) -> None:
    config, layouts = MODELS[name]
    model = model_config.build_model(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    preprocess, tokenizer = Preprocess((16, 16), (0.5,) * 3, (0.5,) * 3), Tokenizer(8, vocabulary="bytes")
    targets = find_export_targets(config, preprocess, tokenizer)
    assert targets.layouts == layouts
    conversion = Conversion(config, model.state_dict(), preprocess, (), tokenizer=tokenizer)
    for layout in WRITERS:
        (tmp_path / layout).mkdir()
        if layout in layouts:
            WRITERS[layout].write(conversion, tmp_path / layout)
        else:
            with pytest.raises(ValueError):
                WRITERS[layout].write(conversion, tmp_path / layout)


def test_line_names_the_libraries_or_the_nearest_with_what_it_lacks() -> None:
    preprocess, tokenizer = Preprocess((16, 16), (0.5,) * 3, (0.5,) * 3), Tokenizer(8, vocabulary="bytes")
    lines = {name: format_export_targets(config, preprocess, tokenizer) for name, (config, _) in MODELS.items()}
    assert lines["ViT"] == "exports to: timm, transformers, MAE's code, ONNX, torch.export"
    assert lines["rotary"] == (
        "exports to: ONNX, torch.export; no other library holds this model, the nearest is timm: "
        "position must be left out, got Rotary"
    )
    assert lines["bias in the image tower"].endswith(
        "the nearest is OpenCLIP: head must be without a bias in the image tower"
    )
    foreign = make_vit(pool="theirs.Pool")
    assert format_export_targets(foreign, preprocess, None).startswith("exports to: nothing, as no model folder may")


def test_targets_need_no_other_library() -> None:
    code = (
        "import sys; from vitkit.convert.export_targets import format_export_targets; "
        f"print(format_export_targets({make_vit()!r}, None, None)); "
        "assert not {'timm', 'transformers', 'open_clip', 'onnx', 'torchvision', 'lightning'} & {*sys.modules}"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
