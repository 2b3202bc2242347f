import csv
import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from vitkit.bundle import weights
from vitkit.bundle.bundle import Bundle
from vitkit.cli import main
from vitkit.convert.open import open_pair_model
from vitkit.data.annotations.captions import Captioned, attach_captions, split_groups
from vitkit.data.batches import Reading
from vitkit.data.sources.source import Files
from vitkit.evaluation.caption_retrieval import evaluate_pairs
from vitkit.evaluation.recall import pair_captions, retrieve
from vitkit.evaluation.retrieval_sheets import describe_caption, spread_indices, wrap_text

CAPTIONS = (("a red heart", "heart"), ("cat", "a cat"), ("Heart ", "dog"), ("boat",))
CPU = Reading(batch=3, device="cpu")


@pytest.fixture
def pictures(tmp_path: Path) -> list[str]:
    paths = [tmp_path / "pictures" / f"{index}.png" for index in range(len(CAPTIONS))]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(torch.randint(256, (20, 28, 3), dtype=torch.uint8).numpy()).save(path)
    return [str(path) for path in paths]


@pytest.fixture
def source(pictures: list[str]) -> Captioned:
    return attach_captions(Files(pictures, (), [-1] * len(pictures)), CAPTIONS)


@pytest.fixture
def table(pictures: list[str]) -> Path:
    """The folder of a table beside the images, a row for each caption."""
    path = Path(pictures[0]).with_name("metadata.csv")
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file_name", "text"])
        writer.writerows(
            (Path(name).name, text) for name, texts in zip(pictures, CAPTIONS, strict=True) for text in texts
        )
    return path.parent


@pytest.fixture
def bundle(clip_folder: Path) -> Bundle:
    return open_pair_model(clip_folder)


def run(*arguments: object) -> int:
    return main(["evaluate", *map(str, arguments), "--device", "cpu"])


def test_equal_captions_are_one_text_of_all_their_images() -> None:
    texts, pairs = pair_captions(CAPTIONS, own_only=False)
    assert texts == ("a red heart", "heart", "cat", "a cat", "dog", "boat")
    assert pairs.tolist() == [[0, 0], [0, 1], [1, 2], [1, 3], [2, 1], [2, 4], [3, 5]]


def test_own_only_keeps_equal_captions_apart() -> None:
    texts, pairs = pair_captions(CAPTIONS, own_only=True)
    assert texts == ("a red heart", "heart", "cat", "a cat", "Heart ", "dog", "boat")
    assert pairs.tolist() == [[0, 0], [0, 1], [1, 2], [1, 3], [2, 4], [2, 5], [3, 6]]


@pytest.mark.parametrize("own_only", [False, True])
def test_recall_equals_that_of_sorted_scores(bundle: Bundle, source: Captioned, own_only: bool) -> None:
    texts, pairs = pair_captions(CAPTIONS, own_only)
    evaluation = evaluate_pairs(bundle, source, own_only=own_only, reading=CPU)
    with torch.inference_mode():
        images = bundle.model.encode_image(
            torch.stack([bundle.preprocess(source.pictures.read_image(i)) for i in range(4)])
        )
        features = torch.cat([bundle.model.encode_text(bundle.tokenizer([text])) for text in texts])
    assert_close(evaluation.retrieval.images, images)
    assert_close(evaluation.retrieval.texts, features)
    scores, positives = (images[:, None] * features).sum(2), torch.zeros(4, len(texts), dtype=torch.bool)
    positives[tuple(pairs.T)] = True
    for key, table, matches in (("image_to_text", scores, positives), ("text_to_image", scores.T, positives.T)):
        # Equal texts have equal scores: the first of them is in front.
        order = table.argsort(dim=1, descending=True, stable=True)
        ranks = matches.gather(1, order).int().argmax(1) + 1
        numbers = evaluation.numbers
        assert numbers[f"{key}_R@1"] == pytest.approx((ranks == 1).float().mean().item())
        assert numbers[f"{key}_R@5"] == pytest.approx((ranks <= 5).float().mean().item())
        assert numbers[f"{key}_median_rank"] == ranks.double().quantile(0.5).item()
    chance = sum(2 / len(texts) for _ in range(3)) / 4 + 1 / len(texts) / 4
    assert evaluation.numbers["chance"]["image_to_text_R@1"] == pytest.approx(chance)


def test_report_and_tables_agree(clip_folder: Path, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(clip_folder, table) == 0
    folder = clip_folder.parent / "evaluation" / table.name
    expected = {"report.json", "captions.csv", "pictures.csv", "captions.png", "pictures.png"}
    assert {path.name for path in folder.iterdir()} == expected
    report = json.loads((folder / "report.json").read_text("utf-8"))
    assert (report["pictures"], report["captions"], report["cut"], report["unreadable"]) == (4, 6, 0, [])
    for name, key in (("pictures.csv", "image_to_text"), ("captions.csv", "text_to_image")):
        with (folder / name).open(newline="") as file:
            ranks = [int(row["rank"]) for row in csv.DictReader(file)]
        assert report[f"{key}_R@1"] == pytest.approx(ranks.count(1) / len(ranks))
    out = capsys.readouterr().out
    assert f"4 pictures of {table} with 6 different captions" in out
    assert f"{report['text_to_image_R@1']:.2%}" in out and "median rank" in out
    shares = [report[f"{key}_R@{k}"] for key in ("image_to_text", "text_to_image") for k in (1, 5, 10)]
    assert report["mean_recall"] == pytest.approx(sum(shares) / 6)
    with Image.open(folder / "captions.png") as sheet:
        assert sheet.size == (5 * 136 + 8, 6 * 172 + 8)  # for each caption its image and four retrieved ones
    assert run(clip_folder, table, "--own-only", "--overwrite") == 0
    assert "7 captions, each of its own picture" in capsys.readouterr().out


def test_captions_of_unreadable_images_are_dropped(bundle: Bundle, source: Captioned, pictures: list[str]) -> None:
    Path(pictures[1]).write_bytes(b"")
    evaluation = evaluate_pairs(bundle, source, reading=CPU)
    assert evaluation.retrieval.indices == [0, 2, 3]
    assert evaluation.retrieval.captions == ("a red heart", "heart", "dog", "boat")
    assert "1.png" in evaluation.numbers["unreadable"][0]
    for path in pictures:
        Path(path).write_bytes(b"")
    with pytest.raises(ValueError, match="source must hold pictures that can be read, got none"):
        evaluate_pairs(bundle, source, reading=CPU)


def test_fold_evaluates_the_held_out_part(bundle: Bundle, source: Captioned) -> None:
    evaluation = evaluate_pairs(bundle, source, fold=1, folds=2, reading=CPU)
    assert evaluation.retrieval.indices == split_groups(source.groups, 2, 1)[1]
    assert 0 < len(evaluation.retrieval.indices) < 4


def test_captions_that_do_not_fit_are_counted_and_reported(
    bundle: Bundle, clip_folder: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (table / "metadata.csv").open("a") as file:
        file.write("3.png,a boat that sails on the sea while the sun is going down\r\n")
    assert run(clip_folder, table) == 0
    out, err = capsys.readouterr()
    assert err == "note: 1 of 7 captions do not fit into 12 ids; their ends are cut off\n"
    assert run(clip_folder, table, "--overflow", "truncate", "--overwrite") == 0
    assert capsys.readouterr() == (out, "")
    assert run(clip_folder, table, "--overflow", "error", "--overwrite") == 1
    assert "texts must fit, got 1 of 7 texts do not fit into 12 ids" in capsys.readouterr().err
    with pytest.warns(UserWarning, match="1 of 7 texts do not fit"):
        evaluate_pairs(bundle, str(table), reading=CPU)


def test_class_labels_are_referred_to_zero_shot(
    clip_folder: Path, pictures: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(pictures[0]).parent
    for name in ("a", "b"):
        (folder / name).mkdir()
        Path(pictures[0 if name == "a" else 1]).rename(folder / name / "x.png")
    assert run(clip_folder, folder) == 1
    assert f"with class labels take vitkit zero-shot {clip_folder} {folder}\n" in capsys.readouterr().err


def test_probe_options_are_refused(clip_folder: Path, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(clip_folder, table, "--knn", "--probed", "3") == 1
    assert "knn and probed must be left out for a CLIP" in capsys.readouterr().err


@torch.no_grad()
def test_nan_embeddings_are_refused(clip_folder: Path, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = open_pair_model(clip_folder).model
    model.get_parameter("image.head.bias").fill_(torch.nan)
    weights.save_weights(clip_folder, model.state_dict())
    assert run(clip_folder, table) == 1
    assert "must be finite" in capsys.readouterr().err


def test_indices_are_evenly_spaced() -> None:
    assert spread_indices(3, 8) == [0, 1, 2]
    assert spread_indices(101, 5) == [0, 25, 50, 75, 100]
    assert spread_indices(1, 8) == [0]


def test_wrong_caption_is_shown_with_the_own_one() -> None:
    images, texts = torch.eye(2), torch.eye(2)
    retrieval = retrieve([0, 1], images, ("a cat", "a dog"), texts, torch.tensor([[0, 0], [1, 1]]))
    assert describe_caption(retrieval, 0, 0) == ("\N{CHECK MARK} a cat",)
    assert describe_caption(retrieval, 0, 1) == ("\N{BALLOT X} a dog", "\N{CHECK MARK} a cat")


def test_long_captions_are_wrapped_to_two_lines() -> None:
    assert wrap_text("a cat") == ("a cat",)
    first, second = wrap_text("a small grey cat that sleeps on a red chair in the sun")
    assert max(len(first), len(second)) <= 19 and second.endswith("…")
    assert wrap_text(" ") == ("",)
