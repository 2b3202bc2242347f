from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.models import adapt_input_conv
from torch.testing import assert_close

from vitkit.bundle import model_config
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import open_folder, save
from vitkit.bundle.transfer import (
    adapt_channels,
    adapt_decoder_channels,
    load_pretrained,
    load_pretrained_tower,
    make_classifier_config,
)
from vitkit.convert.open import open_model
from vitkit.data.preprocess import Preprocess
from vitkit.models import MAE, ViT
from vitkit.nn import Encoder, Learned, Mean, Sinusoidal
from vitkit.nn.embed import split_patches


def build_vit(size: tuple[int, int] = (16, 24), outputs: int = 3, **options: Any) -> ViT:
    return ViT(Encoder(16, 2, 2), size, (8, 8), outputs, **options)


def build_preprocess(channels: int = 3, size: tuple[int, int] = (16, 24)) -> Preprocess:
    return Preprocess(size, (0.5,) * channels, (0.25,) * channels)


@pytest.fixture
def pretrained(tmp_path: Path) -> tuple[ViT, Path]:
    model = build_vit()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    encoder = {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 16, "depth": 2, "heads": 2}}
    arguments = {"encoder": encoder, "image_size": [16, 24], "patch_size": [8, 8], "outputs": 3}
    config = {"class_path": "vitkit.models.ViT", "init_args": arguments}
    save(tmp_path / "model", Bundle(model, config, build_preprocess(), ("cat", "dog", "eel")))
    return model, tmp_path / "model"


def test_other_classes_get_a_new_head(pretrained: tuple[ViT, Path]) -> None:
    source, folder = pretrained
    model = build_vit(outputs=5)
    head = model.get_parameter("head.weight").clone()
    notes = load_pretrained(open_folder(folder), model, tuple("abcde"), build_preprocess())
    assert notes == [f"weights of {folder}", "a new head for 5 classes"]
    assert_close(model.features(torch.ones(1, 3, 16, 24)), source.features(torch.ones(1, 3, 16, 24)), rtol=0, atol=0)
    assert torch.equal(model.get_parameter("head.weight"), head)


def test_equal_classes_keep_the_head(pretrained: tuple[ViT, Path]) -> None:
    source, folder = pretrained
    model = build_vit()
    notes = load_pretrained(open_folder(folder), model, ("cat", "dog", "eel"), build_preprocess())
    assert "the head too, of the same classes" in notes
    assert_close(model.get_parameter("head.weight"), source.get_parameter("head.weight"), rtol=0, atol=0)
    other = build_vit()
    load_pretrained(open_folder(folder), other, ("ant", "bee", "cow"), build_preprocess())
    assert not torch.equal(other.get_parameter("head.weight"), source.get_parameter("head.weight"))


def test_other_image_size_resamples_the_table(pretrained: tuple[ViT, Path]) -> None:
    source, folder = pretrained
    model = build_vit((32, 40))
    notes = load_pretrained(open_folder(folder), model, ("cat", "dog", "eel"), build_preprocess(size=(32, 40)))
    assert {"embed.table from (2, 3) to (4, 5)", "size (32, 40), was (16, 24)"} < {*notes}
    images = torch.rand(1, 3, 32, 40)
    assert_close(model(images), source(images))  # resampled in every forward pass


def test_changed_preprocessing_is_in_the_notes(pretrained: tuple[ViT, Path]) -> None:
    preprocess = Preprocess((16, 24), (0.4,) * 3, (0.25,) * 3)
    notes = load_pretrained(open_folder(pretrained[1]), build_vit(), ("cat", "dog", "eel"), preprocess)
    assert notes[-1] == "mean (0.4, 0.4, 0.4), was (0.5, 0.5, 0.5)"


def test_grey_image_gives_same_output_as_rgb(pretrained: tuple[ViT, Path]) -> None:
    source, folder = pretrained
    model = build_vit(channels=1)
    notes = load_pretrained(open_folder(folder), model, ("cat", "dog", "eel"), build_preprocess(1))
    assert "embed.patches from 3 to 1 channels" in notes
    grey = torch.rand(2, 1, 16, 24)
    assert_close(model(grey), source(grey.expand(-1, 3, -1, -1)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("channels", [1, 2, 4, 6, 13])
def test_adapted_patch_weights_equal_timm(channels: int) -> None:
    weight = torch.randn(8, 3, 4, 4)
    assert_close(adapt_channels(weight, channels), adapt_input_conv(channels, weight.clone()))
    grey = torch.randn(8, 1, 4, 4)
    assert_close(adapt_channels(adapt_channels(grey, channels), 1), grey)


def test_mismatched_architecture_error_lists_differences(pretrained: tuple[ViT, Path]) -> None:
    for table in (partial(Learned), Sinusoidal):
        deeper = ViT(Encoder(16, 3, 2), (16, 24), (8, 8), 3, table=table)
        with pytest.raises(
            ValueError, match=r"- encoder.blocks.2.attn.f.out.bias: model \(16,\), not in the file"
        ) as error:
            load_pretrained(open_folder(pretrained[1]), deeper, ("cat", "dog", "eel"), build_preprocess())
        assert (
            str(error.value)
            .splitlines()[-1]
            .startswith(f"leave out the sizes that override those of {pretrained[1]}, as")
        )


def mae_config(table: str = "vitkit.nn.Learned", size: tuple[int, int] = (16, 24), channels: int = 3) -> dict[str, Any]:
    def encoder(dim: int) -> dict[str, Any]:
        return {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": dim, "depth": 2, "heads": 2}}

    arguments = {"encoder": encoder(16), "decoder": encoder(8), "image_size": [*size], "patch_size": [8, 8]}
    arguments |= {"channels": channels, "prefix": 2, "ratio": 0.5, "table": table, "decoder_table": table}
    return {"class_path": "vitkit.models.MAE", "init_args": arguments}


def save_mae(folder: Path, table: str = "vitkit.nn.Learned", channels: int = 3) -> tuple[MAE, Path]:
    model = model_config.build_model(config := mae_config(table, channels=channels))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    save(folder / "mae", Bundle(model, config, build_preprocess(channels)))
    assert isinstance(model, MAE)
    return model, folder / "mae"


@pytest.mark.parametrize("table", ["vitkit.nn.Learned", "vitkit.nn.Sinusoidal"])
def test_classifier_loads_encoder_of_mae(table: str, tmp_path: Path) -> None:
    source, folder = save_mae(tmp_path, table)
    model = model_config.build_model(make_classifier_config(mae_config(table), outputs=2))
    assert isinstance(model, ViT) and isinstance(model.pool, Mean)
    head = model.get_parameter("head.weight").clone()
    notes = load_pretrained(open_folder(folder), model, ("cat", "dog"), build_preprocess())
    assert notes == [f"weights of {folder}", "the decoder is left behind", "a new head for 2 classes"]
    assert torch.equal(model.get_parameter("head.weight"), head)
    images = torch.randn(2, 3, 16, 24, dtype=torch.float64)
    features = source.double().features(images)
    assert_close(model.double().features(images), features, rtol=0, atol=1e-12)
    assert_close(model(images), model.head(features[:, 2:].mean(1)), rtol=0, atol=1e-12)


def test_only_mae_decoder_and_classifier_head_may_differ(tmp_path: Path) -> None:
    _, folder = save_mae(tmp_path)
    config = make_classifier_config(mae_config(), outputs=2)
    config["init_args"]["prefix"] = 3
    with pytest.raises(ValueError, match=r"! embed.prefix: model \(3, 16\), file \(2, 16\)\nleave out the sizes that "):
        load_pretrained(open_folder(folder), model_config.build_model(config), ("cat", "dog"), build_preprocess())
    for depth, line in ((1, r"\+ encoder.blocks.1.attn.f.out.bias"), (3, "- encoder.blocks.2.attn.f.out.bias")):
        config = make_classifier_config(mae_config(), outputs=2)
        config["init_args"]["encoder"]["init_args"]["depth"] = depth
        with pytest.raises(ValueError, match=line):
            load_pretrained(open_folder(folder), model_config.build_model(config), ("cat", "dog"), build_preprocess())


def test_classifier_config_has_defaults_of_mae() -> None:
    config = mae_config()
    for name in ("table", "decoder_table", "prefix", "image_size", "channels"):
        del config["init_args"][name]
    model, mae = model_config.build_model(make_classifier_config(config, outputs=2)), model_config.build_model(config)
    body = {name: value.shape for name, value in model.named_parameters() if not name.startswith("head.")}
    assert body == {name: value.shape for name, value in mae.named_parameters() if not name.startswith("decoder.")}
    assert isinstance(model.get_submodule("embed.table"), Sinusoidal)


def test_mae_at_other_size_resamples_both_tables(tmp_path: Path) -> None:
    source, folder = save_mae(tmp_path)
    model = model_config.build_model(mae_config(size=(32, 40)))
    notes = load_pretrained(open_folder(folder), model, (), build_preprocess(size=(32, 40)))
    assert notes == [
        *(f"weights of {folder}", "embed.table from (2, 3) to (4, 5)", "decoder.table from (2, 3) to (4, 5)"),
        *("the decoder too", "size (32, 40), was (16, 24)"),
    ]
    images, noise = torch.randn(1, 3, 32, 40), torch.rand(1, 4, 5)
    assert_close(model(images, noise).pixels, source(images, noise).pixels)  # resampled in every forward pass


def test_grey_mae_predicts_channel_mean_of_rgb_mae(tmp_path: Path) -> None:
    source, folder = save_mae(tmp_path)
    model = model_config.build_model(mae_config(channels=1))
    assert "embed.patches from 3 to 1 channels" in load_pretrained(open_folder(folder), model, (), build_preprocess(1))
    grey, noise = torch.randn(1, 1, 16, 24), torch.rand(1, 2, 3)
    expected = source(grey.expand(-1, 3, -1, -1), noise).pixels.unflatten(2, (-1, 3)).mean(3)
    assert_close(model(grey, noise).pixels, expected, rtol=1e-4, atol=1e-4)
    assert_close(adapt_decoder_channels(adapt_decoder_channels(expected[0].T, 1, 3), 3, 1), expected[0].T)
    image = torch.arange(48.0).view(1, 3, 4, 4)  # channels are adjacent in the order (p, q, C)
    rows = split_patches(image, (4, 4))[0, 0].movedim(0, -1).flatten()
    assert_close(adapt_decoder_channels(rows, 3, 1), image.mean(1).flatten())


def test_mae_rejects_weights_of_vit(pretrained: tuple[ViT, Path]) -> None:
    with pytest.raises(ValueError, match="pretrained must be an MAE to be pretrained further, got ViT in"):
        load_pretrained(open_folder(pretrained[1]), model_config.build_model(mae_config()), (), build_preprocess())


def test_headless_vit_loads_into_classifier(pretrained: tuple[ViT, Path], tmp_path: Path) -> None:
    source, folder = pretrained
    model, config, headless = build_vit(), model_config.read_yaml(folder / "config.yaml"), build_vit(outputs=0)
    state = {name: tensor for name, tensor in source.state_dict().items() if not name.startswith("head.")}
    headless.load_state_dict(state)
    arguments: Any = config["init_args"]
    headless_config = {**config, "init_args": {**arguments, "outputs": 0}}
    save(tmp_path / "headless", Bundle(headless, headless_config, build_preprocess()))
    assert open_model(tmp_path / "headless").class_names == ()
    assert "a new head for 3 classes" in load_pretrained(
        open_folder(tmp_path / "headless"), model, tuple("abc"), build_preprocess()
    )
    images = torch.rand(1, 3, 16, 24)
    assert_close(model.features(images), source.features(images), rtol=0, atol=0)


def test_named_tower_is_loaded_and_unknown_tower_rejected(
    pretrained: tuple[ViT, Path], clip_folder: Path, tmp_path: Path
) -> None:
    source, folder = save_mae(tmp_path)
    model = model_config.build_model(mae_config())
    assert load_pretrained_tower(open_folder(folder), model, "decoder") == [f"decoder tower: weights of {folder}"]
    assert_close(model.get_submodule("decoder").state_dict(), source.decoder.state_dict(), rtol=0, atol=0)
    clip = open_model(clip_folder).model
    names = "embed, pre_norm, encoder, pool, head"
    with pytest.raises(ValueError, match=f"pretrained_image must be for a model with a part image, got ViT of {names}"):
        load_pretrained_tower(open_folder(folder), build_vit(), "image")
    with pytest.raises(ValueError, match=r"pretrained_text must be a model with a part text, .* got ViT in"):
        load_pretrained_tower(open_folder(pretrained[1]), clip, "text")
    with pytest.raises(ValueError, match="pretrained must be a CLIP, got ViT in"):
        load_pretrained(open_folder(pretrained[1]), clip, (), build_preprocess())
    with pytest.raises(ValueError, match="pretrained must be a ViT, got CLIP in"):
        load_pretrained(open_folder(clip_folder), build_vit(), (), build_preprocess())


def test_missing_preprocessing_is_not_compared(pretrained: tuple[ViT, Path]) -> None:
    notes = load_pretrained(open_folder(pretrained[1]), build_vit(), ("cat", "dog", "eel"), None)
    assert notes == [f"weights of {pretrained[1]}", "the head too, of the same classes"]
