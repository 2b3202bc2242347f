import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from vitkit.bundle import model_config
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import save
from vitkit.commands.heads import main
from vitkit.convert.open import open_model
from vitkit.data.batches import Reading
from vitkit.data.preprocess import Preprocess, read_image
from vitkit.data.sources.open import open_source
from vitkit.interpret.examine import head_survey
from vitkit.interpret.examine.head_report import format_head_report
from vitkit.interpret.examine.head_survey import heads
from vitkit.interpret.examine.image_model import AttentionModel, open_attention_model
from vitkit.interpret.measure.statistics import statistics
from vitkit.support.errors import InputWarning

SIZE = (8, 12)  # a grid of 2 x 3
CLASSES = ("dark", "middling", "bright")
CPU = Reading(batch=4, device="cpu")
CONFIG = {
    "class_path": "vitkit.models.ViT",
    "init_args": {
        "encoder": {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 16, "depth": 1, "heads": 2}},
        "image_size": list(SIZE),
        "patch_size": [4, 4],
        "outputs": 3,
        "prefix": 2,
    },
}
DECODER = {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 8, "depth": 1, "heads": 2}}
SHARED = {name: value for name, value in CONFIG["init_args"].items() if name != "outputs"}
MAE = {"class_path": "vitkit.models.MAE", "init_args": {**SHARED, "decoder": DECODER}}
LAYER = "encoder.blocks.0.attn.f"
FILES = {"heads.json", "heads.csv", "distance.png", "entropy.png", "sink.png", "effect.png", "positions.png"}


def saved(folder: Path, config: dict, classes: tuple[str, ...]) -> Path:
    network = model_config.build_model(config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.3)
    save(folder, Bundle(network, config, Preprocess(SIZE, (0.5,) * 3, (0.25,) * 3), classes))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(tmp_path / "run" / "model", CONFIG, CLASSES)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    for level, name in enumerate(CLASSES):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for place in range(4):
            pixels = draw.integers(80 * level, 80 * level + 96, (*SIZE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{place}.png")
    return tmp_path / "pictures"


def stacked(model: AttentionModel, pictures: Path) -> torch.Tensor:
    return torch.stack([model.preprocess(read_image(str(path))) for path in sorted(pictures.rglob("*.png"))])


def test_open_model_equals_its_folder(folder: Path, pictures: Path) -> None:
    result = heads(open_model(folder), str(pictures), against=open_model(folder), reading=CPU)
    assert result.facts == heads(folder, str(pictures), against=folder, reading=CPU).facts


def test_untrained_needs_a_model_folder(folder: Path, pictures: Path) -> None:
    with pytest.raises(ValueError, match="untrained must come with a model folder"):
        heads(open_model(folder)._replace(source=""), str(pictures), against="untrained", reading=CPU)


def test_classes_are_for_clip_models_only(folder: Path, pictures: Path, clip_folder: Path) -> None:
    with pytest.raises(ValueError, match=f"for a CLIP only, got them for {folder}$"):
        heads(open_model(folder), str(pictures), classes=CLASSES, reading=CPU)
    result = heads(open_model(clip_folder), str(pictures), classes=CLASSES, ablation=False, reading=CPU)
    assert result.model.bundle.class_names == CLASSES


def test_table_csv_and_json_agree(folder: Path, pictures: Path, capsys: pytest.CaptureFixture) -> None:
    assert main([str(folder), str(pictures), "--device", "cpu", "--against", "untrained"]) == 0
    printed = capsys.readouterr().out
    out = folder.parent / "heads" / pictures.name
    assert {path.name for path in out.iterdir()} == FILES
    assert printed.startswith(f"12 of 12 images of {pictures}\neffects are on the labelled class\nthe output of")
    result = json.loads((out / "heads.json").read_text())
    model = open_attention_model(folder)
    images = stacked(model, pictures)
    expected = statistics(model.model, model.run, [images], model.layers, model.layout)
    for name, summaries in expected.measures.items():
        assert result["statistics"]["measures"][name][0]["mean"] == pytest.approx(summaries[0].mean.tolist(), abs=1e-6)
    rows = list(csv.DictReader((out / "heads.csv").read_text().splitlines()))
    assert [(row["layer"], row["head"]) for row in rows] == [(LAYER, "0"), (LAYER, "1")]
    assert float(rows[1]["entropy"]) == pytest.approx(expected.measures["entropy"][0].mean[1].item(), rel=1e-5)
    line = next(line for line in printed.splitlines() if line.startswith(LAYER))
    assert line.split()[2:4] == [f"{expected.measures[name][0].mean[0]:.3f}" for name in ("distance", "entropy")]
    removed = result["ablation"]["removed"]["probability"][0]
    assert line.split()[-5] == f"{removed['mean'][0]:+.4f}"
    assert "as many random columns ablated:" in printed
    columns = next(line for line in printed.splitlines() if line.startswith("layer")).split()[2:]
    legend = {line.partition(":")[0] for line in printed.splitlines()}
    assert {*columns[: columns.index("change")], "random map"} <= legend
    assert f"compared with {folder}, untrained" in printed
    assert all((out / name).read_bytes().startswith(b"\x89PNG") for name in FILES if name.endswith(".png"))


def test_ablation_equals_zeroed_columns(folder: Path, pictures: Path) -> None:
    model = open_attention_model(folder)
    result = heads(model, str(pictures), reading=CPU).ablation
    source = open_source(str(pictures))
    labels = torch.tensor([CLASSES.index(source.class_names[label]) for label in source.labels])
    images = torch.stack([model.preprocess(source.read_image(place)) for place in range(len(source))])
    with torch.no_grad():
        before = model.run(images).softmax(1)
        out = model.model.get_submodule(LAYER).out
        out.weight[:, 8:] = 0
        after = model.run(images).softmax(1)
    expected = (after - before)[torch.arange(12), labels].double().mean()
    assert_close(result.removed["probability"][0].mean[1], expected, rtol=1e-4, atol=1e-6)


def test_mean_ablation_differs_from_zero_ablation(folder: Path, pictures: Path) -> None:
    result = [heads(folder, str(pictures), mean=mean, reading=CPU) for mean in (False, True)]
    effects = [one.ablation.removed["logit"][0].mean for one in result]
    assert (effects[0] - effects[1]).abs().max() > 1e-3
    assert [one.facts["removed_is"] for one in result] == ["zero", "mean"]
    assert "replaced by its mean over these images" in format_head_report(result[1])


def test_unknown_labels_fall_back_to_the_predicted_class(folder: Path, pictures: Path) -> None:
    known = heads(folder, str(pictures), reading=CPU)
    assert "accuracy" in known.ablation.removed
    (pictures / "dark").rename(pictures / "gloomy")
    foreign = heads(folder, str(pictures), reading=CPU)
    assert "accuracy" not in foreign.ablation.removed
    assert foreign.facts["labels"].startswith("the model does not know 1 class of the source, such as gloomy")


def test_unlabelled_pictures_are_accepted(
    folder: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "out"
    arguments = [str(folder), str(pictures / "dark"), "--out", str(out), "--device", "cpu"]
    with pytest.warns(InputWarning, match="dark has no class folders"):
        assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("4 of 4 images")
    assert "the images have no labels: effects are on the predicted class" in printed
    assert {path.name for path in out.iterdir()} == FILES


def test_model_without_classes_reports_cosine_distances(tmp_path: Path, pictures: Path) -> None:
    result = heads(saved(tmp_path / "mae", MAE, ()), str(pictures), reading=CPU)
    assert list(result.ablation.removed) == ["turn"]
    assert result.statistics.layers == (LAYER,)  # its decoder does not run
    assert (result.ablation.removed["turn"][0].mean > 0).all()


def test_clip_uses_class_names(clip_folder: Path, pictures: Path) -> None:
    result = heads(clip_folder, str(pictures), classes=CLASSES, reading=CPU)
    assert result.facts["labels"] == "effects are on the labelled class"
    assert "probability" in result.ablation.removed


def test_samples_are_reproducible(folder: Path, pictures: Path) -> None:
    result = [heads(folder, str(pictures), pictures=6, ablation=False, reading=CPU) for _ in range(2)]
    assert result[0].statistics.count == 6
    assert result[0].to_dict() == result[1].to_dict()
    held_out = heads(folder, str(pictures), fold=1, folds=2, ablation=False, reading=CPU)
    assert held_out.statistics.count == 6
    assert held_out.facts["drawn_from"] == 6


def test_unreadable_picture_is_reported_once(folder: Path, pictures: Path, capsys: pytest.CaptureFixture) -> None:
    (pictures / "dark" / "4.png").write_bytes(b"no picture")
    assert main([str(folder), str(pictures), "--device", "cpu", "--no-ablation"]) == 1
    shown = capsys.readouterr()
    assert shown.out.startswith("12 of 13 images")
    assert shown.err.count("4.png") == 1


def test_one_picture_has_no_interval(folder: Path, pictures: Path, capsys: pytest.CaptureFixture) -> None:
    assert main([str(folder), str(pictures), "--device", "cpu", "--pictures", "1"]) == 0
    printed = capsys.readouterr().out
    assert "(of one image)" in printed and "nan" not in printed


def test_closed_stdout_is_no_error(folder: Path, pictures: Path) -> None:
    command = [sys.executable, "-c", "import sys; from vitkit.cli import main; sys.exit(main())", "heads"]
    command += [str(folder), str(pictures), "--device", "cpu", "--no-ablation"]
    reader, writer = os.pipe()
    os.close(reader)
    run = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (run.returncode, run.stderr) == (0, "")

    with pytest.raises(ValueError, match="mean must be left out without ablation"):
        main([str(folder), str(pictures), "--no-ablation", "--how", "mean", "--overwrite"])


def test_a_clip_is_compared_with_its_image_tower_before_training(clip_folder: Path, pictures: Path) -> None:
    result = heads(clip_folder, str(pictures), ablation=False, against=head_survey.UNTRAINED, reading=CPU)
    assert result.comparison is not None and result.comparison.layers == open_attention_model(clip_folder).layers
    assert result.comparison.most


def test_models_of_unlike_heads_are_refused_before_any_picture_is_read(
    folder: Path, clip_folder: Path, pictures: Path
) -> None:
    for path in pictures.rglob("*.png"):
        path.write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"must have equal layers and heads, got heads of \[2, 2\] and \[2\]"):
        heads(folder, str(pictures), against=clip_folder, reading=CPU)


def test_report_is_replaced_on_request_alone_and_other_files_stay(folder: Path, pictures: Path, tmp_path: Path) -> None:
    (out := tmp_path / "out").mkdir()
    (out / "heads.json").write_text('{"source": "earlier"}')
    for name in ("effect.png", "mine.txt"):
        (out / name).touch()
    arguments = [str(folder), str(pictures), "--device", "cpu", "--out", str(out), "--no-ablation"]
    with pytest.raises(ValueError, match="add --overwrite"):
        main(arguments)
    main([*arguments, "--overwrite"])
    assert {path.name for path in out.iterdir()} == FILES - {"effect.png"} | {"mine.txt"}


def test_invalid_options_raise_one_line(folder: Path, pictures: Path) -> None:
    with pytest.raises(ValueError, match="pictures must be at least 1"):
        heads(folder, str(pictures), pictures=0)
    with pytest.raises(ValueError, match="folds must come with the fold"):
        main([str(folder), str(pictures), "--folds", "3"])
    with pytest.raises(ValueError, match="folds=0"):  # not the default
        main([str(folder), str(pictures), "--fold", "0", "--folds", "0"])
    with pytest.raises(ValueError, match="fold must come with labelled pictures"):
        main([str(folder), str(pictures), "--unlabelled", "--fold", "0"])
    with pytest.raises(ValueError, match="against=untrained must come with a model folder"):
        model = open_attention_model(folder)
        other = model._replace(bundle=model.bundle._replace(source="timm:other"))
        heads(other, str(pictures), against=head_survey.UNTRAINED)
