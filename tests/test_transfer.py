from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.models import adapt_input_conv
from torch.testing import assert_close

from vitkit.models import ViT
from vitkit.nn import Encoder, Learned, Sinusoidal
from vitkit.preprocess import Preprocess
from vitkit.transfer import for_channels, start_from
from vitkit.weights import save


def vit(size: tuple[int, int] = (16, 24), outputs: int = 3, **options: Any) -> ViT:
    return ViT(Encoder(16, 2, 2), size, (8, 8), outputs, **options)


def preprocess(channels: int = 3, size: tuple[int, int] = (16, 24)) -> Preprocess:
    return Preprocess(size, (0.5,) * channels, (0.25,) * channels)


@pytest.fixture
def pretrained(tmp_path: Path) -> tuple[ViT, Path]:
    model = vit()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    encoder = {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 16, "depth": 2, "heads": 2}}
    arguments = {"encoder": encoder, "image_size": [16, 24], "patch_size": [8, 8], "outputs": 3}
    config = {"class_path": "vitkit.models.ViT", "init_args": arguments}
    save(tmp_path / "model", model, config, preprocess(), ("cat", "dog", "eel"))
    return model, tmp_path / "model"


def test_a_model_starts_from_all_but_the_head(pretrained: tuple[ViT, Path]) -> None:
    source, folder = pretrained
    model = vit(outputs=5)
    head = model.head.weight.clone()
    told = start_from(folder, model, tuple("abcde"), preprocess())
    assert told == [f"weights of {folder}", "a new head for 5 classes"]
    assert_close(model.features(torch.ones(1, 3, 16, 24)), source.features(torch.ones(1, 3, 16, 24)), rtol=0, atol=0)
    assert torch.equal(model.head.weight, head)


def test_the_head_is_kept_where_the_classes_are_the_same(pretrained: tuple[ViT, Path]) -> None:
    source, folder = pretrained
    model = vit()
    assert "the head too, of the same classes" in start_from(folder, model, ("cat", "dog", "eel"), preprocess())
    assert_close(model.head.weight, source.head.weight, rtol=0, atol=0)
    other = vit()
    start_from(folder, other, ("ant", "bee", "cow"), preprocess())
    assert not torch.equal(other.head.weight, source.head.weight)


def test_at_another_size_the_table_is_resampled_by_its_rule(pretrained: tuple[ViT, Path]) -> None:
    source, folder = pretrained
    model = vit((32, 40))
    told = start_from(folder, model, ("cat", "dog", "eel"), preprocess(size=(32, 40)))
    assert {"embed.table from (2, 3) to (4, 5)", "size (32, 40), was (16, 24)"} < {*told}
    images = torch.rand(1, 3, 32, 40)
    assert_close(model(images), source(images))  # which resamples at every pass


def test_other_preprocessing_is_told(pretrained: tuple[ViT, Path]) -> None:
    told = start_from(pretrained[1], vit(), ("cat", "dog", "eel"), Preprocess((16, 24), (0.4,) * 3, (0.25,) * 3))
    assert told[-1] == "mean (0.4, 0.4, 0.4), was (0.5, 0.5, 0.5)"


def test_a_grey_picture_gives_what_it_gave_as_rgb(pretrained: tuple[ViT, Path]) -> None:
    source, folder = pretrained
    model = vit(channels=1)
    told = start_from(folder, model, ("cat", "dog", "eel"), preprocess(1))
    assert "embed.patches from 3 to 1 channels" in told
    grey = torch.rand(2, 1, 16, 24)
    assert_close(model(grey), source(grey.expand(-1, 3, -1, -1)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("channels", [1, 2, 4, 6, 13])
def test_patch_weights_follow_timms_rule_for_other_channels(channels: int) -> None:
    weight = torch.randn(8, 3, 4, 4)
    assert_close(for_channels(weight, channels), adapt_input_conv(channels, weight.clone()))
    grey = torch.randn(8, 1, 4, 4)
    assert_close(for_channels(for_channels(grey, channels), 1), grey)


def test_another_architecture_is_an_error_that_lists_the_differences(pretrained: tuple[ViT, Path]) -> None:
    for table in (partial(Learned), Sinusoidal):
        deeper = ViT(Encoder(16, 3, 2), (16, 24), (8, 8), 3, table=table)
        with pytest.raises(ValueError, match=r"- encoder.blocks.2.attn.f.out.bias: model \(16,\), not in the file"):
            start_from(pretrained[1], deeper, ("cat", "dog", "eel"), preprocess())
