from functools import partial

import pytest
import timm
import torch
from torch import nn
from torch.testing import assert_close

from vitkit.models import SIZES, ViT, encoder
from vitkit.nn import (
    ALiBi,
    Attend,
    Attention,
    Encoder,
    First,
    Mean,
    PostNorm,
    PreNorm,
    Rotary,
    Sinusoidal,
    SwiGLU,
    masks,
)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("image", "patch", "outputs"), [((224, 224), (16, 16), 1000), ((96, 160), (16, 8), 7)])
def test_number_of_parameters_equals_formula(size, image, patch, outputs):
    D, L, _, ratio = SIZES[size]
    with torch.device("meta"):
        model = ViT(encoder(size), image, patch, outputs)
    hidden, N = int(D * ratio), image[0] // patch[0] * (image[1] // patch[1])
    block = (4 * D * D + 4 * D) + (2 * D * hidden + hidden + D) + 4 * D  # = 12 D^2 + 13 D at ratio 4
    embed = 3 * patch[0] * patch[1] * D + D + N * D + D
    expected = L * block + embed + 2 * D + outputs * D + outputs
    assert count_parameters(model) == expected
    assert ratio != 4 or block == 12 * D * D + 13 * D


@pytest.mark.parametrize(
    ("size", "name"),
    [
        ("ti", "vit_tiny_patch16_224"),
        ("s", "vit_small_patch16_224"),
        ("b", "vit_base_patch16_224"),
        ("l", "vit_large_patch16_224"),
        ("h", "vit_huge_patch14_224"),
        ("so400m", "vit_so400m_patch14_siglip_gap_224"),
    ],
)
def test_sizes_equal_timm(size, name):
    with torch.device("meta"):
        theirs = timm.create_model(name, num_classes=1000)
        prefix = theirs.num_prefix_tokens
        pool = Mean if prefix == 0 else First
        ours = ViT(encoder(size), theirs.patch_embed.img_size, theirs.patch_embed.patch_size, prefix=prefix, pool=pool)
    rows = prefix * SIZES[size].dim  # timm's learned positions have a row for CLS
    assert count_parameters(ours) == count_parameters(theirs) - rows


def test_unknown_size_error_lists_sizes():
    with pytest.raises(ValueError, match="ti, s, b, l, h, so400m, got size='xl'"):
        encoder("xl")


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    "slots",
    [
        {},
        {"position": partial(Rotary, axes=2), "mlp": SwiGLU, "norm": nn.RMSNorm},
        {"position": partial(ALiBi, prefix=1), "residual": PostNorm, "final_norm": False},
        {"residual": partial(PreNorm, scale=1e-5), "attention": partial(Attention, kv_heads=2, qk_norm=nn.LayerNorm)},
    ],
)
@pytest.mark.parametrize("pool", [First, Mean, partial(Attend, heads=4)])
@pytest.mark.parametrize("table", [None, Sinusoidal])
def test_one_model_takes_images_of_several_sizes(slots, pool, table):
    model = ViT(Encoder(32, 2, 4, **slots), (16, 24), (8, 8), 5, pool=pool, **({"table": table} if table else {}))
    sizes = [(16, 24), (24, 16), (8, 64), (40, 40)]
    outputs = [model(torch.randn(2, 3, *size)) for size in sizes]
    assert all(y.shape == (2, 5) and y.isfinite().all() for y in outputs)
    torch.stack(outputs).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


def test_output_is_head_of_cls_token(randomise):
    model = randomise(ViT(Encoder(32, 2, 4), (16, 24), (8, 8), 5, channels=1, prefix=3))
    images = torch.randn(2, 1, 16, 24).double()
    assert model.features(images).shape == (2, 3 + 6, 32)
    assert_close(model(images), model.head(model.features(images)[:, 0]))


def test_indivisible_image_size_is_rejected():
    with pytest.raises(ValueError, match=r"image_size=\(30, 32\), patch_size=\(16, 16\); resize to \(16, 32\)"):
        ViT(Encoder(32, 1, 4), (30, 32))


def test_packed_images_are_encoded_as_separate_images(randomise):
    """Packing (NaViT, https://arxiv.org/abs/2307.06304) needs only positions and a mask."""
    model = randomise(ViT(Encoder(32, 2, 4, position=partial(Rotary, axes=2)), (24, 24), (8, 8), 5))
    images = [torch.randn(1, 3, *size).double() for size in ((24, 24), (16, 40), (8, 24))]
    tokens, positions = zip(*(model.embed(image) for image in images), strict=True)
    lengths = torch.tensor([sequence.shape[1] for sequence in tokens])
    numbers = torch.arange(3).repeat_interleave(lengths)[None]
    mask = masks.documents(numbers, numbers)
    packed = model.encoder(torch.cat(tokens, 1), torch.cat(positions, 1), mask=mask)
    first = packed[0, lengths.cumsum(0) - lengths]
    assert_close(model.head(first), torch.cat([model(image) for image in images]))
