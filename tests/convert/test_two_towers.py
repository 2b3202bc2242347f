"""CLIP and SigLIP with both towers, imported from folders of the hub and exported for the libraries to load."""

import json
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.models import register_model
from timm.models.vision_transformer import _create_vision_transformer
from tokenizers import Tokenizer as Rust
from tokenizers import models, pre_tokenizers, processors, trainers
from torch.testing import assert_close

import vitkit
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import list_files
from vitkit.cli import main
from vitkit.convert import write
from vitkit.convert.hub_upload import prepare_upload
from vitkit.convert.importer import build_bundle, import_source
from vitkit.convert.open import open_model
from vitkit.convert.overrides import Overrides
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer
from vitkit.models import CLIP, ViT

transformers = pytest.importorskip("transformers")
TEXTS = ["a red heart", "A Cat, and two dogs' tails", "owl"]
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
PICTURES = {"size": {"shortest_edge": 24}, "crop_size": 24, "image_mean": [0.4, 0.5, 0.6], "image_std": [0.5, 0.5, 0.5]}
WIDE, SQUARE = torch.linspace(0, 99, 2 * 3 * 16 * 24).view(2, 3, 16, 24).sin(), torch.randn(2, 3, 24, 24)


@register_model
def vit_small_siglip_test(pretrained: bool = False, **kwargs: Any) -> Any:
    sizes = {"img_size": 24, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 4, "mlp_ratio": 1.5}
    sizes |= {"class_token": False, "global_pool": "map", "act_layer": "gelu_tanh"}
    return _create_vision_transformer("vit_small_siglip_test", pretrained=pretrained, **{**sizes, **kwargs})


def randomize(model: Any) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    return model.eval()


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.utils.logging.disable_progress_bar()


@pytest.fixture
def openclip_folder(tmp_path: Path) -> tuple[Path, Any]:
    """Return a folder of open_clip with CLIP's vocabulary, and its model."""
    vision = {"image_size": [16, 24], "layers": 1, "width": 32, "head_width": 16, "patch_size": 8}
    model_cfg = {
        "embed_dim": 12,
        "vision_cfg": vision,
        "text_cfg": {"width": 16, "heads": 2, "layers": 1},
        "quick_gelu": True,
    }
    model, folder = randomize(open_clip.CLIP(**model_cfg)), tmp_path / "of open_clip"
    folder.mkdir()
    save_file(
        {name: tensor.contiguous() for name, tensor in model.state_dict().items()},
        folder / "open_clip_model.safetensors",
    )
    config = {"model_cfg": model_cfg, "preprocess_cfg": {"mean": [0.4, 0.5, 0.6]}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    return folder, model


@pytest.fixture
def hf_folder(tmp_path: Path) -> tuple[Path, Any]:
    """Return a folder of transformers without a vocabulary, which stands for CLIP's, and its model."""
    config = transformers.CLIPConfig(
        text_config={**SIZES, "hidden_size": 16},
        vision_config={**SIZES, "image_size": 24, "patch_size": 8},
        projection_dim=12,
    )
    model, folder = randomize(transformers.CLIPModel(config)), tmp_path / "of transformers"
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PICTURES))
    return folder, model


@pytest.fixture
def siglip_folder(tmp_path: Path) -> tuple[Path, Any]:
    """Return a folder of transformers with a SigLIP that has its own vocabulary, and its model."""
    file = Rust(models.Unigram())
    file.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=40, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    file.train_from_iterator([text.lower() for text in TEXTS] * 4, trainer)
    file.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    config = transformers.SiglipConfig(
        text_config={**SIZES, "vocab_size": 40, "max_position_embeddings": 40},
        vision_config={**SIZES, "image_size": 24, "patch_size": 8},
    )
    model, folder = randomize(transformers.SiglipModel(config)), tmp_path / "of siglip"
    model.save_pretrained(folder)
    file.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "SiglipTokenizer", "pad_token": "</s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    pictures = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 24, "width": 24}}
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": pictures}))
    return folder, model


def assert_same_outputs(bundle: Bundle, theirs: Any, images: torch.Tensor) -> None:
    """Compare embeddings and logits with those of a model of either library."""
    model, tokenizer = bundle.model, bundle.tokenizer
    assert isinstance(model, CLIP)
    assert tokenizer is not None
    ids = tokenizer(TEXTS)
    if isinstance(theirs, transformers.PreTrainedModel):
        other = theirs(pixel_values=images, input_ids=ids)
        image, text, logits = other.image_embeds, other.text_embeds, other.logits_per_image
    else:
        longer = torch.nn.functional.pad(ids, (0, theirs.context_length - ids.shape[1]))
        image, text, scale, *bias = theirs(images, longer)
        logits = scale * image @ text.mT + sum(bias)
    ours = model(images, ids)
    assert_close(ours.image, image, rtol=0, atol=1e-5)
    assert_close(ours.text, text, rtol=0, atol=1e-5)
    assert_close(ours.scale * ours.image @ ours.text.mT + ours.bias, logits, rtol=1e-4, atol=1e-4)


def test_openclip_model_keeps_its_outputs_in_both_directions(
    openclip_folder: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, theirs = openclip_folder
    assert main(["import", str(folder), "--out", str(tmp_path / "ours")]) == 0
    output = capsys.readouterr().out
    for line in (
        "CLIP: encoder of 1 blocks, 32 wide",
        "text encoder of 1 blocks, 16 wide",
        "77 ids, CLIP's vocabulary",
    ):
        assert line in output
    ours = open_model(tmp_path / "ours")
    assert ours.preprocess == Preprocess((16, 24), (0.4, 0.5, 0.6), (0.26862954, 0.26130258, 0.27577711))
    assert_same_outputs(ours, theirs, WIDE)
    assert_close(ours.tokenizer(TEXTS), open_clip.get_tokenizer(f"local-dir:{folder}")(TEXTS)[:, :10], rtol=0, atol=0)
    assert_same_outputs(open_model(f"openclip:{folder}"), theirs, WIDE)
    assert main(["export", str(tmp_path / "ours"), "--to", "openclip", "--out", str(tmp_path / "out")]) == 0
    assert "largest difference" in capsys.readouterr().out
    again, _ = open_clip.create_model_from_pretrained(f"local-dir:{tmp_path / 'out'}")
    assert_same_outputs(ours, again.eval(), WIDE)


def test_hf_clip_keeps_its_outputs_in_both_directions(hf_folder: tuple[Path, Any], tmp_path: Path) -> None:
    folder, theirs = hf_folder
    ours = open_model(f"hf:{folder}")
    assert_same_outputs(ours, theirs, SQUARE)
    assert any("nobody" in note or "the folder has none" in note for note in import_source(folder).notes)
    vitkit.export_to(f"hf:{folder}", tmp_path / "out", "hf")
    again, info = transformers.AutoModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values())
    assert_same_outputs(ours, again.eval(), SQUARE)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    rows = tokenizer([*TEXTS, "it's 12 o'clock"]).input_ids
    assert rows == ours.tokenizer.encode_and_cut([*TEXTS, "it's 12 o'clock"])[0]
    assert import_source(tmp_path / "out").notes == import_source(folder).notes[:1]  # the vocabulary lies there now
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "out")
    assert type(processor).__name__.startswith("CLIPImageProcessor")
    vitkit.export_to(f"hf:{folder}", tmp_path / "other", "openclip")
    other, _ = open_clip.create_model_from_pretrained(f"local-dir:{tmp_path / 'other'}")
    assert_same_outputs(ours, other.eval(), SQUARE)


def test_siglip_keeps_outputs_and_vocabulary_in_both_directions(
    siglip_folder: tuple[Path, Any], tmp_path: Path
) -> None:
    folder, theirs = siglip_folder
    vitkit.import_model(folder, tmp_path / "ours")
    ours = open_model(tmp_path / "ours")
    assert {path.name for path in (tmp_path / "ours").iterdir()} == {
        *list_files(("images", "texts")),
        "tokenizer.json",
    }
    settings = json.loads((tmp_path / "ours" / "text.json").read_text())
    assert settings == {"vocabulary": "tokenizer.json", "context": 40, "whole": True, "clean": "canonicalize", "pad": 1}
    assert_same_outputs(ours, theirs, SQUARE)
    for to in ("hf", "openclip"):
        notes = vitkit.export_to(tmp_path / "ours", tmp_path / to, to).notes
    assert not any("white space" in note for note in notes)
    again, info = transformers.AutoModel.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(info.values())
    assert_same_outputs(ours, again.eval(), SQUARE)
    other, _ = open_clip.create_model_from_pretrained(f"local-dir:{tmp_path / 'openclip'}")
    assert type(other).__name__ == "CustomTextCLIP"
    assert_same_outputs(ours, other.eval(), SQUARE)
    ids = open_clip.get_tokenizer(f"local-dir:{tmp_path / 'openclip'}")(TEXTS)
    assert_close(ids, ours.tokenizer(TEXTS), rtol=0, atol=0)
    back = open_model(f"openclip:{tmp_path / 'openclip'}")
    assert_same_outputs(back, theirs, SQUARE)
    assert back.tokenizer.to_dict() == settings
    text = json.dumps({**settings, "clean": None})
    (tmp_path / "ours" / "text.json").write_text(text)
    notes = vitkit.export_to(tmp_path / "ours", tmp_path / "raw", "openclip").notes
    assert "white space in texts is joined there, and kept here" in notes


def test_vocabulary_that_openclip_does_not_read_raises(hf_folder: tuple[Path, Any], tmp_path: Path) -> None:
    conversion = import_source(hf_folder[0])
    pieces, further = Tokenizer(10, vocabulary="a.model"), Tokenizer(10, special=["<image>"])
    for tokenizer, message in (
        (pieces, r"must be in a tokenizer.json to be read by OpenCLIP, got spiece.model; .*save_pretrained"),
        (further, r"special must be left out of a tokenizer for OpenCLIP with CLIP's vocabulary, .*'<image>'"),
    ):
        with pytest.raises(ValueError, match=message):
            write.write_layout("openclip", conversion._replace(tokenizer=tokenizer), tmp_path)


@pytest.mark.parametrize("which", ["openclip_folder", "hf_folder", "siglip_folder"])
def test_image_tower_of_a_whole_model_is_imported_alone(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder, _ = request.getfixturevalue(which)
    assert main(["import", str(folder), "--out", str(tmp_path / "tower"), "--tower", "image"]) == 0
    tower, whole = open_model(tmp_path / "tower"), build_bundle(import_source(folder)).model
    assert isinstance(tower.model, ViT)
    assert isinstance(whole, CLIP)
    assert tower.tokenizer is None
    images = WIDE if which == "openclip_folder" else SQUARE
    assert_close(tower.model(images), whole.image(images), rtol=1e-5, atol=1e-5)


def test_image_tower_of_a_model_folder_is_imported_alone(hf_folder: tuple[Path, Any], tmp_path: Path) -> None:
    vitkit.import_model(hf_folder[0], tmp_path / "ours")
    whole, tower = (
        build_bundle(import_source(tmp_path / "ours", overrides)).model
        for overrides in (Overrides(), Overrides(tower="image"))
    )
    assert isinstance(whole, CLIP)
    assert_close(tower(SQUARE), whole.image(SQUARE), rtol=1e-5, atol=1e-5)


def test_file_uses_the_config_in_the_folder_of_like(hf_folder: tuple[Path, Any], tmp_path: Path) -> None:
    folder, theirs = hf_folder
    state = load_file(folder / "model.safetensors")
    state["text_model.embeddings.position_ids"] = torch.arange(77)[None]  # as files before transformers 4.31
    torch.save(state, tmp_path / "alone.bin")
    conversion = import_source(tmp_path / "alone.bin", Overrides(like=str(folder)))
    assert_same_outputs(build_bundle(conversion), theirs, SQUARE)


def test_openclip_file_uses_the_config_of_a_name(tmp_path: Path) -> None:
    model_cfg = open_clip.get_model_config("ViT-S-32-alt")
    model = randomize(open_clip.create_model("ViT-S-32-alt"))
    save_file(model.state_dict(), tmp_path / "x.safetensors")
    conversion = import_source(tmp_path / "x.safetensors", Overrides(like="openclip:ViT-S-32-alt"))
    assert conversion.tokenizer is not None
    images = torch.randn(1, 3, *[model_cfg["vision_cfg"]["image_size"]] * 2)
    assert_same_outputs(build_bundle(conversion), model, images)


def test_unknown_and_missing_tensors_are_listed(openclip_folder: tuple[Path, Any]) -> None:
    folder, _ = openclip_folder
    state = load_file(path := folder / "open_clip_model.safetensors")
    del state["ln_final.bias"], state["visual.ln_post.weight"]
    save_file({**state, "extra": torch.ones(1), "logit_bias": torch.ones(1)}, path)
    with pytest.raises(ValueError) as raised:
        build_bundle(import_source(folder))
    for line in ("- text.encoder.norm.bias", "- image.encoder.norm.weight", "+ extra"):
        assert line in str(raised.value)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.system, ("touch pwned",)


@pytest.mark.parametrize("which", ["openclip_folder", "hf_folder"])
def test_folder_whose_weights_would_run_code_raises(
    which: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model = request.getfixturevalue(which)
    monkeypatch.chdir(tmp_path)
    for path in folder.glob("*.safetensors"):
        path.unlink()
    name = "pytorch_model.bin" if which == "hf_folder" else "open_clip_pytorch_model.bin"
    torch.save({**model.state_dict(), "x": Evil()}, folder / name)
    with pytest.raises(ValueError, match="refused, nothing in it was run"):
        import_source(folder)
    assert not (tmp_path / "pwned").exists()


def update_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_unsupported_folder_raises_one_line(
    openclip_folder: tuple[Path, Any], siglip_folder: tuple[Path, Any], hf_folder: tuple[Path, Any]
) -> None:
    config = openclip_folder[0] / "open_clip_config.json"
    model = json.loads(config.read_text())["model_cfg"]
    for text, message in (
        ({"tokenizer_kwargs": {"strip_sep_token": True}}, "tokenizer_kwargs may hold clean, got strip_sep_token"),
        ({"tokenizer_kwargs": {"clean": "canonicalize"}}, "clean must be lower for CLIP's vocabulary"),
        ({"tokenizer_mode": "clips"}, "tokenizer_mode must be left out"),
        ({"pool_type": "eos", "eos_id": 7}, "must be its model's, got another: .* end=49407 and not 7"),
        ({"pool_type": "first"}, "pool_type must be argmax, eos or last"),
    ):
        update_json(config, model_cfg={**model, "text_cfg": {**model["text_cfg"], **text}})
        with pytest.raises(ValueError, match=message) as raised:
            import_source(openclip_folder[0])
        assert "\n" not in str(raised.value)
    del model["text_cfg"]
    update_json(config, model_cfg=model)
    with pytest.raises(ValueError, match="model_cfg must hold text_cfg.*--tower image"):
        import_source(openclip_folder[0])
    with pytest.raises(ValueError, match="tower must be image, got tower=text"):
        import_source(hf_folder[0], Overrides(tower="text"))
    with pytest.raises(ValueError, match="leave out --classes"):
        import_source(hf_folder[0], Overrides(classes=("a",)))
    (siglip_folder[0] / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="must hold tokenizer.json for its texts, got none"):
        import_source(siglip_folder[0])


def test_upload_of_a_clip_holds_its_tokenizer_and_a_card_whose_code_runs(
    siglip_folder: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vitkit.import_model(siglip_folder[0], tmp_path / "ours")
    (tmp_path / "beside").mkdir()
    folder = prepare_upload(tmp_path / "ours", "me/clip", tmp_path / "beside")
    assert {path.name for path in folder.iterdir()} == {
        *list_files(("images", "texts")),
        "tokenizer.json",
        "README.md",
    }
    text = (folder / "README.md").read_text()
    assert "pipeline_tag: zero-shot-image-classification" in text
    assert "Texts of up to 40 ids and pictures become vectors of one space." in text
    Image.new("RGB", (30, 20)).save(tmp_path / "picture.jpg")
    code = text.split("```python\n")[1].split("```")[0]
    exec(code.replace("hf:me/clip", f"hf:{folder}").replace("picture.jpg", str(tmp_path / "picture.jpg")), {})
    assert capsys.readouterr().out.startswith("tensor([[")


@pytest.mark.parametrize(("to", "which"), [("hf", "siglip_folder"), ("openclip", "openclip_folder")])
@pytest.mark.parametrize("name", ["log_scale", "text.head.weight", "image.embed.table.weight"])
def test_check_of_an_export_finds_changed_weights(
    to: str, which: str, name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder, _ = request.getfixturevalue(which)
    conversion, writer = import_source(folder), write.WRITERS[to]
    changed = conversion.state[name] * 1.5 + 0.1
    writer.write(conversion._replace(state={**conversion.state, name: changed}), tmp_path)
    with torch.inference_mode():
        assert writer.check(conversion, tmp_path) > write.TOLERANCE
