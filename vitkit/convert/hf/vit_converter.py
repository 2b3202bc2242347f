"""The converter of Hugging Face's ViT, DeiT, ViTMAE and DINOv2. N patches, Q numbers in a patch."""

from typing import Any

from torch import nn

from vitkit.convert.differences import compute_difference, draw_images, draw_masking_noise
from vitkit.convert.hf import vit_config, vit_tensors
from vitkit.convert.hf.converter import Converter
from vitkit.convert.overrides import Conversion, count_outputs
from vitkit.models import MAE, ViT
from vitkit.models.parts import get_image_tower
from vitkit.nn.embed import gather_patches


def compare_vit(hf_model: Any, model: nn.Module, conversion: Conversion) -> float:
    """Return the largest difference of outputs."""
    images = draw_images(conversion)
    match model:
        case MAE():
            noise = draw_masking_noise(model, images)
            ours = model(images, noise)
            pixels = hf_model(images, noise=noise.flatten(1)).logits  # of all patches, (B, N, Q)
            return compute_difference(gather_patches(pixels, ours.hidden), ours.pixels)
        case ViT() if count_outputs(conversion.config):
            return compute_difference(hf_model(images).logits, model(images))
    return compute_difference(hf_model(images).last_hidden_state, get_image_tower(model).features(images))


CONVERTER = Converter(
    {"vit": "ViT", "deit": "DeiT", "vit_mae": "ViT", "dinov2": "Bit", "dinov2_with_registers": "Bit"},
    (ViT, MAE),
    vit_config.read_config,
    vit_tensors.to_vitkit,
    vit_config.write_config,
    vit_tensors.from_vitkit,
    compare_vit,
    processor="Bit",
    read_classes=vit_config.read_labels,
    find_left_out=vit_tensors.find_left_out,
)
