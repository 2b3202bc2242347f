import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.nn.functional import normalize
from torch.testing import assert_close

from vitkit.bundle import model_config, weights
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import save
from vitkit.cli import main
from vitkit.convert.open import open_model
from vitkit.data.annotations.captions import CAPTIONS, split_groups
from vitkit.data.batches import Reading
from vitkit.data.sources.open import open_held_out, open_source
from vitkit.evaluation.classification import evaluate
from vitkit.inference.prediction import predict
from vitkit.inference.prompts import get_cache_folder
from vitkit.inference.zero_shot_classifier import zero_shot
from vitkit.models import CLIP
from vitkit.models.parts import require_image_model

CLASSES = ("boat", "cat")  # the source's
WORDS = ("a boat", "a cat")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Write six pictures of noise in class folders."""
    for index in range(6):
        path = tmp_path / "pictures" / CLASSES[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(torch.randint(256, (20, 28, 3), dtype=torch.uint8).numpy()).save(path)
    return tmp_path / "pictures"


def run(*arguments: object) -> int:
    return main(["zero-shot", *map(str, arguments), "--device", "cpu", "--batch", "4"])


def compute_logits(folder: Path, files: list[Path], words: tuple[str, ...], template: str) -> torch.Tensor:
    bundle = open_model(folder)
    model, preprocess, tokenizer = bundle.model, bundle.preprocess, bundle.tokenizer
    assert isinstance(model, CLIP) and tokenizer is not None
    with torch.inference_mode():
        images = model.encode_image(torch.stack([preprocess(Image.open(file)) for file in files]))
        texts = torch.cat([model.encode_text(tokenizer([template.format(word)])) for word in words])
        return model.log_scale.exp() * normalize(images) @ normalize(texts).T


def test_prediction_is_the_class_with_the_nearest_prompt(clip_folder: Path, pictures: Path) -> None:
    source = open_source(str(pictures))
    files = [Path(source.get_name(index)) for index in range(6)]
    network = zero_shot(clip_folder, CLASSES, ("a photo of {}.",), device="cpu")
    evaluation = evaluate(network, str(pictures), knn=False, linear=False, reading=Reading(4, device="cpu"))
    expected = compute_logits(clip_folder, files, CLASSES, "a photo of {}.")
    assert_close(evaluation.logits, expected, rtol=1e-4, atol=1e-4)
    predictions = list(predict(network, files, top=1, device="cpu"))
    assert [item.labels for item in predictions] == [(CLASSES[index],) for index in expected.argmax(1).tolist()]


def test_report_has_the_files_of_evaluate(
    clip_folder: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(clip_folder, pictures, "--classes", *WORDS, "--templates", "{}", "my {}") == 0
    folder = clip_folder.parent / "zero_shot" / "pictures"
    names = {"confusion.csv", "confusion.png", "per_class.csv", "mistakes.csv", "mistakes.png", "calibration.png"}
    assert {path.name for path in folder.iterdir()} == {*names, "report.json"}
    report = json.loads((folder / "report.json").read_text("utf-8"))
    assert (report["classes"], report["templates"], report["source"]) == ([*WORDS], ["{}", "my {}"], str(pictures))
    source = open_source(str(pictures))
    files = [Path(source.get_name(index)) for index in range(6)]
    bundle = open_model(clip_folder)
    model, preprocess, tokenizer = bundle.model, bundle.preprocess, bundle.tokenizer
    assert isinstance(model, CLIP) and tokenizer is not None
    with torch.inference_mode():
        texts = [model.encode_text(tokenizer([word, f"my {word}"])).mean(0) for word in WORDS]
        images = model.encode_image(torch.stack([preprocess(Image.open(file)) for file in files]))
    right = (images @ normalize(torch.stack(texts)).T).argmax(1) == torch.tensor(source.labels)
    assert report["top1"] == pytest.approx(right.float().mean().item())
    with (folder / "confusion.csv").open() as file:
        assert [row["label"] for row in csv.DictReader(file)] == [*WORDS]
    assert f"{report['top1']:.2%}" in capsys.readouterr().out
    assert len([*get_cache_folder().iterdir()]) == 1


def test_default_classes_are_the_source_s(clip_folder: Path, pictures: Path, tmp_path: Path) -> None:
    assert run(clip_folder, pictures, "--out", tmp_path / "default", "--no-cache") == 0
    assert run(clip_folder, pictures, "--classes", *CLASSES, "--out", tmp_path / "given", "--no-cache") == 0
    assert (tmp_path / "default" / "report.json").read_text() == (tmp_path / "given" / "report.json").read_text()
    assert not get_cache_folder().exists()


def test_number_of_classes_must_be_the_source_s(
    clip_folder: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(clip_folder, pictures, "--classes", "a", "b", "c") == 1
    message = "error: classes must be 2, in the order of the source's boat, cat, got 3\n"
    assert capsys.readouterr().err == message


def test_two_classes_of_one_name_are_numbered(clip_folder: Path, pictures: Path, tmp_path: Path) -> None:
    assert run(clip_folder, pictures, "--classes", "cat", "cat", "--out", tmp_path / "out") == 0
    with (tmp_path / "out" / "per_class.csv").open() as file:
        assert [(row["class"], row["support"]) for row in csv.DictReader(file)] == [("cat", "3"), ("cat (2)", "3")]


def test_unlabelled_pictures_have_a_row_each(
    clip_folder: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pictures / "cat" / "3.png").write_bytes(b"")
    out = tmp_path / "predictions.csv"
    options = ("--unlabelled", "--classes", *WORDS, "heart", "--top", 2, "--out", out)
    assert run(clip_folder, pictures, *options) == 1
    with out.open() as file:
        rows = list(csv.DictReader(file))
    names = [f"{pictures}/{'boat' if index % 2 == 0 else 'cat'}/{index}.png" for index in (0, 2, 4, 1, 3, 5)]
    assert [row["path"] for row in rows] == names
    files = [Path(name) for name in names if not name.endswith("3.png")]
    expected = compute_logits(clip_folder, files, (*WORDS, "heart"), "a photo of a {}.").softmax(1).topk(2)
    readable = [row for row in rows if not row["error"]]
    assert [row["label_1"] for row in readable] == [
        (*WORDS, "heart")[index] for index in expected.indices[:, 0].tolist()
    ]
    assert [float(row["probability_2"]) for row in readable] == pytest.approx(expected.values[:, 1].tolist(), rel=1e-3)
    assert "3.png" in rows[4]["error"] and "1 of 6 pictures could not be read" in capsys.readouterr().err


def test_picture_and_folder_without_class_folders_are_unlabelled(
    clip_folder: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(clip_folder, pictures / "cat" / "1.png", "--classes", *WORDS) == 0
    assert capsys.readouterr().out.startswith(f"{pictures}/cat/1.png  a ")
    assert run(clip_folder, pictures / "cat", "--classes", *WORDS) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == [f"{pictures}/cat/{number}.png" for number in (1, 3, 5)]
    assert f"note: {pictures}/cat has no labels: predictions, no accuracy\n" in err
    assert run(clip_folder, pictures / "cat" / "1.png") == 1
    assert "classes must be given for unlabelled pictures" in capsys.readouterr().err


def test_truncated_prompts_are_noted(clip_folder: Path, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = "cat which sits on a mat and looks at you all the day"
    for _ in range(2):  # the second time from the cache
        assert run(clip_folder, pictures, "--classes", "boat", long, "--overwrite") == 0
        assert capsys.readouterr().err == "note: 1 of 2 prompts do not fit into 12 ids and are truncated\n"
    with pytest.warns(UserWarning, match="1 of 2 prompts do not fit"):
        zero_shot(clip_folder, ("boat", long))


def test_class_names_are_words_in_prompts_and_stay_in_reports(
    clip_folder: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["RedBoat", "tabby_cat"]
    assert run(clip_folder, pictures, "--classes", *names, "--out", tmp_path / "report") == 0
    assert capsys.readouterr().err.count("note: class names in prompts: red boat, tabby cat") == 1
    assert json.loads((tmp_path / "report" / "report.json").read_text())["classes"] == names
    with pytest.warns(UserWarning, match="class names in prompts"):
        split = zero_shot(clip_folder, names, cache=False, device="cpu").model.state_dict()["head.classes"]
    words = zero_shot(clip_folder, ["red boat", "tabby cat"], cache=False, device="cpu").model.state_dict()
    assert_close(split, words["head.classes"], rtol=0, atol=0)


def test_fold_is_the_part_that_contrastive_training_holds_out(clip_folder: Path) -> None:
    source = open_source("digits")
    part, _ = open_held_out(source, "digits", 1, 4)
    samples = split_groups(open_source("digits", CAPTIONS).groups, 4, 1)[1]
    assert part.samples == samples and len(part) == len(samples)
    assert part.labels == [source.labels[sample] for sample in samples]
    assert part.get_name(3) == source.get_name(samples[3]) and part.read_content(3) == source.read_content(samples[3])
    assert part.read_image(3).tobytes() == source.read_image(samples[3]).tobytes()


def test_fold_of_class_folders_is_the_one_that_evaluate_holds_out(
    clip_folder: Path, pictures: Path, tmp_path: Path
) -> None:
    options = ("--fold", "1", "--folds", "3", "--out", tmp_path / "out")
    assert run(clip_folder, pictures, *options) == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text("utf-8"))
    assert (report["pictures"], report["fold"], report["folds"]) == (2, 1, 3)
    network = zero_shot(clip_folder, CLASSES, device="cpu")
    evaluation = evaluate(network, str(pictures), fold=1, folds=3, knn=False, linear=False, reading=Reading(4))
    part, _ = open_held_out(source := open_source(str(pictures)), str(pictures), 1, 3)
    assert list(part.samples) == evaluation.indices.tolist()
    assert report["top1"] == evaluation.numbers["top1"] and len(source) == 6


def test_fold_of_captioned_emoji_holds_none_that_a_clip_trains_on() -> None:
    """They have more pictures with captions than with labels: a fold of these was an IndexError, then refused."""
    source, captioned = open_source("openmoji"), open_source("openmoji", CAPTIONS)
    training = {captioned.pictures.get_name(sample) for sample in CAPTIONS.split(captioned, 5, 0)[0]}
    part, _ = open_held_out(source, "openmoji", 0, 5)
    assert len(part) == 157 and not training & {part.get_name(index) for index in range(len(part))}


def test_single_text_is_refused_as_classes(clip_folder: Path) -> None:
    with pytest.raises(ValueError, match="classes must be at least two, in a list, got 'cat dog'"):
        zero_shot(clip_folder, "cat dog")


def test_options_without_effect_are_refused(
    clip_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = {
        ("digits", "--folds", "4"): "folds must come with the fold that was held out, got folds=4",
        ("digits", "--top", "3"): "top and format must be left out for labelled pictures",
        ("digits", "--format", "csv"): "top and format must be left out for labelled pictures",
    }
    for call, message in calls.items():
        assert run(clip_folder, *call, "--out", tmp_path / "out") == 1
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


def test_several_classes_need_a_model_with_a_bias(clip_folder: Path, pictures: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="model must have a bias, as SigLIP"):
        zero_shot(clip_folder, CLASSES, several=True)
    config: dict[str, Any] = dict(model_config.read_yaml(clip_folder / "config.yaml"))
    config["init_args"]["bias"] = -10.0
    bundle = open_model(clip_folder)
    preprocess, tokenizer = bundle.preprocess, bundle.tokenizer
    save(tmp_path / "siglip", Bundle(model_config.build_model(config), config, preprocess, tokenizer=tokenizer))
    network = zero_shot(tmp_path / "siglip", CLASSES, several=True)
    (prediction,) = predict(network, [pictures / "cat" / "1.png"], device="cpu")
    assert all(value > 0.5 for value in prediction.probabilities) and network.multilabel
    pooled = torch.randn(1, 32)
    assert (require_image_model(network.model).head(pooled) < 15).all()  # 1 / 0.07 - 10 at most


def test_errors_name_the_command_for_the_model(
    clip_folder: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(clip_folder), str(pictures)]) == 1
    assert f"takes them in words: vitkit zero-shot {clip_folder}" in capsys.readouterr().err
    config: Any = dict(model_config.read_yaml(clip_folder / "config.yaml"))
    config = config["init_args"]["image"]
    bundle = open_model(clip_folder)
    preprocess = bundle.preprocess
    save(clip_folder.parent / "vit", Bundle(model_config.build_model(config), config, preprocess))
    assert run(clip_folder.parent / "vit", pictures) == 1
    assert "model must be a CLIP, which reads texts too, got ViT" in capsys.readouterr().err


def test_other_folders_are_not_overwritten(
    clip_folder: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(clip_folder, pictures, "--out", pictures) == 1
    assert "add --overwrite" in capsys.readouterr().err


@torch.no_grad()
def test_embeddings_that_are_not_finite_are_refused(
    clip_folder: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = open_model(clip_folder).model
    model.get_parameter("text.head.bias").fill_(torch.nan)
    weights.save_weights(clip_folder, model.state_dict())
    assert run(clip_folder, pictures) == 1
    assert "model must give finite numbers, got others for the classes" in capsys.readouterr().err
    assert not any(get_cache_folder().iterdir())
