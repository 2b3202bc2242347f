"""Model folders, checkpoints and a database of the version before the reorganisation: see write_before.py."""

import csv
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from normal import normalise
from PIL import Image
from runs import OVERRIDES, classify, contrast_words, reconstruct
from safetensors.torch import load_file
from torch import Tensor

import vitkit
from vitkit.cli import main

Recorded = Callable[..., None]

HERE = Path(__file__).parent
TRAINED = ("classify/model", "reconstruct/model", "contrast/model")
SOURCES = sorted(path.name for path in (HERE / "before" / "sources").iterdir())
TEXTS = ["a picture of two", "red and blue stripes"]


def numbers(tensor: Tensor) -> list[float]:
    return tensor.flatten().tolist()


def outputs(folder: Path) -> Iterator[tuple[str, list[float]]]:
    """Yield what the model of a folder makes of a picture, and of two texts if it reads any."""
    opened = vitkit.open_model(folder)
    preprocess, model = opened.preprocess, opened.model
    assert preprocess is not None
    assert not model.training
    with Image.open(HERE / "before" / "pictures" / "a" / "10.png") as picture:
        images = preprocess(picture)[None]
    yield "pixels", numbers(images[0, :, ::5, ::5])
    match model:
        case vitkit.ViT():
            yield "features", numbers(model.features(images)[:, -1])
            yield "outputs", numbers(model(images))
        case vitkit.MAE():
            grid = model.embed.grid(*preprocess.size)
            answer = model(images, torch.linspace(0, 99, grid[0] * grid[1]).sin().view(1, *grid))
            yield "features", numbers(model.features(images)[:, -1])
            yield "hidden", numbers(answer.hidden)
            yield "hidden pixels", numbers(answer.pixels[:, 0])
        case vitkit.CLIP():
            assert opened.tokenizer is not None
            ids = opened.tokenizer(TEXTS)
            pair = model(images, ids)
            yield "ids", numbers(ids)
            yield "image", numbers(pair.image)
            yield "texts", numbers(pair.text)
            yield "logits", numbers(pair.scale * pair.image @ pair.text.mT + pair.bias)


@pytest.mark.parametrize("name", [*TRAINED, *(f"imported/{name}" for name in SOURCES)])
def test_model_folder_opens_and_answers_the_same(name: str, before: Path, recorded: Recorded) -> None:
    with torch.no_grad():
        recorded(f"outputs_{name.replace('/', '_')}", dict(outputs(before / name)), tolerance=1e-5)


@pytest.mark.parametrize("name", SOURCES)
def test_import_writes_the_same_folder(name: str, before: Path, tmp_path: Path) -> None:
    """Its texts word by word but for class paths, its tensors bit by bit."""
    folder, ours = before / "imported" / name, tmp_path / "ours"
    assert main(["import", str(before / "sources" / name), f"--out={ours}", *OVERRIDES.get(name, ())]) == 0
    assert sorted(path.name for path in ours.iterdir()) == sorted(path.name for path in folder.iterdir())
    for path in folder.iterdir():
        if path.suffix != ".safetensors":
            assert normalise((ours / path.name).read_text("utf-8")) == normalise(path.read_text("utf-8"))
    state, tensors = (load_file(path / "model.safetensors") for path in (folder, ours))
    assert [*tensors] == [*state]
    torch.testing.assert_close(tensors, state, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("kind", "learn"), [("classify", classify), ("reconstruct", reconstruct), ("contrast", contrast_words)]
)
def test_run_goes_on_from_its_checkpoint(
    kind: str,
    learn: Callable[[str, int], list[str]],
    before: Path,
    tmp_path: Path,
    recorded: Recorded,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It learns the second of two epochs, the numbers of which are recorded."""
    shutil.copytree(before / kind, tmp_path / kind)
    shutil.copy(before / "tokenizer.json", tmp_path)
    monkeypatch.chdir(tmp_path)
    with (tmp_path / kind / "metrics.csv").open(newline="") as file:
        first = [*csv.DictReader(file)]
    assert main(learn(kind, 2)) == 0
    report = json.loads((tmp_path / kind / "report.json").read_text("utf-8"))
    assert (report["epochs"], report["steps"]) == (2, 2 * report["steps_since_resumed"])
    with (tmp_path / kind / "metrics.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [{name: cell for name, cell in row.items() if cell} for row in rows[: len(first)]] == [
        {name: cell for name, cell in row.items() if cell} for row in first
    ]
    further = [{name: float(cell) for name, cell in row.items() if cell} for row in rows[len(first) :]]
    recorded(f"resumed_{kind}", further, tolerance=1e-4)


def test_run_does_not_go_on_with_another_config(
    before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one value that differs is named alone: class paths of the version before are not differences."""
    shutil.copytree(before / "classify", tmp_path / "classify")
    assert main([*classify(tmp_path / "classify", 2), "--model.lr=0.5"]) == 1
    said = "run must go on as it began, got model.lr (was 0.003, now 0.5); choose another --run"
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"error: {said}")


@pytest.fixture
def database(before: Path, tmp_path: Path) -> Path:
    shutil.copytree(before / "pictures.db", tmp_path / "pictures.db")
    return tmp_path / "pictures.db"


def search(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert main(["search", *arguments, "--format=json", "--device=cpu"]) == 0
    return json.loads(capsys.readouterr().out)


def test_database_gives_the_same_results(
    database: Path, before: Path, recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    here = (str(database), f"--model={before / 'contrast' / 'model'}")
    picture = str(before / "pictures" / "b" / "05.png")
    queries: dict[str, tuple[str, ...]] = {
        "text": ("a picture of three",),
        "picture": (picture, "--top-k=3"),
        "captions": (picture, "--captions"),
        "where": ("red stripes", "--where=width > 20 and path like '%a/%'"),
        "near-duplicates": ("--near-duplicates", "--near=0.99"),
    }
    results = {name: search(capsys, *here, *query) for name, query in queries.items()}
    recorded("search", results, tolerance=1e-3)  # vectors of 16 bits
    assert main(["search", *here, "--unreadable"]) == 0
    assert (
        capsys.readouterr().out
        == "/mnt/before/pictures/broken.png: UnidentifiedImageError: cannot identify image file\n"
    )


def test_database_does_not_embed_the_same_pictures_again(database: Path, before: Path, tmp_path: Path) -> None:
    """The pictures lie elsewhere now, and are known by their content; then also by their names and times."""
    shutil.copytree(before / "pictures", tmp_path / "pictures")
    collection = vitkit.Collection(database, before / "contrast" / "model", device="cpu")
    assert len(collection) == 12
    done = collection.index(tmp_path / "pictures")
    assert (done.encoded, done.captions, done.reused, done.unchanged) == (0, 0, 12, 0)
    assert len(collection) == 24
    assert collection.forget("/mnt/before/pictures") == 13
    done = collection.index(tmp_path / "pictures")
    assert (done.encoded, done.captions, done.reused, done.unchanged) == (0, 0, 0, 12)
    assert len(collection) == 12
    scores = [round(match.score, 3) for match in collection.search("a picture of three")]
    assert len(scores) == 10


def test_database_refuses_another_model(database: Path, before: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = before / "imported" / "hf_clip"
    assert main(["search", str(database), "red", f"--model={model}", "--device=cpu"]) == 1
    assert "model must be the one that" in capsys.readouterr().err
