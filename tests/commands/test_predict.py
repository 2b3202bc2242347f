import json
import re
import sys
import tarfile
from collections.abc import Iterator, Sequence
from io import BytesIO, TextIOWrapper
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms
from torch import nn

from vitkit.bundle import model_config
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import save
from vitkit.cli import main
from vitkit.convert.open import open_model
from vitkit.data.preprocess import PictureError, Preprocess, read_image
from vitkit.inference.prediction import Prediction, predict
from vitkit.support.errors import InputWarning

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
CLASSES = ("dark", "middling", "bright")
CONFIG = {
    "class_path": "vitkit.models.ViT",
    "init_args": {
        "encoder": {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 16, "depth": 1, "heads": 2}},
        "image_size": [8, 12],
        "patch_size": [4, 4],
        "channels": 1,
        "outputs": 3,
    },
}
PREPROCESS = Preprocess((8, 12), (0.5,), (0.25,))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    network = model_config.build_model(CONFIG)
    nn.init.normal_(network.get_parameter("head.weight"))
    save(tmp_path / "model", Bundle(network, CONFIG, PREPROCESS, CLASSES))
    return tmp_path / "model"


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    """Return five grey and coloured pictures of several sizes, one of them in a subfolder."""
    folder = tmp_path / "pictures"
    (folder / "more").mkdir(parents=True)
    paths = [folder / name for name in ("a.png", "b.jpg", "c.png", "d.png", "more/e.png")]
    for index, path in enumerate(paths):
        pixels = torch.randint(256, (10 + index, 14, 3), dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).convert("RGB" if index % 2 else "L").save(path)
    return paths


def run(arguments: Sequence[object], capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str], list[str]]:
    status = main(["predict", *map(str, arguments)])
    out, err = capsys.readouterr()
    return status, out.splitlines(), err.splitlines()


@pytest.mark.parametrize("batch", [1, 2, 32])
def test_predictions_are_the_softmax_of_the_model_in_the_order_of_the_paths(
    model: Path, pictures: list[Path], batch: int
) -> None:
    network = open_model(model).model
    predictions = list(predict(model, pictures, top=3, batch=batch, device="cpu"))
    assert [prediction.path for prediction in predictions] == pictures
    for path, labels, probabilities in predictions:
        expected = network(PREPROCESS(read_image(path))[None]).softmax(dim=1)[0]
        assert sorted(labels) == sorted(CLASSES)
        torch.testing.assert_close(torch.tensor(probabilities), expected.sort(descending=True).values)
        torch.testing.assert_close(torch.tensor(probabilities), expected[[CLASSES.index(label) for label in labels]])


def test_predict_takes_an_open_bundle(model: Path, pictures: list[Path]) -> None:
    bundle = open_model(model)
    assert [*predict(bundle, pictures, device="cpu")] == [*predict(model, pictures, device="cpu")]
    names = tuple(name.upper() for name in CLASSES)
    renamed = bundle._replace(class_names=names)
    assert {name for prediction in predict(renamed, pictures, device="cpu") for name in prediction.labels} <= {*names}
    with pytest.raises(ValueError, match="model must have classes, got none"):
        [*predict(bundle._replace(class_names=()), pictures, device="cpu")]


def test_folder_gives_an_aligned_line_for_each_of_its_pictures(
    model: Path, pictures: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    status, lines, errors = run([model, pictures[0].parent, "--top", 2], capsys)
    assert (status, errors) == (0, [])
    assert [line.split()[0] for line in lines] == [str(path) for path in pictures]
    assert {len(line.split()) for line in lines} == {1 + 2 * 2}
    width = len(str(pictures[-1]))
    assert all(line[width : width + 2] == "  " and line[width + 2] != " " for line in lines)


@pytest.mark.parametrize("form", ["text", "csv", "jsonl"])
def test_class_names_of_a_folder_reach_the_terminal_escaped(
    model: Path, pictures: list[Path], form: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """ESC and its relatives could move the cursor, or set the terminal's title."""
    names = ("\x1b[2J\x1b]0;title\x07", "\x9b1A\x7fcat", "a\rb")
    escaped = (r"\u001b[2J\u001b]0;title\u0007", r"\u009b1A\u007fcat", r"a\u000db")
    save(tmp_path / "foreign", open_model(model)._replace(class_names=names))
    attend = ["attend", str(tmp_path / "foreign"), str(pictures[0]), "--out", str(tmp_path / "maps")]
    predict_command = ["predict", str(tmp_path / "foreign"), str(pictures[0]), "--top", "3", "--format", form]
    for command in (predict_command, attend) if form == "text" else (predict_command,):
        assert main(command) == 0
        screen = capsys.readouterr().out
        assert not CONTROL.search(screen)
        if form == "jsonl":
            assert sorted(json.loads(screen)["labels"]) == sorted(escaped)
        else:
            assert all(name in screen for name in escaped)
    out = tmp_path / "out.csv"
    assert main([*predict_command[:-2], "--out", str(out)]) == 0
    assert all(name in out.read_bytes().decode() for name in escaped)


def test_class_names_of_a_folder_are_escaped_in_errors(
    model: Path, pictures: list[Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    save(tmp_path / "foreign", open_model(model)._replace(class_names=("\x1b[2J", "cat", "dog")))
    command = ["attend", tmp_path / "foreign", pictures[0], "--out", tmp_path / "maps", "--map", "relevance"]
    assert main([*map(str, command), "--class", "horse"]) == 1
    error = capsys.readouterr().err
    assert r"\u001b[2J, cat, dog" in error and not CONTROL.search(error)


def test_unreadable_pictures_are_listed_and_the_others_predicted(
    model: Path, pictures: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    broken, absent = pictures[1], pictures[0].with_name("absent.png")
    broken.write_bytes(broken.read_bytes()[:200])
    status, lines, errors = run([model, pictures[0], broken, absent, pictures[2]], capsys)
    assert status == 1
    assert [line.split()[0] for line in lines] == [str(pictures[0]), str(pictures[2])]
    assert [str(broken) in errors[0], str(absent) in errors[1]] == [True, True]
    assert errors[2:] == ["error: 2 of 4 pictures could not be read"]


def test_predict_raises_for_an_unreadable_picture(model: Path, tmp_path: Path) -> None:
    with pytest.raises(PictureError, match="absent.png"):
        list(predict(model, [tmp_path / "absent.png"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--top", "0"], "top and batch must be at least 1, got top=0"),
        (["--device", "abacus"], "device must be one that this machine has, got device=abacus"),
    ],
)
def test_invalid_option_is_a_one_line_error(
    model: Path, pictures: list[Path], capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    status, lines, errors = run([model, pictures[0], *options], capsys)
    assert (status, lines, len(errors)) == (1, [], 1)
    assert message in errors[0]


def test_empty_folder_and_missing_class_are_one_line_errors(
    model: Path, pictures: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert run([model, tmp_path / "empty"], capsys)[2] == [
        f"error: a folder of images must hold images, got none in {tmp_path / 'empty'}"
    ]
    (model / "classes.json").write_text('["dark", "bright"]')
    assert run([model, pictures[0]], capsys)[2] == ["error: model must give a number per class, got 3 for 2 classes"]


def test_output_is_neither_overwritten_nor_left_incomplete(
    model: Path, pictures: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.csv").write_text("mine")
    assert "out must be a new file" in run([model, pictures[0], "--out", tmp_path / "mine.csv"], capsys)[2][0]
    assert (tmp_path / "mine.csv").read_text() == "mine"
    assert "out must end in .txt, .csv, .jsonl" in run([model, pictures[0], "--out", tmp_path / "x.png"], capsys)[2][0]
    (model / "classes.json").write_text('["dark", "bright"]')  # noticed with the first batch
    assert run([model, *pictures, "--out", tmp_path / "out.csv"], capsys)[0] == 1
    assert {path.name for path in tmp_path.iterdir()} == {"mine.csv", "model", "pictures"}
    (model / "classes.json").write_text(json.dumps(CLASSES))
    written = [f"written to {tmp_path / 'out.csv'}: {len(pictures)} predictions"]
    assert run([model, *pictures, "--top", 2, "--out", tmp_path / "out.csv"], capsys) == (0, [], written)
    assert (tmp_path / "out.csv").read_text().startswith("path,label_1,probability_1,label_2,probability_2,error\n")


@pytest.mark.parametrize("suffix", ["csv", "txt"])
def test_output_without_any_prediction_is_not_written(
    suffix: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / f"answers.{suffix}"
    status, _, errors = run([model, tmp_path / "absent", "--out", out], capsys)
    assert (status, out.exists()) == (1, False)
    assert errors == [
        f"error: {out} is not written, as no image could be read: "
        f"picture must be a file that exists, got picture={tmp_path / 'absent'}"
    ]


def test_dash_reads_paths_from_standard_input(
    model: Path, pictures: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = pictures[0].with_name("snow ☃.png")
    odd.write_bytes(pictures[0].read_bytes())
    text = f"{odd}\n\n{pictures[4]}\r\n".encode()
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(text)))
    status, lines, errors = run([model, pictures[0], "-", pictures[1].parent, "--format", "jsonl"], capsys)
    assert (status, errors) == (0, [])
    assert [json.loads(line)["path"] for line in lines] == [
        str(path) for path in (pictures[0], odd, pictures[4], *pictures[:4], odd, pictures[4])
    ]


def test_predict_takes_paths_one_batch_at_a_time(model: Path, pictures: list[Path]) -> None:
    taken: list[Path] = []

    def cycle_pictures() -> Iterator[Path]:
        for path in cycle(pictures):
            taken.append(path)
            yield path

    predictions = predict(model, cycle_pictures(), batch=2, device="cpu")
    assert [next(predictions).path for _ in range(3)] == pictures[:3]
    assert len(taken) == 4


def test_predictions_do_not_depend_on_workers(model: Path, pictures: list[Path]) -> None:
    paths = [*pictures, pictures[0].with_name("absent.png"), *pictures]
    runs: list[list[Prediction]] = []
    errors: list[PictureError] = []
    for workers in (0, 2):
        predictions = predict(model, paths, batch=2, workers=workers, device="cpu", unreadable=errors.append)
        runs.append(list(predictions))
    assert runs[0] == runs[1]
    assert len(errors) == 2 and str(errors[0]) == str(errors[1])


def test_multilabel_predictions_are_those_above_a_half(
    model: Path, pictures: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    network = open_model(model).model
    expected = [
        {name for name, value in zip(CLASSES, network(PREPROCESS(read_image(path))[None])[0], strict=True) if value > 0}
        for path in pictures
    ]
    assert any(len(labels) != 1 for labels in expected)
    names = json.loads((model / "classes.json").read_text("utf-8"))
    (model / "classes.json").write_text(json.dumps({"several": names}), "utf-8")
    predictions = list(predict(model, pictures, device="cpu"))
    assert [set(prediction.labels) for prediction in predictions] == expected
    assert all([*item.probabilities] == sorted(item.probabilities, reverse=True) for item in predictions)
    lines = run([model, *pictures, "--format", "jsonl"], capsys)[1]
    assert [set(json.loads(line)["labels"]) for line in lines] == expected


def write_unusual_files(folder: Path) -> dict[str, bool]:
    """Write damaged and unusual files; return whether each can be read."""
    folder.mkdir()
    colours = Image.effect_noise((40, 30), 80).convert("RGB")
    readable = {
        "cmyk.jpg": colours.convert("CMYK"),
        "palette.gif": colours.quantize(16),
        "bits.png": colours.convert("1"),
        "alpha.png": colours.convert("RGBA"),
        "grey_alpha.png": colours.convert("LA"),
        "deep.png": Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(30, 40) * 50),
        "tiny.png": colours.resize((1, 1)),
        "long.png": colours.resize((900, 1)),
        "lab.tif": ImageCms.applyTransform(
            colours,
            ImageCms.buildTransform(ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), "RGB", "LAB"),
        ),
    }
    for name, image in readable.items():
        image.save(folder / name)
    whole = (folder / "alpha.png").read_bytes()
    broken = {
        "cut.png": whole[: len(whole) // 2],
        "cut.jpg": (folder / "cmyk.jpg").read_bytes()[:300],
        "empty.png": b"",
        "text.jpg": b"not a picture\n" * 20,
        "checksum.png": whole[:60] + bytes([whole[60] ^ 255]) + whole[61:],
        # A header of 100,000 x 100,000 pixels.
        "bomb.png": whole[:16] + (100_000).to_bytes(4) * 2 + whole[24:],
    }
    for name, content in broken.items():
        (folder / name).write_bytes(content)
    (folder / "folder.png").mkdir()
    return dict.fromkeys(readable, True) | dict.fromkeys([*broken, "folder.png", "absent.png"], False)


@pytest.mark.parametrize("batch", [1, 4])
def test_every_file_gets_a_prediction_or_an_error_with_its_name(model: Path, tmp_path: Path, batch: int) -> None:
    expected = write_unusual_files(tmp_path / "odd")
    errors: list[PictureError] = []
    paths = [tmp_path / "odd" / name for name in expected]
    with pytest.warns(InputWarning, match="2 of 17, .*tiny.png, .*long.png$"):
        predictions = list(predict(model, paths, batch=batch, device="cpu", unreadable=errors.append))
    assert [prediction.path for prediction in predictions] == [path for path in paths if expected[path.name]]
    assert len(errors) == len(paths) - len(predictions)
    for path, error in zip((path for path in paths if not expected[path.name]), errors, strict=True):
        assert f"picture={path}" in str(error) and "\n" not in str(error)


def test_error_for_a_model_without_classes_suggests_fine_tuning(
    pictures: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {name: value for name, value in CONFIG["init_args"].items() if name != "outputs"}
    mae = {"class_path": "vitkit.models.MAE", "init_args": {**arguments, "decoder": arguments["encoder"]}}
    vit = {"class_path": "vitkit.models.ViT", "init_args": {**arguments, "outputs": 0}}
    for name, config in {"mae": mae, "vit": vit}.items():
        save(tmp_path / name, Bundle(model_config.build_model(config), config, PREPROCESS))
        for out in ([], ["--format=csv"]):
            assert run([tmp_path / name, pictures[0], *out], capsys) == (
                1,
                [],
                [
                    f"error: model must have classes, got none in {tmp_path / name}; fine-tune it first: vitkit fit "
                    f"--config configs/finetune_folder.yaml --pretrained {tmp_path / name} --data.train PICTURES"
                ],
            )


def test_tables_shards_and_built_in_sets_are_predicted(
    model: Path, pictures: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Predict the same pictures as files, in a table of captions and in shards, and a built-in set."""
    expected = [line.split()[1:] for line in run([model, *pictures], capsys)[1]]
    rows = "".join(f"{path},a caption\n{path},another\n" for path in pictures)
    (tmp_path / "pairs.csv").write_text(f"file_name,text\n{rows}")
    with tarfile.open(tmp_path / "pictures" / "0.tar", "w") as tar:
        for number, path in enumerate(pictures):
            tar.add(path, f"{number}.png")
    repeated = [f"left out: {len(pictures)} rows of pictures listed already, such as line 3"]
    for source, omitted in ((tmp_path / "pairs.csv", repeated), (tmp_path / "pictures" / "0.tar", [])):
        status, lines, errors = run([model, source], capsys)
        assert (status, errors, [line.split()[1:] for line in lines]) == (0, omitted, expected)
    status, lines, _ = run([model, pictures[0], tmp_path / "pairs.csv", pictures[1]], capsys)
    assert status == 0
    assert [line.split()[1:] for line in lines] == [expected[0], *expected, expected[1]]
    assert len(run([model, "digits", "--format", "jsonl"], capsys)[1]) == 1797


def test_other_files_of_a_folder_are_noted(
    model: Path, pictures: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pictures[0].parent
    (folder / "notes.md").write_text("x")
    status, lines, errors = run([model, folder], capsys)
    assert (status, len(lines)) == (0, len(pictures))
    assert errors == [f"left out: 1 file other than images, such as {folder}/notes.md"]
    Image.new("L", (8, 8)).save(folder / "z.gif", save_all=True, append_images=[Image.new("L", (8, 8), 9)])
    name = pictures[0].name
    status, lines, errors = run([model, folder, "--exclude", "*.md", "--exclude", name], capsys)
    assert (status, len(lines)) == (0, len(pictures))
    assert errors == [
        f"left out: 2 files and folders matched by exclude, such as {pictures[0]}",
        f"left out: 1 file with several pages or frames, of which the first is read, such as {folder}/z.gif",
    ]
