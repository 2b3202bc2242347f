"""Folders in the layouts of the hub, written by transformers and open_clip themselves."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.testing import assert_close

from vitkit.convert.hf import model_types
from vitkit.convert.hf.converter import Converter
from vitkit.convert.importer import build_bundle, import_source
from vitkit.convert.open import open_model
from vitkit.convert.overrides import Overrides
from vitkit.convert.write import export_to, write_hf
from vitkit.data.preprocess import Preprocess
from vitkit.models import MAE, TextTower

transformers = pytest.importorskip("transformers")
open_clip = pytest.importorskip("open_clip")
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 16,
    "patch_size": 8,
}
PICTURES = {"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}, "resample": 3}
IMAGES = torch.linspace(-2, 2, 2 * 3 * 16 * 16).view(2, 3, 16, 16).sin()


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.utils.logging.disable_progress_bar()


def randomize(model: Any) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    return model.eval()


@pytest.fixture
def vit(tmp_path: Path) -> tuple[Path, Any]:
    names = {0: "cat", 1: "dog", 2: "owl"}
    config = transformers.ViTConfig(**SIZES, id2label=names, label2id={name: key for key, name in names.items()})
    model, folder = randomize(transformers.ViTForImageClassification(config)), tmp_path / "of transformers"
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PICTURES))
    return folder, model


def test_hf_folder_gives_model_preprocessing_and_class_names(vit: tuple[Path, Any]) -> None:
    folder, theirs = vit
    conversion = import_source(folder)
    assert_close(build_bundle(conversion).model(IMAGES), theirs(IMAGES).logits, rtol=1e-5, atol=1e-5)
    assert conversion.preprocess == Preprocess((16, 16), (0.5,) * 3, (0.5,) * 3, "bicubic")
    assert conversion.class_names == ("cat", "dog", "owl")
    bundle = open_model(f"hf:{folder}")
    assert_close(bundle.model(IMAGES), theirs(IMAGES).logits, rtol=1e-5, atol=1e-5)


def test_two_classes_of_one_name_in_a_head_are_told_apart(vit: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = vit
    config = json.loads((folder / "config.json").read_text())
    config |= {"id2label": {"0": "crane", "1": "owl", "2": "crane"}, "label2id": {"crane": 2, "owl": 1}}
    (folder / "config.json").write_text(json.dumps(config))
    conversion = import_source(folder)
    assert conversion.class_names == ("crane", "owl", "crane (2)")
    assert "classes of one name are numbered: crane (2)" in conversion.notes
    (tmp_path / "again").mkdir()
    write_hf(conversion, tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["label2id"] == {
        "crane": 0, "owl": 1, "crane (2)": 2
    }  # fmt: skip


def test_sets_of_labels_keep_their_kind_in_both_directions(vit: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = vit
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"problem_type": "multi_label_classification"}))
    conversion = import_source(folder)
    assert conversion.multilabel and build_bundle(conversion).multilabel
    (tmp_path / "again").mkdir()
    write_hf(conversion, tmp_path / "again")
    assert transformers.AutoConfig.from_pretrained(tmp_path / "again").problem_type == "multi_label_classification"
    assert import_source(tmp_path / "again").multilabel
    (folder / "config.json").write_text(json.dumps(config))
    assert not import_source(folder).multilabel


def test_weights_are_read_from_shards_and_as_a_last_resort_from_a_pickle(vit: tuple[Path, Any]) -> None:
    folder, theirs = vit
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"must hold weights, got none of model.safetensors, pytorch_model.safet"):
        import_source(folder)
    torch.save(state, folder / "pytorch_model.bin")
    assert_close(build_bundle(import_source(folder)).model(IMAGES), theirs(IMAGES).logits, rtol=1e-5, atol=1e-5)
    theirs.save_pretrained(folder, max_shard_size="20KB")
    assert len([*folder.glob("model-*.safetensors")]) > 1
    (folder / "pytorch_model.bin").write_bytes(b"not read")
    assert_close(build_bundle(import_source(folder)).model(IMAGES), theirs(IMAGES).logits, rtol=1e-5, atol=1e-5)


def test_folder_without_preprocessing_needs_overrides(vit: tuple[Path, Any]) -> None:
    folder, _ = vit
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(ValueError, match="give --mean, --std, --interpolation, --crop, or"):
        import_source(folder)
    overrides = Overrides(mean=(0.5,) * 3, std=(0.25,) * 3, interpolation="lanczos", crop=0.5)
    assert import_source(folder, overrides).preprocess == Preprocess((16, 16), (0.5,) * 3, (0.25,) * 3, "lanczos", 0.5)


def test_hf_file_uses_the_config_beside_it_or_in_the_folder_of_like(vit: tuple[Path, Any], tmp_path: Path) -> None:
    folder, theirs = vit
    assert_close(
        build_bundle(import_source(folder / "model.safetensors")).model(IMAGES),
        theirs(IMAGES).logits,
        rtol=1e-5,
        atol=1e-5,
    )
    (tmp_path / "alone").mkdir()
    save_file(load_file(folder / "model.safetensors"), tmp_path / "alone" / "mine.safetensors")
    with pytest.raises(ValueError, match="must lie beside one of config.json, open_clip_config.json"):
        import_source(tmp_path / "alone" / "mine.safetensors")
    conversion = import_source(tmp_path / "alone" / "mine.safetensors", Overrides(like=str(folder)))
    assert_close(build_bundle(conversion).model(IMAGES), theirs(IMAGES).logits, rtol=1e-5, atol=1e-5)


def test_unknown_tensors_raise_and_ignored_tensors_are_noted(vit: tuple[Path, Any]) -> None:
    folder, _ = vit
    state = load_file(folder / "model.safetensors")
    save_file({**state, "vit.extra": torch.ones(1)}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"\+ extra: file \(1,\), not in the model"):
        build_bundle(import_source(folder))
    model = randomize(transformers.ViTModel(transformers.ViTConfig(**SIZES)))
    model.save_pretrained(folder)
    conversion = import_source(folder)
    assert any("pooler" in note and "left out" in note for note in conversion.notes)
    assert_close(build_bundle(conversion).model(IMAGES), model(IMAGES).last_hidden_state[:, 0], rtol=1e-5, atol=1e-5)


def test_hf_masked_autoencoder_keeps_its_decoder(tmp_path: Path) -> None:
    decoder = {"decoder_hidden_size": 32, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 4}
    config = transformers.ViTMAEConfig(**SIZES, **decoder, decoder_intermediate_size=64, norm_pix_loss=True)
    theirs = randomize(transformers.ViTMAEForPreTraining(config))
    theirs.decoder.decoder_pos_embed.data[:, 0] = 0
    theirs.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PICTURES))
    model = open_model(f"hf:{tmp_path}").model
    assert isinstance(model, MAE)
    assert model.norm_pix
    noise = torch.rand(2, 2, 2)
    ours = model(IMAGES, noise)
    pixels = theirs(IMAGES, noise=noise.flatten(1)).logits
    assert_close(pixels[torch.arange(2)[:, None], ours.hidden], ours.pixels, rtol=1e-5, atol=1e-5)


def test_image_tower_of_an_openclip_folder_gives_its_embeddings(tmp_path: Path) -> None:
    vision = {"image_size": [16, 24], "layers": 2, "width": 32, "head_width": 16, "patch_size": 8}
    text = {"context_length": 4, "vocab_size": 16, "width": 32, "heads": 2, "layers": 1}
    model_cfg = {"embed_dim": 24, "vision_cfg": vision, "text_cfg": text, "quick_gelu": True}
    theirs = randomize(open_clip.CLIP(**model_cfg))
    save_file(theirs.state_dict(), tmp_path / "open_clip_model.safetensors")
    config = {"model_cfg": model_cfg, "preprocess_cfg": {"mean": [0.4, 0.5, 0.6], "resize_mode": "squash"}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    conversion = import_source(f"openclip:{tmp_path}", Overrides(tower="image"))
    images = torch.randn(2, 3, 16, 24)
    assert_close(build_bundle(conversion).model(images), theirs.encode_image(images), rtol=1e-5, atol=1e-5)
    assert (conversion.preprocess.size, conversion.preprocess.mean, conversion.class_names) == (
        (16, 24),
        (0.4, 0.5, 0.6),
        (),
    )
    assert any(note.startswith("left out: ") and note.endswith(" beside the image tower") for note in conversion.notes)
    assert any("stretch" in note for note in conversion.notes)
    with pytest.raises(ValueError, match="leave out --classes"):
        import_source(f"openclip:{tmp_path}", Overrides(classes=("a",)))


def test_openclip_tags_give_activation_and_preprocessing() -> None:
    from vitkit.convert.openclip.catalog import look_up_configs

    assert look_up_configs("openclip:ViT-B-32@openai")[0]["quick_gelu"] is True
    assert look_up_configs("openclip:ViT-B-32@laion2b_s34b_b79k")[0]["quick_gelu"] is False
    assert look_up_configs("openclip:ViT-B-16-SigLIP@webli")[1]["mean"] == (0.5, 0.5, 0.5)
    assert look_up_configs("openclip:ViT-B-32@openai")[2] == []
    with pytest.raises(
        ValueError, match="openclip:ViT-B-32@opnai must be openclip:ViT-B-32 or end in @ and one of open"
    ):
        look_up_configs("openclip:ViT-B-32@opnai")


def test_openclip_name_without_a_tag_states_the_activation_that_is_assumed() -> None:
    from vitkit.convert.openclip.catalog import look_up_configs

    for name, act in {"ViT-B-32": "GELU .QuickGELU with @openai", "ViT-B-32-quickgelu": "QuickGELU and"}.items():
        (note,) = look_up_configs(f"openclip:{name}")[2]
        assert re.match(f"activation {act}.*, as openclip:{name} has without a tag", note)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 0}, "hidden_size must be a whole number above 0, got hidden_size=0"),
        ({"hidden_size": "a", "layer_norm_eps": None}, "hidden_size must be .*; layer_norm_eps must be a number"),
        ({"num_attention_heads": True}, "num_attention_heads must be a whole number"),
        ({"hidden_act": []}, "hidden_act must be a word"),
        ({"architectures": 1}, "architectures must be one of"),
        ({"id2label": {"a": "cat"}}, "id2label must hold names by number"),
        ({"id2label": None, "num_labels": 10**12}, "id2label must hold names by number"),
        ({"image_size": {}}, "image_size must be one positive number"),
        ({"problem_type": "regression"}, "got a head of regression .problem_type='regression', 3 outputs"),
        ({"id2label": None, "num_labels": 1}, "got a head of regression .problem_type=None, 1 outputs"),
        ({"problem_type": "ranking"}, "problem_type must be one of multi_label_classification, single_label_class"),
    ],
)
def test_faulty_hf_config_raises_one_line(changes: dict[str, Any], message: str, vit: tuple[Path, Any]) -> None:
    folder, _ = vit
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ValueError, match=f"{path}: .*{message}") as raised:
        import_source(folder)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "model_cfg must hold vision_cfg and embed_dim, got None"),
        ({"model_cfg": {"embed_dim": 24, "vision_cfg": 1}}, "model_cfg must hold vision_cfg"),
        (
            {"model_cfg": {"embed_dim": 24, "vision_cfg": {"head_width": 0}}},
            "head_width must be a whole number above 0",
        ),
        ({"model_cfg": {"embed_dim": 24, "vision_cfg": {"act_kwargs": [1]}}}, "act_kwargs and norm_kwargs must"),
        (
            {"model_cfg": {"embed_dim": 24, "vision_cfg": {"norm_kwargs": [1]}}},
            "norm_kwargs must hold names and values",
        ),
        ({"model_cfg": {"embed_dim": 24, "vision_cfg": {"timm_model_name": "hf-hub:me/x"}}}, "must be a model of timm"),
        ({"model_cfg": {"embed_dim": 24, "vision_cfg": {}}, "preprocess_cfg": {"mean": 1}}, "mean must be a list"),
        ({"model_cfg": {"embed_dim": 24, "vision_cfg": {}}, "preprocess_cfg": [1]}, "preprocess_cfg must hold names"),
    ],
)
def test_faulty_openclip_config_raises_one_line(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_file({"visual.proj": torch.ones(2, 2)}, tmp_path / "open_clip_model.safetensors")
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"{tmp_path}.*: .*{message}") as raised:
        import_source(tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model_type": "swin"}', '{"model_type": "vit"}', "{}"])
def test_folder_without_a_model_type_raises_one_line(content: str, vit: tuple[Path, Any]) -> None:
    folder, _ = vit
    (folder / "config.json").write_text(content)
    with pytest.raises(ValueError) as raised:
        import_source(folder)
    assert "\n" not in str(raised.value)


def test_unknown_model_type_raises_with_the_known_ones(vit: tuple[Path, Any]) -> None:
    folder, _ = vit
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "bert"}
    (folder / "config.json").write_text(json.dumps(config))
    known = "vit, deit, vit_mae, dinov2, dinov2_with_registers, clip, clip_vision_model, siglip, siglip_vision_model, "
    known += "llama, gpt2"
    with pytest.raises(ValueError, match=f"config.json: model_type must be one of {known}, got model_type='bert'"):
        import_source(folder)


class Toy(NamedTuple):
    """A model type of texts whose tensors have vitkit's own names."""

    config: dict[str, Any]

    def write_config(self, config: Mapping[str, Any], class_names: Sequence[str], multilabel: bool) -> dict[str, Any]:
        assert config == self.config
        return {"model_type": "toy", "architectures": ["Toy"]}

    def make_converter(self) -> Converter:
        def keep(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
            return {**state}

        def read_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
            return self.config

        return Converter({"toy": ""}, (TextTower,), read_config, keep, self.write_config, keep, lambda *all: 0.0)


def test_one_converter_reads_and_writes_a_family_of_text_towers(
    text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversion, out = import_source(text_folder), tmp_path / "out"
    out.mkdir()
    with pytest.raises(ValueError, match="CLIP, TextDecoder to be written for transformers, got TextTower"):
        write_hf(conversion, out)
    monkeypatch.setattr(model_types, "CONVERTERS", (*model_types.CONVERTERS, Toy(conversion.config).make_converter()))
    assert write_hf(conversion, out)[0] == 'transformers.Toy.from_pretrained("DIR")'
    assert {"config.json", "model.safetensors", "vocab.json"} <= {path.name for path in out.iterdir()}
    assert not (out / "preprocessor_config.json").exists()
    again = import_source(out)
    assert (again.config, again.preprocess, again.class_names) == (conversion.config, None, ())
    assert again.tokenizer is not None and conversion.tokenizer is not None
    assert again.tokenizer.to_dict() == conversion.tokenizer.to_dict()
    ids = conversion.tokenizer(["a red heart"])
    assert_close(build_bundle(again).model(ids), build_bundle(conversion).model(ids), rtol=0, atol=0)
    with pytest.raises(ValueError, match="describes itself; leave out --mean"):
        import_source(out, Overrides(mean=(0.5,) * 3))


@pytest.mark.parametrize("to", ["timm", "hf", "mae", "openclip"])
def test_layouts_without_text_towers_refuse_one(to: str, text_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="(TextTower|must be a vitkit.models.MAE or ViT)") as raised:
        export_to(text_folder, tmp_path / "out", to)
    assert "\n" not in str(raised.value) and not (tmp_path / "out").exists()
