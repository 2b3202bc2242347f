"""A run whose data change: what it trained on and held out stays so, in the run and in later evaluations."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from vitkit.bundle.record_file import RECORD, read_record
from vitkit.cli import main
from vitkit.data.sample_record import SampleRecord


def write_image(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 8), np.uint8)).save(path)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for seed in range(60):
        write_image(tmp_path / "images" / "ab"[seed % 2] / f"{seed:02d}.png", seed)
    return tmp_path / "images"


def fit(config: Path, images: Path, run: Path, epochs: int, *options: str) -> int:
    length = (f"--trainer.max_epochs={epochs}", "--data.batch=16", "--model.schedule.warmup=0")
    return main(["fit", f"--config={config}", f"--data.train={images}", f"--run={run}", *length, *options])


def evaluate(run: Path, source: object, *options: str) -> dict[str, Any]:
    out = run.parent / "evaluation"
    arguments = [str(run / "model"), str(source), f"--out={out}", "--device=cpu", "--overwrite", *options]
    assert main(["evaluate", *arguments]) == 0
    return json.loads((out / "report.json").read_text())


def list_digests(record: SampleRecord | None, held_out: bool) -> set[int]:
    assert record is not None and record.digests.all()
    return {*record.digests[record.held_out == held_out].tolist()}


def test_resumed_run_and_evaluation_hold_out_no_trained_sample(
    config: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert fit(config, images, run, 1, "--data.workers=2") == 0
    before = read_record(run / "model")
    assert [len(list_digests(before, side)) for side in (False, True)] == [48, 12]
    assert (run / "model" / RECORD).stat().st_size <= 16 * 60 + 200  # of its header
    write_image(images / "a" / "0.png", 100)
    (images / "b" / "01.png").unlink()
    (images / "a" / "02.png").rename(images / "a" / "x.png")
    capsys.readouterr()
    report = evaluate(run, images, "--no-probe", "--fold=0")
    assert report["changes"] == {"added": 1, "removed": 1, "renamed": 1}
    assert (report["trained_on"], 10 <= report["pictures"] <= 13) == (0, True)
    assert "since training: 1 added, 1 removed, 1 renamed" in capsys.readouterr().out

    assert fit(config, images, run, 2) == 0
    assert "1 added, 1 removed, 1 renamed" in capsys.readouterr().out
    after = read_record(run / "model")
    assert not list_digests(before, False) & list_digests(after, True)
    assert not list_digests(before, True) & list_digests(after, False)
    moved = shutil.copytree(images, tmp_path / "elsewhere")
    assert evaluate(run, moved, "--no-probe", "--fold=0")["changes"] == {}
    report = evaluate(run, moved, "--no-probe")
    assert report["trained_on"] == 60 - len(list_digests(after, True))
    assert f"\ntrained on: {report['trained_on']} of 60 pictures" in capsys.readouterr().out


def test_run_stopped_in_its_first_epoch_goes_on_with_other_files(config: Path, images: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert fit(config, images, run, 1, "--trainer.max_steps=1") == 0
    before = read_record(run / "model")
    assert before is not None and (before.digests[~before.held_out] > 0).sum() == 16
    trained = {*before.digests[~before.held_out].tolist()} - {0}
    write_image(images / "a" / "0.png", 100)
    (images / "b" / "01.png").unlink()
    assert fit(config, images, run, 2) == 0
    after = read_record(run / "model")
    assert not trained & list_digests(after, True)
    assert len(trained & list_digests(after, False)) == 16


def test_names_of_another_data_set_do_not_decide_the_split(
    config: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, others = tmp_path / "run", tmp_path / "others"
    assert fit(config, images, run, 1) == 0
    for seed in range(100):
        write_image(others / "ab"[seed % 2] / f"{seed:02d}.png", 1000 + seed)
    assert fit(config, others, tmp_path / "alone", 1) == 0
    capsys.readouterr()
    assert fit(config, others, tmp_path / "pretrained", 1, f"--pretrained={run}/model") == 0
    assert "since the last training" not in capsys.readouterr().out
    records = [read_record(tmp_path / name / "model") for name in ("alone", "pretrained")]
    assert list_digests(records[0], True) == list_digests(records[1], True)
    assert list_digests(read_record(run / "model"), False) <= list_digests(records[1], False)
    report = evaluate(run, others, "--no-probe", "--fold=0")
    assert (report["pictures"], report["trained_left_out"], report["changes"]) == (20, 0, {})
    shutil.rmtree(images)
    others.rename(images)
    assert fit(config, images, run, 2) == 1
    assert "none of which is recorded" in capsys.readouterr().err


def test_resume_after_a_pretrained_run_of_another_fold_reports_no_change(
    config: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit(config, images, tmp_path / "first", 1) == 0
    options = (f"--pretrained={tmp_path}/first/model", "--data.fold=1")
    assert fit(config, images, tmp_path / "second", 1, *options) == 0
    capsys.readouterr()
    assert fit(config, images, tmp_path / "second", 2, *options) == 0
    assert "since the last training" not in capsys.readouterr().out


def test_weights_without_a_checkpoint_are_kept(
    config: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert fit(config, images, run, 1) == 0
    for path in run.iterdir():
        if path.is_file() and path.name != "config.yaml":
            path.unlink()
    assert fit(config, images, run, 1) == 1
    assert f"may start from them: --pretrained {run}/model" in capsys.readouterr().err
    assert (run / "model" / "model.safetensors").exists()


def test_validation_on_training_images_is_called_so(
    config: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert fit(config, images, run, 1, f"--data.val={images}") == 0
    assert "accuracy on pictures that were trained on (nothing is held out), 60 pictures" in capsys.readouterr().out
    assert json.loads((run / "report.json").read_text())["trained_on"] == 60
    assert evaluate(run, images, "--no-probe", "--fold=0")["trained_on"] == 12
    assert "\ntrained on: all pictures" in capsys.readouterr().out


def test_new_class_is_named_with_the_way_to_train_it(
    config: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert fit(config, images, run, 1) == 0
    before = read_record(run / "model")
    (images / "b").rename(images / "bee")
    for seed in range(60, 70):
        write_image(images / "c" / f"{seed}.png", seed)
    assert fit(config, images, run, 2) == 1
    assert capsys.readouterr().err == (
        "error: classes must be those that the run began with, got bee, c only in the data and b only in the run; "
        f"start a new run from its weights: --pretrained {run}/model --run FOLDER\n"
    )
    assert fit(config, images, tmp_path / "new", 1, f"--pretrained={run}/model") == 0
    after = read_record(tmp_path / "new" / "model")
    assert not list_digests(before, False) & list_digests(after, True)
    assert "10 added, 30 renamed" in capsys.readouterr().out


def test_resumed_pairs_keep_their_vocabulary_and_their_sides(images: Path, tmp_path: Path) -> None:
    encoder: dict[str, Any] = {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 16, "depth": 1, "heads": 2}}
    image = {"patch_size": [4, 4], "outputs": 8, "encoder": encoder}
    pool = {"class_path": "vitkit.nn.EndOfText", "init_args": {"end": 0}}
    causal = {**encoder, "init_args": {**encoder["init_args"], "causal": True}}
    text = {"context": 24, "outputs": 8, "encoder": causal, "vocabulary": 300, "pool": pool}
    towers = {
        "image": {"class_path": "vitkit.models.ViT", "init_args": image},
        "text": {"class_path": "vitkit.models.TextTower", "init_args": text},
    }
    task = {"lr": 1e-3, "varied": 0, "model": {"class_path": "vitkit.models.CLIP", "init_args": towers}}
    preprocess = {"size": [8, 8], "mean": [0.5], "std": [0.5]}
    data = {"preprocess": preprocess, "tokenizer": {"vocabulary": 300, "context": 24}}
    content = {
        "model": {"class_path": "vitkit.tasks.contrast.Contrast", "init_args": task},
        "data": {"class_path": "vitkit.data.pairs.Pairs", "init_args": data},
        "trainer": {"precision": "32-true", "accelerator": "cpu", "enable_progress_bar": False},
    }
    config, run = tmp_path / "pairs.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(content))
    for path in images.glob("*/*.png"):
        path.with_suffix(".txt").write_text(f"picture {int(path.stem) // 2} of the set")
    assert fit(config, images, run, 1) == 0
    before, vocabulary = read_record(run / "model"), (run / "model" / "tokenizer.json").read_bytes()
    for suffix in (".png", ".txt"):
        (images / "a" / "00.png").with_suffix(suffix).rename((images / "b" / "zz.png").with_suffix(suffix))
    write_image(images / "a" / "0.png", 100)
    (images / "a" / "0.txt").write_text("an unheard word")
    assert fit(config, images, run, 2) == 0
    after = read_record(run / "model")
    assert not list_digests(before, False) & list_digests(after, True)
    assert not list_digests(before, True) & list_digests(after, False)
    assert (run / "model" / "tokenizer.json").read_bytes() == vocabulary
    report = evaluate(run, images, "--fold=0")
    assert (report["pictures"], report["trained_on"]) == (len(list_digests(after, True)), 0)
