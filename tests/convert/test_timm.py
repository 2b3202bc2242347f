from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit.convert.timm import convert
from vitkit.models import ViT
from vitkit.nn import Attend, Attention, Encoder, First, LayerNorm, Learned, Mean, PreNorm, bicubic
from vitkit.weights import load

WEIGHTS = Path(__file__).parents[2].parent / "shared" / "weights"
SIZE = (24, 40)  # a grid of 3 x 5
scaled = partial(PreNorm, scale=0.5)
normed = partial(Attention, qk_norm=LayerNorm)
read = partial(Attend, heads=4)


def peer(**arguments) -> nn.Module:
    """timm's model, every parameter random."""
    sizes = {"img_size": SIZE, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}
    reference = VisionTransformer(**{**sizes, **arguments}).double().eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.normal_(std=0.3)
    return reference


def ours(reference: nn.Module, *, prefix: int, pool=First, resample=None, **slots) -> ViT:
    table = Learned if resample is None else partial(Learned, resample=resample)
    model = ViT(Encoder(32, 2, 4, **slots), SIZE, (8, 8), 5, prefix=prefix, pool=pool, table=table).double().eval()
    load(model, convert(reference.state_dict(), (3, 5)))
    return model


@pytest.mark.parametrize(
    ("arguments", "variant"),
    [
        ({}, {"prefix": 1}),
        ({"no_embed_class": True}, {"prefix": 1}),
        ({"reg_tokens": 3}, {"prefix": 4}),
        ({"reg_tokens": 3, "no_embed_class": True}, {"prefix": 4}),
        ({"init_values": 0.5}, {"prefix": 1, "residual": scaled}),
        ({"qk_norm": True}, {"prefix": 1, "attention": normed}),
        ({"global_pool": "avg"}, {"prefix": 1, "pool": partial(Mean, norm=LayerNorm), "final_norm": False}),
        ({"global_pool": "avg", "fc_norm": False, "reg_tokens": 2}, {"prefix": 3, "pool": Mean}),
        ({"global_pool": "map", "class_token": False}, {"prefix": 0, "pool": read}),
        ({"global_pool": "map", "reg_tokens": 2, "pool_include_prefix": True}, {"prefix": 3, "pool": read}),
    ],
)
def test_a_converted_model_gives_the_same_outputs(arguments, variant):
    reference, images = peer(**arguments), torch.randn(2, 3, *SIZE, dtype=torch.float64)
    assert_close(ours(reference, **variant)(images), reference(images), rtol=0, atol=1e-10)


@pytest.mark.parametrize("no_embed_class", [False, True])
def test_positions_are_resampled_as_timm_does(no_embed_class):
    reference = peer(dynamic_img_size=True, reg_tokens=1, no_embed_class=no_embed_class)
    images = torch.randn(2, 3, 56, 16, dtype=torch.float64)
    model = ours(reference, prefix=2)
    # timm resamples in float32: about 1e-7 of positions that are about 1.
    assert_close(model(images), reference(images), rtol=0, atol=1e-5)


def test_gradients_are_the_same():
    reference, images = peer(reg_tokens=2, init_values=0.5), torch.randn(2, 3, *SIZE, dtype=torch.float64)
    model = ours(reference, prefix=3, residual=scaled)
    for network in (model, reference):
        network(images).square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in reference.named_parameters() if parameter.grad is not None}
    converted = convert(gradients, (3, 5))
    del converted["embed.prefix"]  # a sum of two leaves, each with this gradient
    found = {name: parameter.grad for name, parameter in model.named_parameters() if name in converted}
    assert len(found) == len(converted) == len(list(model.parameters())) - 1
    assert_close(found, converted, rtol=0, atol=1e-10)


def test_a_name_without_a_rule_is_reported_by_load():
    with pytest.raises(ValueError, match=r"norm_pre\.weight"):
        ours(peer(pre_norm=True), prefix=1)


@pytest.mark.parametrize("grid", [(4, 4), (7, 2)])
def test_a_grid_of_other_size_is_refused(grid):
    with pytest.raises(ValueError, match="grid must have as many patches"):
        convert(peer(reg_tokens=2).state_dict(), grid)


@pytest.mark.skipif(not WEIGHTS.is_dir(), reason="needs the trained weights in ../shared/weights")
def test_trained_weights_reproduce_every_block_of_their_reference():
    reference = {name: torch.from_numpy(array) for name, array in np.load(WEIGHTS / "vits14_reference.npz").items()}
    encoder = Encoder(384, 12, 6, residual=partial(PreNorm, scale=1.0))
    model = ViT(encoder, (518, 518), (14, 14), table=partial(Learned, resample=bicubic)).eval()
    load(model, convert(load_file(WEIGHTS / "vits14_real.safetensors"), (37, 37)), missing=("head.*",))
    seen: list[Tensor] = []

    def record(module: nn.Module, arguments: tuple[Tensor], output: Tensor) -> None:
        seen.append(output)

    for block in encoder.blocks:
        block.register_forward_hook(record)
    with torch.inference_mode():
        normed = model.features(reference["x"])
    assert len(seen) == len(reference["blocks"]) == 12
    for found, expected in zip(seen, reference["blocks"], strict=True):
        assert relative(found, expected) < 1e-4
    assert relative(normed, reference["ln"]) < 1e-5


def relative(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()
