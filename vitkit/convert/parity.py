"""The largest difference between a model's outputs and those of its export, which another library loads strictly."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from vitkit.convert import mae_weights
from vitkit.convert.differences import compare_pairs, compute_difference, draw_ids, draw_images, draw_masking_noise
from vitkit.convert.hf.model_types import find_writer
from vitkit.convert.importer import build_bundle
from vitkit.convert.overrides import Conversion, get_grid
from vitkit.models import CLIP, MAE


def compare_timm(conversion: Conversion, folder: Path) -> float:
    import timm

    images = draw_images(conversion)
    reference = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    return compute_difference(reference(images), build_bundle(conversion).model(images))


def compare_hf(conversion: Conversion, folder: Path) -> float:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    name = json.loads((folder / "config.json").read_text("utf-8"))["architectures"][0]
    # By default these classes add a pooler, with random weights if the file has none.
    options = {"add_pooling_layer": False} if name in ("ViTModel", "DeiTModel") else {}
    reference, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True, **options)
    if wrong := {kind: names for kind, names in info.items() if names}:
        raise ValueError(f"{name} must load every tensor, got {wrong}")
    converter = find_writer(conversion.config)
    return converter.compare(reference.eval(), build_bundle(conversion).model, conversion)


def compare_mae(conversion: Conversion, folder: Path) -> float:
    """Compare with the export read back into vitkit, its tables as weights: no library has MAE's own code."""
    images, model = draw_images(conversion), build_bundle(conversion).model
    tables = dict.fromkeys(("table", "decoder_table") if isinstance(model, MAE) else ("table",), "vitkit.nn.Learned")
    config = {**conversion.config, "init_args": {**conversion.config["init_args"], **tables}}
    state = mae_weights.to_vitkit(load_file(folder / "model.safetensors"), get_grid(config))
    reference = build_bundle(conversion._replace(config=config, state=state)).model
    if isinstance(model, MAE):
        noise = draw_masking_noise(model, images)
        return compute_difference(reference(images, noise).pixels, model(images, noise).pixels)
    return compute_difference(reference(images), model(images))


def compare_openclip(conversion: Conversion, folder: Path) -> float:
    import open_clip

    images = draw_images(conversion)
    match model := build_bundle(conversion).model:
        case CLIP():
            clip: Any = open_clip.create_model(f"local-dir:{folder}").eval()
            ids = draw_ids(model)
            bias = torch.zeros(1) if clip.logit_bias is None else clip.logit_bias
            return compare_pairs(model, images, ids, (*clip(images, ids)[:2], clip.logit_scale.exp(), bias))
    model_cfg = json.loads((folder / "open_clip_config.json").read_text("utf-8"))["model_cfg"]
    text = open_clip.CLIPTextCfg(context_length=1, vocab_size=1, width=8, heads=1, layers=1)  # required, not used
    reference = open_clip.CLIP(**model_cfg, text_cfg=text).eval()
    state = load_file(folder / "open_clip_model.safetensors")
    reference.visual.load_state_dict({name.removeprefix("visual."): tensor for name, tensor in state.items()})
    return compute_difference(reference.encode_image(images), model(images))
