"""The converters of Hugging Face's CLIP and SigLIP, for both towers or for the image tower alone."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from vitkit.convert.differences import compare_pairs, draw_ids, draw_images
from vitkit.convert.hf import clip_config, clip_tensors
from vitkit.convert.hf.converter import Config, Converter
from vitkit.convert.overrides import Conversion
from vitkit.models import CLIP
from vitkit.models.parts import require_pair_model


def write_config(config: Config, class_names: Sequence[str] = (), multilabel: bool = False) -> dict[str, Any]:
    return clip_config.write_config(config)


def compare_clip(hf_model: Any, model: nn.Module, conversion: Conversion) -> float:
    """Return the largest difference of embeddings and logits."""
    clip, images = require_pair_model(model), draw_images(conversion)
    ids = draw_ids(clip)
    outputs = hf_model(pixel_values=images, input_ids=ids)
    bias = torch.zeros(1) if clip.bias is None else hf_model.logit_bias
    pair = outputs.image_embeds, outputs.text_embeds, hf_model.logit_scale.exp(), bias
    return compare_pairs(clip, images, ids, pair)


BOTH = Converter(
    {"clip": "CLIP", "clip_vision_model": "CLIP", "siglip": "Siglip", "siglip_vision_model": "Siglip"},
    (CLIP,),
    clip_config.read_config,
    clip_tensors.to_vitkit,
    write_config,
    clip_tensors.from_vitkit,
    compare_clip,
    processor="CLIP",
)
IMAGE = BOTH._replace(
    read_config=partial(clip_config.read_config, image_only=True),
    to_vitkit=partial(clip_tensors.to_vitkit, image_only=True),
)
CONVERTER = BOTH._replace(image=IMAGE, is_image_tower=clip_tensors.is_image_tower)
