import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitkit.bundle import model_config, weights
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import read_classes, save
from vitkit.bundle.image_bundle import build_untrained
from vitkit.cli import main
from vitkit.convert.open import open_image_model, open_model
from vitkit.data.batches import Reading
from vitkit.data.order import draw_samples, split_folds
from vitkit.data.preprocess import Preprocess
from vitkit.data.sources.open import open_source
from vitkit.data.sources.subset import Subset
from vitkit.evaluation import figures
from vitkit.evaluation.classification import ModelOutputs, evaluate, score_outputs
from vitkit.evaluation.probe_choice import choose_training
from vitkit.evaluation.probes import ProbeData
from vitkit.evaluation.report import find_mistakes
from vitkit.models.parts import get_image_tower

PREPROCESS = Preprocess((8, 8), (0.5,), (0.25,))
CLASSES = ("dim", "bright", "dark", "other")  # not sorted, and one more than the pictures have
CPU = Reading(batch=4, device="cpu")
CONFIG = {
    "class_path": "vitkit.models.ViT",
    "init_args": {
        "encoder": {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 16, "depth": 1, "heads": 2}},
        "image_size": [8, 8],
        "patch_size": [4, 4],
        "channels": 1,
        "outputs": 4,
    },
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    network = model_config.build_model(CONFIG)
    torch.nn.init.normal_(network.get_parameter("head.weight"))
    save(tmp_path / "run" / "model", Bundle(network, CONFIG, PREPROCESS, CLASSES))
    return tmp_path / "run" / "model"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Eight images each of three classes that differ in brightness."""
    generator = np.random.default_rng(0)
    for name, level in (("bright", 220), ("dark", 10), ("dim", 120)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for index in range(8):
            pixels = level + generator.integers(-10, 10, (10, 9))
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "pictures" / name / f"{index}.png")
    return tmp_path / "pictures"


def run(*arguments: object) -> int:
    return main(["evaluate", *map(str, arguments), "--device", "cpu", "--batch", "5"])


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_metrics_equal_those_of_the_model_logits(model: Path, source: Path) -> None:
    network = open_model(model).model
    pictures = open_source(str(source))
    with torch.inference_mode():
        logits = network(torch.stack([PREPROCESS(pictures.read_image(index)) for index in range(24)]))
    truth = torch.tensor([CLASSES.index(pictures.class_names[label]) for label in pictures.labels])
    evaluation = evaluate(model, str(source), reading=CPU)
    torch.testing.assert_close(evaluation.logits, logits)
    assert evaluation.labels.tolist() == truth.tolist()
    assert evaluation.numbers["top1"] == (logits.argmax(dim=1) == truth).float().mean()
    mistakes = find_mistakes(evaluation)
    assert {mistake.sample for mistake in mistakes} == set((logits.argmax(dim=1) != truth).nonzero()[:, 0].tolist())
    confidences = [mistake.confidence for mistake in mistakes]
    assert confidences == sorted(confidences, reverse=True)


def test_report_and_tables_agree(model: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(model, source) == 0
    folder = model.parent / "evaluation" / "pictures"
    names = {"calibration", "confusion", "mistakes"}
    assert {path.name for path in folder.iterdir()} == {
        "report.json",
        "per_class.csv",
        "confusion.csv",
        "mistakes.csv",
        *(f"{name}.png" for name in names),
    }
    report = json.loads((folder / "report.json").read_text("utf-8"))
    table = read_rows(folder / "confusion.csv")
    assert [row["label"] for row in table] == list(CLASSES) == list(table[0])[1:]
    right = sum(int(row[row["label"]]) for row in table)
    assert report["top1"] == pytest.approx(right / 24)
    out = capsys.readouterr().out
    assert f"top-1 accuracy{right / 24:>24.2%}" in out
    assert f"\n  linear probe on pixels{report['baselines_macro_recall']['linear probe on pixels']:>14.2%}\n" in out
    loss = f"accuracy: worse than linear probe on pixels, {right / 24:.2%} against 100.00%"
    assert loss in report["worse_than_baselines"] and f"\n{loss}\n" in out
    assert len(read_rows(folder / "mistakes.csv")) == 24 - right
    support = {row["class"]: int(row["support"]) for row in read_rows(folder / "per_class.csv")}
    assert support == {"dim": 8, "bright": 8, "dark": 8, "other": 0}
    assert report["probes_are"] == "cross-validated over 5 folds of these pictures"
    assert report["probes"]["linear probe on pixels"] == 1.0


def test_source_may_lack_classes_of_the_model(model: Path, source: Path) -> None:
    shutil.rmtree(source / "dim")
    shutil.rmtree(source / "bright")
    (source / "bright").mkdir()
    evaluation = evaluate(model, str(source), reading=CPU)
    assert evaluation.numbers["pictures"] == 8 and "linear" not in evaluation.numbers.get("probes", {})
    assert evaluation.numbers["probes_are"] == "left out: all pictures are of one class"


def test_fold_evaluates_the_held_out_part(model: Path, source: Path) -> None:
    pictures = open_source(str(source))
    inside, outside = split_folds(pictures.labels, pictures.class_names, 4, 1)
    evaluation = evaluate(model, str(source), fold=1, folds=4, probe=str(source), reading=CPU)
    assert evaluation.indices.tolist() == outside
    assert evaluation.numbers["probes_are"] == "fitted to 18 pictures of the same source"
    assert choose_training(None, str(source), pictures, inside, ("", ""), ()) == (pictures, inside)
    with pytest.raises(ValueError, match="probe must hold other pictures than source"):
        evaluate(model, str(source), probe=str(source), reading=CPU)


def test_probes_are_left_out_for_classes_with_fewer_images_than_folds(model: Path, source: Path) -> None:
    for path in (source / "dark").glob("[2-7].png"):
        path.unlink()
    numbers = evaluate(model, str(source), reading=CPU).numbers
    assert "probes" not in numbers and "baselines" not in numbers
    assert numbers["probes_are"] == "left out: a class has 2 pictures, and 5 folds are made"


def test_probes_of_a_fold_are_fitted_to_the_other_folds(model: Path, source: Path) -> None:
    """The most frequent class too, with and without probes."""
    numbers = evaluate(model, str(source), fold=0, folds=4, reading=CPU).numbers
    same = evaluate(model, str(source), fold=0, folds=4, probe=str(source), reading=CPU).numbers
    assert numbers == same and numbers["probes_are"] == "fitted to 18 pictures of the same source"
    plain = evaluate(model, str(source), fold=0, folds=4, knn=False, linear=False, reading=CPU).numbers
    assert plain["baselines"] == numbers["baselines"] == {"most frequent class": pytest.approx(1 / 3)}


def test_baseline_of_a_subset_is_fitted_to_the_rest(model: Path, source: Path) -> None:
    """The most frequent of the 13 others is in one of the 11 pictures; bright is the most frequent of those."""
    pictures = open_source(str(source))
    part = Subset(pictures, [*range(6), 8, *range(16, 20)])
    numbers = evaluate(model, part, knn=False, linear=False, reading=CPU).numbers
    assert numbers["baselines"] == {"most frequent class": pytest.approx(1 / 11)}
    assert numbers["probes_are"] == "fitted to 13 pictures of the same source"


def test_unknown_class_is_refused_in_one_line(model: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(source / "dark", source / "unheard of")
    assert run(model, source) == 1
    assert capsys.readouterr().err == (
        "error: source must have only classes of the model, got 1 others: unheard of; "
        "for classes added or renamed since, train a new run with --pretrained FOLDER\n"
    )


def test_unreadable_image_is_reported_and_not_counted(
    model: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source / "dark" / "3.png").write_bytes(b"")
    assert run(model, source, "--no-probe") == 1
    out, error = capsys.readouterr()
    assert "23 pictures of" in out
    assert [str(source / "dark" / "3.png") in line for line in error.splitlines()] == [True, False]
    report = json.loads((model.parent / "evaluation" / "pictures" / "report.json").read_text("utf-8"))
    assert (report["pictures"], len(report["unreadable"]), "probes" in report) == (23, 1, False)


def test_report_is_replaced_on_request_alone_and_other_files_stay(
    model: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = model.parent / "evaluation" / "pictures"
    assert run(model, source, "--no-probe") == 0
    assert run(model, source, "--no-probe", "--fold", "0") == 0
    assert {path.name for path in folder.parent.iterdir()} == {"pictures", "pictures-fold0"}
    before = (folder / "report.json").read_bytes()
    (folder / "notes.txt").write_text("mine")
    (folder / "captions.csv").write_text("of another kind of evaluation")
    for out in ([], ["--out", source]):
        assert run(model, source, "--no-probe", *out) == 1
        assert "choose another, or add --overwrite" in capsys.readouterr().err
    assert (folder / "report.json").read_bytes() == before
    assert run(model, source, "--knn", "--overwrite") == 0
    assert "probes" in json.loads((folder / "report.json").read_text("utf-8"))
    assert (folder / "notes.txt").read_text() == "mine" and not (folder / "captions.csv").exists()


def test_stopped_evaluation_does_not_block_the_next(model: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(figures, "draw_calibration", stop)
        assert run(model, source, "--no-probe") == 130
    folder = model.parent / "evaluation" / "pictures"
    assert (folder / "confusion.png").exists() and not (folder / "report.json").exists()
    assert run(model, source, "--no-probe") == 0
    assert (folder / "report.json").exists() and not [*folder.glob(".*")]


@pytest.fixture
def multilabel_source(source: Path) -> Path:
    """The same images in a table, where bright ones are labelled dark too."""
    labels = {"bright": "bright|dark", "dark": "dark", "dim": "dim"}
    lines = [f"{path.relative_to(source)},{labels[path.parent.name]}" for path in sorted(source.rglob("*.png"))]
    (source / "metadata.csv").write_text("\n".join(["file_name,label", *lines]))
    return source


def write_class_names(model: Path, multilabel: bool = True) -> None:
    names, _ = read_classes(model)
    (model / "classes.json").write_text(json.dumps({"several": names} if multilabel else names), "utf-8")


def test_single_label_model_refuses_multilabel_source(model: Path, multilabel_source: Path) -> None:
    with pytest.raises(ValueError, match="source must have one label for each picture, since the model predicts"):
        evaluate(model, str(multilabel_source), reading=CPU)


def test_multilabel_model_accepts_single_labels(model: Path, source: Path) -> None:
    write_class_names(model)
    evaluation = evaluate(model, str(source), reading=CPU)
    assert evaluation.labels.sum(1).tolist() == [1] * 24 and evaluation.numbers["several_labels"]


def test_multilabel_columns_follow_the_model_classes(model: Path, multilabel_source: Path) -> None:
    write_class_names(model)
    evaluation = evaluate(model, str(multilabel_source), reading=CPU)
    bright_and_dark, dark, dim = [False, True, True, False], [False, False, True, False], [True, False, False, False]
    assert evaluation.labels.tolist() == [bright_and_dark] * 8 + [dark] * 8 + [dim] * 8
    right = (evaluation.logits > 0) & evaluation.labels
    assert evaluation.numbers["micro_recall"] == pytest.approx(right.sum().item() / 32)
    assert evaluation.numbers["baselines"]["class frequencies"] == pytest.approx((8 + 8 + 16) / 3 / 24)


def test_files_of_another_kind_of_evaluation_are_removed(
    model: Path, multilabel_source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = model.parent / "evaluation" / "pictures"
    (multilabel_source / "metadata.csv").rename(multilabel_source / "later")
    assert run(model, multilabel_source, "--no-probe") == 0
    assert len(list(folder.iterdir())) == 7
    (multilabel_source / "later").rename(multilabel_source / "metadata.csv")
    write_class_names(model)
    assert run(model, multilabel_source, "--overwrite") == 0
    assert {path.name for path in folder.iterdir()} == {"report.json", "per_class.csv"}
    assert [row["support"] for row in read_rows(folder / "per_class.csv")] == ["8", "8", "16", "0"]
    out = capsys.readouterr().out
    numbers = json.loads((folder / "report.json").read_text())
    worse = numbers["mean_average_precision"] < numbers["baselines"]["class frequencies"]
    assert ("mean average precision: worse than class frequencies" in out) == worse
    assert len(numbers["worse_than_baselines"]) == worse


def test_multilabel_model_worse_than_class_frequencies_is_reported() -> None:
    labels = torch.tensor([[True, False], [False, True], [False, True]])
    data = ProbeData(np.zeros((3, 0)), np.zeros((3, 0), np.uint8), labels.numpy())
    outputs = ModelOutputs(torch.tensor([[0.0, 2.0], [1.0, 0.0], [2.0, 1.0]]), labels, torch.arange(3), data, [])
    numbers = score_outputs(outputs, Bundle(torch.nn.Identity(), {}, None, ("a", "b"), multilabel=True))
    assert numbers["worse_than_baselines"][0].startswith("mean average precision: worse than class frequencies")


def test_drawn_samples_are_sorted_and_always_the_same() -> None:
    assert draw_samples(range(10), 10) == range(10)
    few = draw_samples(range(100), 10)
    assert len({*few}) == 10 and list(few) == sorted(few) == list(draw_samples(range(100), 10))
    assert list(few) != list(range(10))


@pytest.fixture(params=["MAE", "ViT"])
def headless(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    arguments = {name: value for name, value in CONFIG["init_args"].items() if name != "outputs"}
    more = {"decoder": arguments["encoder"]} if request.param == "MAE" else {"outputs": 0, "pool": "vitkit.nn.Mean"}
    config = {"class_path": f"vitkit.models.{request.param}", "init_args": {**arguments, **more}}
    save(tmp_path / "run" / "headless", Bundle(model_config.build_model(config), config, PREPROCESS))
    return tmp_path / "run" / "headless"


PROBES = [
    f"{kind} on {where}"
    for where in ("features", "features of a random encoder", "pixels")
    for kind in ("20-NN", "linear probe")
]


def test_model_without_classes_is_compared_with_a_random_encoder_and_pixels(
    headless: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(headless, source) == 0
    folder = headless.parent / "evaluation" / "pictures"
    assert [path.name for path in folder.iterdir()] == ["report.json"]
    report = json.loads((folder / "report.json").read_text("utf-8"))
    assert [*report["probes"]] == PROBES and [*report["baselines"]] == ["most frequent class"]
    assert "top1" not in report and "per_class" not in report
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in PROBES)
    assert "the model has no classes" in out and "top-1" not in out and "tables and figures" not in out


def test_random_encoder_is_the_untrained_network(headless: Path, source: Path) -> None:
    before = evaluate(headless, str(source), reading=CPU).numbers["probes"]
    network = open_model(headless).model
    for parameter in network.parameters():
        torch.nn.init.zeros_(parameter)
    weights.save_weights(headless, network.state_dict())
    state = torch.get_rng_state()
    after = evaluate(headless, str(source), reading=CPU).numbers["probes"]
    assert torch.equal(torch.get_rng_state(), state)
    random = [name for name in PROBES if "random" in name]
    assert [after[name] for name in random] == [before[name] for name in random]
    assert after["linear probe on features"] <= 1 / 3  # nothing is left
    opened = open_image_model(headless)
    fresh = build_untrained(opened)
    torch.manual_seed(1)
    again = build_untrained(opened)
    assert type(get_image_tower(fresh.model)) is type(get_image_tower(opened.model)) and fresh.class_names == ()
    assert get_image_tower(fresh.model).get_parameter("encoder.blocks.0.mlp.f.up.weight").std() > 0
    torch.testing.assert_close(again.model.state_dict(), fresh.model.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(("flags", "kinds"), [(["--knn"], {"20-NN"}), (["--linear-probe"], {"linear"})])
def test_flag_chooses_the_probe(model: Path, source: Path, flags: list[str], kinds: set[str]) -> None:
    assert run(model, source, *flags) == 0
    report = json.loads((model.parent / "evaluation" / "pictures" / "report.json").read_text("utf-8"))
    assert {name.split()[0] for name in report["probes"]} == kinds


def test_both_probe_flags_equal_the_default(headless: Path, source: Path) -> None:
    assert run(headless, source, "--knn", "--linear-probe", "--out", headless.parent / "both") == 0
    assert run(headless, source, "--out", headless.parent / "default") == 0
    both, default = ((headless.parent / name / "report.json").read_text("utf-8") for name in ("both", "default"))
    assert both == default


@pytest.mark.parametrize("headless", ["ViT"], indirect=True)
def test_model_without_classes_needs_a_probe(
    headless: Path, model: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(headless, source, "--no-probe") == 1
    assert run(model, source, "--no-probe", "--knn") == 1
    assert capsys.readouterr().err.splitlines() == [
        "error: model must have classes to be evaluated without probes, got none; leave out --no-probe",
        "error: no-probe must not meet knn or linear-probe: leave out one or the other",
    ]


def test_probe_refuses_multilabel_source(headless: Path, multilabel_source: Path) -> None:
    with pytest.raises(ValueError, match="source must have one label for each picture, since probes predict one class"):
        evaluate(headless, str(multilabel_source), reading=CPU)


def test_probes_are_fitted_to_another_source(headless: Path, source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "few")
    for path in (tmp_path / "few" / "dark").glob("[3-7].png"):
        path.unlink()
    with pytest.raises(ValueError, match="source must hold 5 pictures of each class .* got one with 3; name labelled"):
        evaluate(headless, str(tmp_path / "few"), reading=CPU)
    evaluation = evaluate(headless, str(tmp_path / "few"), probe=str(source), reading=CPU)
    assert (evaluation.numbers["pictures"], evaluation.logits.shape) == (19, (19, 0))
    assert evaluation.numbers["probes"]["linear probe on pixels"] == 1.0
    shutil.copytree(source / "dark", tmp_path / "few" / "black")
    with pytest.raises(ValueError, match="source must have only classes of probe, got 1 others: black"):
        evaluate(headless, str(tmp_path / "few"), probe=str(source), reading=CPU)


def test_model_class_without_an_evaluation_is_refused(
    text_folder: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(text_folder, source) == 1
    message = f"model must be one of ViT, MAE, CLIP, TextDecoder to be evaluated, got a TextTower in {text_folder}"
    assert capsys.readouterr().err == f"error: {message}\n"


def test_options_for_captions_are_refused_for_labels(
    model: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(model, source, "--own-only", "--overflow", "error") == 1
    assert "own-only and overflow must be left out for a ViT" in capsys.readouterr().err


@pytest.mark.parametrize("headless", ["MAE"], indirect=True)
def test_explained_variance_needs_no_labels(headless: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (source / "dark" / "3.png").write_bytes(b"")
    (source / "notes.md").write_text("")
    shutil.copytree(source / "dim", source / "dim" / "inner")
    assert run(headless, source, "--unlabelled") == 1
    out, error = capsys.readouterr()
    report = json.loads((headless.parent / "evaluation" / "pictures" / "report.json").read_text("utf-8"))
    assert report["pictures"] == 31 and "probes" not in report
    assert report["explained_variance"] == pytest.approx(1 - report["loss"] / report["mean_of_patches"])
    assert f"explained variance of hidden patches{report['explained_variance']:>12.2%}" in out
    assert "(a hidden patch counts minus its true mean" in out and report["norm_pix"]
    assert f"left out: 1 file other than images, such as {source}/notes.md" in error
    assert error.endswith("error: 1 of 32 pictures could not be read, and do not count\n")
    assert [omission["count"] for omission in report["left_out"]] == [1, 1]


@pytest.mark.parametrize("headless", ["MAE"], indirect=True)
def test_probe_options_are_refused_without_probes(
    headless: Path, model: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(headless, source, "--unlabelled", "--knn") == 1
    assert run(headless, source, "--no-probe", "--probe", source) == 1
    assert run(model, source, "--unlabelled") == 1
    message = "error: probe, probed, knn and linear-probe must be left out with unlabelled or no-probe"
    assert capsys.readouterr().err.splitlines() == [
        message,
        message,
        "error: unlabelled must be left out for a ViT, which is compared with labels",
    ]
