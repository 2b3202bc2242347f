from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from vitkit.models import CLIP, MAE, TextDecoder, TextTower, ViT
from vitkit.models.headed_tower import HeadedTower
from vitkit.models.parts import (
    find_image_tower,
    find_masked_autoencoder,
    get_image_tower,
    get_inputs,
    get_layers,
    get_layers_by_tower,
    get_text_tower,
    require_image_model,
    require_masked_autoencoder,
    require_pair_model,
)
from vitkit.models.protocol import ImageModel, Model
from vitkit.nn import Encoder, EndOfText, Mean

SIZE, PATCH = (8, 12), (4, 2)  # a grid of 2 x 6


def build_vit() -> ViT:
    return ViT(Encoder(16, 2, 2), SIZE, PATCH, 6, prefix=3)


def build_mae() -> MAE:
    return MAE(Encoder(16, 2, 2), Encoder(8, 1, 2), SIZE, PATCH, prefix=2)


def build_text() -> TextTower:
    return TextTower(Encoder(16, 3, 2, causal=True), 12, 7, 6, pool=partial(EndOfText, end=9))


def build_decoder() -> TextDecoder:
    return TextDecoder(Encoder(16, 2, 2, causal=True), 12, 7)


def build_clip() -> CLIP:
    return CLIP(build_vit(), build_text())


def test_models_declare_inputs_and_other_modules_have_none() -> None:
    models: list[Model] = [
        build_vit(),
        build_mae(),
        build_text(),
        build_decoder(),
        build_clip(),
    ]  # pyright checks the Protocol
    assert [model.inputs for model in models] == [("images",), ("images",), ("texts",), ("texts",), ("images", "texts")]
    assert [get_inputs(model) for model in (build_vit(), build_clip(), Encoder(8, 1, 2))] == [
        ("images",),
        ("images", "texts"),
        (),
    ]


def test_image_models_satisfy_protocol() -> None:
    vit, mae = build_vit(), build_mae()
    models: list[ImageModel] = [vit, mae]  # pyright checks the Protocol
    assert [(model.outputs, model.prefix, model.grid((16, 6))) for model in models] == [
        (6, 3, (4, 3)),
        (16, 2, (4, 3)),
    ]
    with torch.no_grad():
        images = torch.randn(2, 3, *SIZE)
        for model in models:
            tokens = model.features(images)
            assert tokens.shape == (2, model.prefix + 12, 16)
            assert model.head(model.pool(tokens)).shape == (2, model.outputs)
        tokens = mae.features(images)
        assert_close(mae.pool(tokens), tokens[:, 2:].mean(1))
        assert_close(mae.head(mae.pool(tokens)), mae.pool(tokens))
        assert_close(vit.head(vit.pool(vit.features(images))), vit(images))
    with pytest.raises(ValueError, match="image_size must be a multiple of patch_size"):
        vit.grid((9, 6))


def test_headed_tower_equals_head_of_pooled_tower_features() -> None:
    for tower in (build_vit(), build_mae()):
        model: ImageModel = HeadedTower(tower, head := nn.Linear(16, 5), 5)  # pyright checks the Protocol
        assert (model.inputs, model.outputs, model.prefix) == (("images",), 5, tower.prefix)
        assert model.grid((16, 6)) == tower.grid((16, 6))
        images = torch.randn(2, 3, *SIZE)
        with torch.no_grad():
            expected = head(tower.pool(tower.features(images)))
            assert_close(model.head(model.pool(model.features(images))), expected)
            assert_close(HeadedTower(tower, head, 5)(images), expected)
        assert get_image_tower(HeadedTower(tower, head, 5)) is tower
        assert get_layers(HeadedTower(tower, head, 5)).blocks == get_layers(tower).blocks


def test_require_functions_reject_other_models() -> None:
    clip, mae, vit = build_clip(), build_mae(), build_vit()
    assert (require_pair_model(clip), require_masked_autoencoder(mae), require_image_model(vit)) == (clip, mae, vit)
    with pytest.raises(ValueError, match="model must be a CLIP, which reads texts too, got ViT"):
        require_pair_model(vit)
    with pytest.raises(ValueError, match="model must be an MAE to reconstruct, got CLIP"):
        require_masked_autoencoder(clip)
    with pytest.raises(ValueError, match="model must be a ViT or an MAE, got CLIP"):
        require_image_model(clip)


def test_pool_and_head_of_mae_are_not_submodules() -> None:
    mae = build_mae()
    names, state, attributes = dict(mae.named_modules()).keys(), mae.state_dict().keys(), vars(mae).keys()
    mae.pool(mae.features(torch.randn(1, 3, *SIZE)))
    assert isinstance(mae.pool, Mean) and isinstance(mae.head, nn.Identity)
    assert dict(mae.named_modules()).keys() == names and vars(mae).keys() == attributes
    assert mae.state_dict().keys() == state
    assert not {name.split(".")[0] for name in [*names, *state]} & {"pool", "head", "inputs", "outputs", "prefix"}
    assert [name for name, _ in mae.named_children()] == ["embed", "encoder", "decoder"]


def test_towers_are_found_in_models_and_clips() -> None:
    vit, mae, text, clip = build_vit(), build_mae(), build_text(), build_clip()
    assert get_image_tower(vit) is vit and get_image_tower(mae) is mae and get_image_tower(clip) is clip.image
    assert get_text_tower(text) is text and get_text_tower(clip) is clip.text
    assert find_image_tower(clip) is clip.image and find_image_tower(text) is find_image_tower(nn.Identity()) is None
    assert find_masked_autoencoder(mae) is mae and find_masked_autoencoder(vit) is None


@pytest.mark.parametrize(
    ("part", "model", "message"),
    [
        (get_image_tower, build_text(), "model must be a ViT or an MAE, or a CLIP with its image tower, got TextTower"),
        (get_text_tower, build_mae(), "model must be a TextTower, or a CLIP with its text tower, got MAE"),
        (get_layers, nn.Linear(2, 2), "model must have an Encoder to have layers, got Linear"),
        (
            get_layers,
            build_clip(),
            r"model must have one tower, got CLIP of ViT, TextTower; take get_image_tower\(model\) or "
            r"get_text_tower\(model\)",
        ),
    ],
)
def test_missing_part_is_rejected(part: Callable[[nn.Module], object], model: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        part(model)


def test_layers_are_embedding_and_blocks() -> None:
    vit, mae, text, decoder = build_vit(), build_mae(), build_text(), build_decoder()
    for model, embedding in (
        (vit, (vit.embed, vit.pre_norm)),
        (mae, (mae.embed,)),  # without the decoder's blocks
        (text, (text.embed,)),
        (decoder, (decoder.embed,)),
    ):
        blocks = tuple(model.encoder.blocks)
        assert get_layers(model) == get_layers(nn.Sequential(model)) == get_layers_by_tower(model)[0]
        assert get_layers(model).blocks == blocks
        assert get_layers(model).modules == ((*embedding, model.encoder.position), *((block,) for block in blocks))


def test_layers_are_listed_by_tower() -> None:
    clip = build_clip()
    assert get_layers_by_tower(clip) == [get_layers(clip.image), get_layers(clip.text)]
    assert get_layers_by_tower(nn.Linear(2, 2)) == []


def test_decoder_layers_are_not_layers_of_the_mae() -> None:
    mae = build_mae()
    assert get_layers_by_tower(nn.Sequential(mae, nn.Linear(2, 2))) == get_layers_by_tower(mae) == [get_layers(mae)]
    blocks = tuple(mae.decoder.encoder.blocks)
    assert get_layers(mae.decoder).blocks == get_layers(nn.Sequential(mae.decoder)).blocks == blocks
    assert get_layers(mae.decoder).modules == ((mae.decoder.encoder.position,), *((block,) for block in blocks))
