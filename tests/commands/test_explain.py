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
from vitkit.pages.explain.explanation import StatisticsSource, drawn_from, explain, kept_layers

TRUNK = {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 32, "depth": 3, "heads": 2}}
SIZES = {"encoder": TRUNK, "image_size": [16, 24], "patch_size": [8, 8]}
VIT = {"class_path": "vitkit.models.ViT", "init_args": {**SIZES, "outputs": 3}}
DECODER = {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 16, "depth": 1, "heads": 2}}
MAE = {"class_path": "vitkit.models.MAE", "init_args": {**SIZES, "decoder": DECODER}}
PREPROCESS = Preprocess((16, 24), (0.5,) * 3, (0.25,) * 3)


def saved(folder: Path, config: dict[str, Any], classes: tuple[str, ...]) -> Path:
    model = model_config.build_model(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    save(folder, Bundle(model, config, PREPROCESS, classes))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(tmp_path / "run" / "model", VIT, ("ant", "bee", "cat"))


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


def held(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_an_open_model_is_explained_as_its_folder(folder: Path, photo: Path) -> None:
    found, expected = (
        explain(source, photo, reading=Reading(device="cpu")).html for source in (open_model(folder), folder)
    )
    assert found == expected


def test_a_page_is_written_by_one_command(
    folder: Path, photo: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    assert main([str(folder), str(photo), "-o", str(out), "--data", str(source), "--pictures", "8"]) == 0
    data, printed = held(out.read_text("utf-8")), capsys.readouterr()
    assert data["read"] == "readFirst"
    assert (data["model"], data["photo"], data["prefix"], data["grid"]) == ("run/model", "photo.jpg", ["cls"], [2, 3])
    assert [layer["place"] for layer in data["layers"]] == [0, 1, 2]
    assert data["answers"]["kind"] == "classes" and sorted(data["answers"]["classes"]) == ["ant", "bee", "cat"]
    assert data["statistics"]["count"] == 8 and data["statistics"]["source"].endswith("/pictures")
    assert printed.out == "" and " MB" in printed.err and "off by more than" in printed.err
    assert str(tmp_path) not in out.read_text("utf-8")


def test_what_exists_is_not_overwritten(folder: Path, photo: Path, tmp_path: Path) -> None:
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
        (["--language", "xx"], "language must be one of en, got language=xx"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    folder: Path, photo: Path, tmp_path: Path, wrong: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        main([str(folder), str(photo), "-o", str(tmp_path / "page.html"), *wrong])
    assert "\n" not in str(raised.value) and not (tmp_path / "page.html").exists()


def test_a_photo_that_is_not_there_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(PictureError, match="missing.png"):
        explain(folder, tmp_path / "missing.png")


def test_a_folder_in_place_of_the_photo_is_told_so(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="photo must be one picture, got the folder"):
        explain(folder, tmp_path)


def test_a_model_elsewhere_is_called_by_its_own_folders(
    folder: Path, photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert "<title>run/model: photo.jpg</title>" in explain("../run/model", photo).html
    monkeypatch.chdir(folder)
    assert "<title>run/model: photo.jpg</title>" in explain("../model", photo).html


def test_above_the_budget_the_last_layers_are_kept_and_it_is_said(folder: Path, photo: Path) -> None:
    one = open_attention_model(folder)
    image = one.preprocess(Image.open(photo))[None]
    sizes = [len(layer.packed.content) for layer in kept_layers(one, image, (), 10**9).layers]
    page = explain(one, photo, budget=sizes[1] + sizes[2])
    data = held(page.html)
    assert [layer["place"] for layer in data["layers"]] == [1, 2]
    assert len(data["answers"]["effects"]) == 2
    assert any("Only layers 1 to 2 of 3 are kept" in note for note in page.notes)
    alone = explain(one, photo, budget=sizes[2])
    assert any("Only layer 2 of 3 is kept: each takes 0 kB" in note for note in alone.notes)
    assert data["notes"] == list(page.notes[1:])


def test_layers_are_chosen_by_place_or_name(folder: Path, photo: Path) -> None:
    one = open_attention_model(folder)
    for asked in ((0, -1), (one.layers[0], "encoder.blocks.2")):
        assert [layer["place"] for layer in held(explain(one, photo, layers=asked).html)["layers"]] == [0, 2]


def test_a_masked_autoencoder_has_a_vector(tmp_path: Path, photo: Path) -> None:
    data = held(explain(saved(tmp_path / "mae", MAE, ()), photo).html)
    assert data["read"] == "readMean"
    assert (data["answers"]["kind"], data["answers"]["width"]) == ("vector", 32)
    assert len(data["layers"]) == 3  # its decoder does not run
    assert all(0 < effect < 2 for row in data["answers"]["effects"] for effect in row)
    last = held(explain(tmp_path / "mae", photo, layers=[-1]).html)["layers"]
    assert [layer["place"] for layer in last] == [2]
    with pytest.raises(ValueError, match="layers must be from -3 to 2, got 3"):
        explain(tmp_path / "mae", photo, layers=[3])


def test_a_picture_that_was_opened_is_shown_as_its_file_is(folder: Path, photo: Path, tmp_path: Path) -> None:
    path = tmp_path / "sideways.png"
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    Image.open(photo).save(path, exif=exif)
    own, other = (held(explain(folder, one).html) for one in (Image.open(path), path))
    assert (own["picture"]["width"], own["picture"]["height"]) == (40, 50)
    assert (own["picture"], own["answers"], own["layers"]) == (other["picture"], other["answers"], other["layers"])


def test_a_clip_has_a_vector_or_the_classes_it_is_told(clip_folder: Path, photo: Path) -> None:
    assert held(explain(clip_folder, photo).html)["answers"]["kind"] == "vector"
    told = held(explain(clip_folder, photo, classes=["dog", "cat"], reading=Reading(device="cpu")).html)
    assert sorted(told["answers"]["classes"]) == ["cat", "dog"]


def examined(model: torch.nn.Module, size: tuple[int, int]) -> AttentionModel:
    preprocess, layers = Preprocess(size, (0.5,) * 3, (0.5,) * 3), (*find_attention_layers(model),)
    return AttentionModel(Bundle(model.eval(), {}, preprocess, ("a", "b", "c"), source="x"), model, layers)


def test_a_pool_that_attends_is_left_out_and_it_is_said(photo: Path) -> None:
    model = ViT(
        Encoder(32, 2, 2), (16, 24), (8, 8), 3, prefix=0, pool=lambda dim, prefix: pool.Attend(dim, prefix, heads=2)
    )
    page = explain(examined(model, (16, 24)), photo)
    assert len(held(page.html)["layers"]) == 2 and held(page.html)["read"] == "readPool"
    assert any("is left out: it attends from 1 to 6 tokens" in note for note in page.notes)


def test_a_model_of_timm_with_registers_is_taken_as_it_is(photo: Path) -> None:
    model = timm.create_model(
        "vit_small_patch16_dinov3",
        img_size=32,
        depth=1,
        embed_dim=48,
        num_heads=2,
        num_classes=3,
        dynamic_img_size=False,
    )
    data = held(explain(examined(model, (32, 32)), photo).html)
    assert data["prefix"] == ["cls", "reg0", "reg1", "reg2", "reg3"] and data["grid"] == [2, 2]


def test_windows_are_refused_since_their_tokens_are_not_known(photo: Path) -> None:
    model = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=56, depths=(1, 1), embed_dim=8, num_heads=(1, 1), num_classes=3
    )
    with pytest.raises(ValueError, match="tokens of SwinTransformer are unknown"):
        explain(examined(model, (56, 56)), photo)


def test_the_pictures_of_data_are_drawn_alike_each_time_and_from_the_fold(source: Path) -> None:
    def samples(**more: Any) -> list[int]:
        return [*drawn_from(StatisticsSource(str(source), **more), Reading()).samples]

    first = samples(pictures=5)
    assert first == samples(pictures=5) and len(set(first)) == 5 and first == sorted(first)
    assert first != [0, 1, 2, 3, 4]
    assert sorted(sum((samples(fold=fold) for fold in range(5)), [])) == [*range(20)]
    with pytest.raises(ValueError, match="pictures must be at least 1"):
        samples(pictures=0)


def test_statistics_are_those_of_heads_and_need_no_labels(folder: Path, photo: Path, source: Path) -> None:
    loose = source / "class0"  # pictures alone, no folders
    for data in (source, loose):
        told = held(explain(folder, photo, data=StatisticsSource(str(data), pictures=7)).html)["statistics"]
        found = heads(folder, open_unlabelled(str(data)), pictures=7, ablation=False).statistics
        assert told["count"] == 7
        assert told["measures"] == found.to_dict()["measures"]
    with pytest.raises(ValueError, match="source must hold at least two folders"):
        explain(folder, photo, data=StatisticsSource(str(loose), fold=0))


def test_of_pictures_of_which_none_can_be_read_the_first_is_told(folder: Path, photo: Path, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "one.png").write_bytes(b"no picture")
    for measure in (lambda data: explain(folder, photo, data=data), lambda data: heads(folder, open_unlabelled(data))):
        with pytest.raises(ValueError, match=r"source must hold a picture that can be read, got none; .*one\.png"):
            measure(str(tmp_path / "broken"))


def test_all_weights_of_a_tiny_model_at_224_take_less_than_5_mb() -> None:
    """The worst of them: nothing looks anywhere."""
    model = timm.create_model("vit_tiny_patch16_224", num_classes=0)
    kept = kept_layers(examined(model, (224, 224)), torch.randn(1, 3, 224, 224), (), 5_000_000)
    assert len(kept.layers) == 12 and kept.notes == []
    assert max(layer.packed.error for layer in kept.layers) < 1e-3
