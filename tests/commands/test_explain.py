import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from vitkit.bundle import model_config
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import save
from vitkit.commands.explain import main
from vitkit.convert.open import open_model
from vitkit.data.batches import Reading
from vitkit.data.preprocess import ORIENTATION, PictureError, Preprocess
from vitkit.data.sources.open import open_unlabelled
from vitkit.interpret.examine.head_survey import heads
from vitkit.interpret.examine.image_model import AttentionModel, open_attention_model
from vitkit.interpret.see.layers import find_attention_layers
from vitkit.models import ViT
from vitkit.nn import Encoder, pool
from vitkit.pages.explain.explanation import StatisticsSource, draw_image_sample, explain, pack_layers

TRUNK = {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 32, "depth": 3, "heads": 2}}
SIZES = {"encoder": TRUNK, "image_size": [16, 24], "patch_size": [8, 8]}
VIT = {"class_path": "vitkit.models.ViT", "init_args": {**SIZES, "outputs": 3}}
DECODER = {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 16, "depth": 1, "heads": 2}}
MAE = {"class_path": "vitkit.models.MAE", "init_args": {**SIZES, "decoder": DECODER}}
PREPROCESS = Preprocess((16, 24), (0.5,) * 3, (0.25,) * 3)


def save_model(folder: Path, config: dict[str, Any], classes: tuple[str, ...]) -> Path:
    model = model_config.build_model(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    save(folder, Bundle(model, config, PREPROCESS, classes))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_model(tmp_path / "run" / "model", VIT, ("ant", "bee", "cat"))


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 50, 3), dtype=np.uint8)).save(path)
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for place in range(20):
        path = tmp_path / "pictures" / f"class{place % 2}" / f"{place}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (24, 16), (place * 10, 40, 90)).save(path)
    return tmp_path / "pictures"


def read_data(html: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert match
    return json.loads(match[1])


def test_open_model_and_its_folder_give_the_same_page(folder: Path, photo: Path) -> None:
    page, expected = (
        explain(source, photo, reading=Reading(device="cpu")).html for source in (open_model(folder), folder)
    )
    assert page == expected


def test_command_writes_a_page(
    folder: Path, photo: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    assert main([str(folder), str(photo), "-o", str(out), "--data", str(source), "--pictures", "8"]) == 0
    data, printed = read_data(out.read_text("utf-8")), capsys.readouterr()
    assert data["readout"] == "readFirst"
    assert (data["model"], data["photo"], data["prefix"], data["grid"]) == ("run/model", "photo.jpg", ["cls"], [2, 3])
    assert [layer["place"] for layer in data["layers"]] == [0, 1, 2]
    assert data["answers"]["kind"] == "classes" and sorted(data["answers"]["classes"]) == ["ant", "bee", "cat"]
    assert data["statistics"]["count"] == 8 and data["statistics"]["source"].endswith("/pictures")
    assert printed.out == "" and " MB" in printed.err and "off by more than" in printed.err
    assert str(tmp_path) not in out.read_text("utf-8")


def test_existing_file_is_not_overwritten(folder: Path, photo: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    out.write_text("mine")
    with pytest.raises(ValueError, match="out must be a new file"):
        main([str(folder), str(photo), "-o", str(out)])
    assert out.read_text() == "mine"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--layers", "9"], "layers must be from -3 to 2, got 9"),
        (["--budget", "10B"], "budget must hold one layer at least, got 0.01 kB for"),
        (["--budget", "much"], "budget must be a number of bytes"),
        (["--fold", "1", "--pictures", "3"], "pictures and fold must come with --data, got pictures=3, fold=1 alone"),
        (["--data", "digits", "--folds", "3"], "add --fold"),
        (["--classes", "a", "b"], "classes must be given for a CLIP only"),
        (["--data", "nowhere"], "nowhere"),
        (["--language", "xx"], "language must be one of en, zh, got language=xx"),
    ],
)
def test_wrong_options_are_refused_in_one_line(
    folder: Path, photo: Path, tmp_path: Path, wrong: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        main([str(folder), str(photo), "-o", str(tmp_path / "page.html"), *wrong])
    assert "\n" not in str(raised.value) and not (tmp_path / "page.html").exists()


def test_missing_photo_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(PictureError, match="missing.png"):
        explain(folder, tmp_path / "missing.png")


def test_folder_in_place_of_the_photo_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="photo must be one picture, got the folder"):
        explain(folder, tmp_path)


def test_model_name_is_the_end_of_its_path(
    folder: Path, photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert "<title>run/model: photo.jpg</title>" in explain("../run/model", photo).html
    monkeypatch.chdir(folder)
    assert "<title>run/model: photo.jpg</title>" in explain("../model", photo).html


def test_budget_keeps_the_last_layers_with_a_note(folder: Path, photo: Path) -> None:
    model = open_attention_model(folder)
    image = model.preprocess(Image.open(photo))[None]
    sizes = [len(layer.packed.content) for layer in pack_layers(model, image, (), 10**9).layers]
    page = explain(model, photo, budget=sizes[1] + sizes[2])
    data = read_data(page.html)
    assert [layer["place"] for layer in data["layers"]] == [1, 2]
    assert len(data["answers"]["effects"]) == 2
    assert any("Only layers 1 to 2 of 3 are kept" in note for note in page.notes)
    single = explain(model, photo, budget=sizes[2])
    assert any("Only layer 2 of 3 is kept: each takes 0 kB" in note for note in single.notes)
    assert data["notes"] == list(page.notes[1:])


def test_layers_are_chosen_by_index_or_name(folder: Path, photo: Path) -> None:
    model = open_attention_model(folder)
    for layers in ((0, -1), (model.layers[0], "encoder.blocks.2")):
        assert [layer["place"] for layer in read_data(explain(model, photo, layers=layers).html)["layers"]] == [0, 2]


def test_masked_autoencoder_has_an_embedding(tmp_path: Path, photo: Path) -> None:
    data = read_data(explain(save_model(tmp_path / "mae", MAE, ()), photo).html)
    assert data["readout"] == "readMean"
    assert (data["answers"]["kind"], data["answers"]["width"]) == ("embedding", 32)
    assert len(data["layers"]) == 3  # its decoder does not run
    assert all(0 < effect < 2 for row in data["answers"]["effects"] for effect in row)
    last = read_data(explain(tmp_path / "mae", photo, layers=[-1]).html)["layers"]
    assert [layer["place"] for layer in last] == [2]
    with pytest.raises(ValueError, match="layers must be from -3 to 2, got 3"):
        explain(tmp_path / "mae", photo, layers=[3])


def test_open_image_and_its_file_give_the_same_page(folder: Path, photo: Path, tmp_path: Path) -> None:
    path = tmp_path / "sideways.png"
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    Image.open(photo).save(path, exif=exif)
    opened, other = (read_data(explain(folder, source).html) for source in (Image.open(path), path))
    assert (opened["picture"]["width"], opened["picture"]["height"]) == (40, 50)
    assert (opened["picture"], opened["answers"], opened["layers"]) == (
        other["picture"],
        other["answers"],
        other["layers"],
    )


def test_clip_has_an_embedding_or_the_given_classes(clip_folder: Path, photo: Path) -> None:
    assert read_data(explain(clip_folder, photo).html)["answers"]["kind"] == "embedding"
    data = read_data(explain(clip_folder, photo, classes=["dog", "cat"], reading=Reading(device="cpu")).html)
    assert sorted(data["answers"]["classes"]) == ["cat", "dog"]


def wrap_model(model: torch.nn.Module, size: tuple[int, int]) -> AttentionModel:
    preprocess, layers = Preprocess(size, (0.5,) * 3, (0.5,) * 3), (*find_attention_layers(model),)
    return AttentionModel(Bundle(model.eval(), {}, preprocess, ("a", "b", "c"), source="x"), model, layers)


def test_attention_pool_is_left_out_with_a_note(photo: Path) -> None:
    model = ViT(
        Encoder(32, 2, 2), (16, 24), (8, 8), 3, prefix=0, pool=lambda dim, prefix: pool.Attend(dim, prefix, heads=2)
    )
    page = explain(wrap_model(model, (16, 24)), photo)
    assert len(read_data(page.html)["layers"]) == 2 and read_data(page.html)["readout"] == "readPool"
    assert any("is left out: it attends from 1 to 6 tokens" in note for note in page.notes)


def test_timm_model_with_registers(photo: Path) -> None:
    model = timm.create_model(
        "vit_small_patch16_dinov3",
        img_size=32,
        depth=1,
        embed_dim=48,
        num_heads=2,
        num_classes=3,
        dynamic_img_size=False,
    )
    data = read_data(explain(wrap_model(model, (32, 32)), photo).html)
    assert data["prefix"] == ["cls", "reg0", "reg1", "reg2", "reg3"] and data["grid"] == [2, 2]


def test_windowed_attention_is_refused(photo: Path) -> None:
    model = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=56, depths=(1, 1), embed_dim=8, num_heads=(1, 1), num_classes=3
    )
    with pytest.raises(ValueError, match="tokens of SwinTransformer are unknown"):
        explain(wrap_model(model, (56, 56)), photo)


def test_samples_are_deterministic_and_from_the_fold(source: Path) -> None:
    def list_samples(**options: Any) -> list[int]:
        return [*draw_image_sample(StatisticsSource(str(source), **options), Reading()).indices]

    first = list_samples(pictures=5)
    assert first == list_samples(pictures=5) and len(set(first)) == 5 and first == sorted(first)
    assert first != [0, 1, 2, 3, 4]
    assert sorted(sum((list_samples(fold=fold) for fold in range(5)), [])) == [*range(20)]
    with pytest.raises(ValueError, match="pictures must be at least 1"):
        list_samples(pictures=0)


def test_statistics_equal_those_of_heads_without_labels(folder: Path, photo: Path, source: Path) -> None:
    loose = source / "class0"  # pictures alone, no folders
    for data in (source, loose):
        shown = read_data(explain(folder, photo, data=StatisticsSource(str(data), pictures=7)).html)["statistics"]
        expected = heads(folder, open_unlabelled(str(data)), pictures=7, ablation=False).statistics
        assert shown["count"] == 7
        assert shown["measures"] == expected.to_dict()["measures"]
    with pytest.raises(ValueError, match="source must hold at least two folders"):
        explain(folder, photo, data=StatisticsSource(str(loose), fold=0))


def test_error_names_the_first_unreadable_picture(folder: Path, photo: Path, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "one.png").write_bytes(b"no picture")
    for measure in (lambda data: explain(folder, photo, data=data), lambda data: heads(folder, open_unlabelled(data))):
        with pytest.raises(ValueError, match=r"source must hold a picture that can be read, got none; .*one\.png"):
            measure(str(tmp_path / "broken"))


def test_weights_of_a_tiny_model_at_224_take_less_than_5_mb() -> None:
    """Uniform attention is the worst case for compression."""
    model = timm.create_model("vit_tiny_patch16_224", num_classes=0)
    packed = pack_layers(wrap_model(model, (224, 224)), torch.randn(1, 3, 224, 224), (), 5_000_000)
    assert len(packed.layers) == 12 and packed.notes == []
    assert max(layer.packed.error for layer in packed.layers) < 1e-3


def test_what_statistics_leave_out_is_reported(
    folder: Path, photo: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source / "class0" / "0.png").write_bytes(b"no picture")
    (source / "notes.md").write_text("")
    arguments = [str(folder), str(photo), "--data", str(source), "--device", "cpu"]
    assert main([*arguments, "-o", str(tmp_path / "page.html")]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert f"left out: 1 file other than images, such as {source}/notes.md" in lines
    assert any(line.startswith("error: ") and f"{source}/class0/0.png" in line for line in lines)
    assert lines[-1] == "error: 1 of 20 pictures could not be read"
