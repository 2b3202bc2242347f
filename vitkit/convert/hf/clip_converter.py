"""Hugging Face's CLIP and SigLIP, of both towers or of the image tower, read and written."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from vitkit.convert.differences import compare_pairs, draw_ids, draw_images
from vitkit.convert.hf import clip_config, clip_tensors
from vitkit.convert.hf.converter import Config, Converter
from vitkit.convert.overrides import Imported
from vitkit.models import CLIP
from vitkit.models.parts import pair_model


def write_config(config: Config, class_names: Sequence[str] = ()) -> dict[str, Any]:
    return clip_config.write_config(config)


def compare(theirs: Any, model: nn.Module, found: Imported) -> float:
    clip, images = pair_model(model), draw_images(found)
    ids = draw_ids(clip)
    other = theirs(pixel_values=images, input_ids=ids)
    bias = torch.zeros(1) if clip.bias is None else theirs.logit_bias
    return compare_pairs(clip, images, ids, (other.image_embeds, other.text_embeds, theirs.logit_scale.exp(), bias))


WHOLE = Converter(
    {"clip": "CLIP", "clip_vision_model": "CLIP", "siglip": "Siglip", "siglip_vision_model": "Siglip"},
    (CLIP,),
    clip_config.read_config,
    clip_tensors.to_vitkit,
    write_config,
    clip_tensors.from_vitkit,
    compare,
    processor="CLIP",
)
IMAGE = WHOLE._replace(
    read_config=partial(clip_config.read_config, image=True), to_vitkit=partial(clip_tensors.to_vitkit, image=True)
)
CONVERTER = WHOLE._replace(image=IMAGE, is_image_tower=clip_tensors.is_image_tower)
