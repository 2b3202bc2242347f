import math
from functools import partial
from inspect import unwrap

import pytest
import torch
from torch.testing import assert_close

from vitkit.data.tokenizer import Tokenizer
from vitkit.models import CLIP, TextTower, ViT
from vitkit.nn import Encoder, EndOfText, PatchEmbed

END = 9
IDS = torch.tensor([[3, 5, END, 0], [3, 4, 5, END], [3, END, 0, 0]])


def build_clip(outputs: int = 6, **options: float) -> CLIP:
    text = TextTower(Encoder(16, 2, 2, causal=True), 12, 7, outputs, pool=partial(EndOfText, end=END))
    return CLIP(ViT(Encoder(16, 2, 2), (8, 12), (4, 4), 6), text, **options)


def test_embeddings_of_both_towers_have_unit_length() -> None:
    model, images = build_clip(), torch.randn(2, 3, 8, 12)
    output = model(images, IDS)
    assert output.image.shape == (2, 6) and output.text.shape == (3, 6)
    assert_close(output.image, model.encode_image(images))
    assert_close(output.text, model.encode_text(IDS))
    assert_close(output.text, model.text(IDS) / model.text(IDS).norm(dim=1, keepdim=True))
    for rows in (output.image, output.text):
        assert_close(rows.norm(dim=1), torch.ones(len(rows)))


def test_clamp_limits_scale_from_above() -> None:
    model = build_clip()
    assert model(torch.randn(1, 3, 8, 12), IDS).scale.item() == pytest.approx(1 / 0.07)
    assert model.log_scale.item() == pytest.approx(math.log(1 / 0.07))
    with torch.no_grad():
        model.log_scale.fill_(9.0)
    model.clamp()
    assert model.log_scale.exp().item() == pytest.approx(100.0)
    with torch.no_grad():
        model.log_scale.fill_(-9.0)
    model.clamp()
    assert model.log_scale.item() == -9.0


def test_bias_is_a_parameter_only_if_given() -> None:
    images = torch.randn(1, 3, 8, 12)
    plain, biased = build_clip(), build_clip(bias=-10.0)
    assert "bias" not in dict(plain.named_parameters())
    assert plain(images, IDS).bias.item() == 0.0 and biased(images, IDS).bias.item() == -10.0
    assert dict(biased.named_parameters())["bias"].requires_grad


def test_embeddings_and_scale_are_float32_under_autocast() -> None:
    model = build_clip()
    with torch.autocast("cpu", torch.bfloat16):
        output = model(torch.randn(2, 3, 8, 12), IDS)
    assert {tensor.dtype for tensor in output} == {torch.float32}
    assert_close(output.text.norm(dim=1), torch.ones(3))


def test_incompatible_towers_and_scales_are_rejected() -> None:
    with pytest.raises(ValueError, match="towers must have equal outputs, got image 6, text 5"):
        build_clip(5)
    with pytest.raises(ValueError, match=r"scale must be above 0 and at most most=100.0, got scale=0.0"):
        build_clip(scale=0.0)
    with pytest.raises(ValueError, match=r"at most most=5.0, got scale=9.0"):
        build_clip(scale=9.0, most=5.0)


def test_empty_texts_give_no_rows_and_unbatched_image_is_rejected() -> None:
    assert build_clip().encode_text(Tokenizer(7).pad_rows([])).shape == (0, 6)
    with pytest.raises(ValueError, match=r"images must be a batch, B C H W, got \(3, 8, 12\)"):
        unwrap(PatchEmbed.patchify)(build_clip().image.embed, torch.zeros(3, 8, 12))  # users have no shape checks
