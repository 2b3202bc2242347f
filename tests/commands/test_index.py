"""`vitkit index` and `vitkit search` on the command line."""

import csv
import json
import os
import shutil
import tarfile
from io import BytesIO, TextIOWrapper
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitkit.bundle import model_config
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import save
from vitkit.cli import main
from vitkit.commands.index import format_index
from vitkit.data.demo.emoji import draw_emoji
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer
from vitkit.retrieval.approximate import Index, Measurement
from vitkit.retrieval.embedder import Embedder

ENCODER = {"dim": 32, "depth": 2, "heads": 2}


def tower(kind: str, **options: object) -> dict[str, object]:
    encoder = {"class_path": "vitkit.nn.Encoder", "init_args": {**ENCODER, "causal": kind == "TextTower"}}
    return {"class_path": f"vitkit.models.{kind}", "init_args": {"encoder": encoder, "outputs": 24, **options}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clip") / "model"
    towers = {"image": tower("ViT", image_size=[16, 16], patch_size=[4, 4]), "text": tower("TextTower")}
    config = {"class_path": "vitkit.models.CLIP", "init_args": towers}
    torch.manual_seed(0)
    network = model_config.build_model(config)
    for parameter in network.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    save(folder, Bundle(network, config, Preprocess((16, 16), (0.5,) * 3, (0.25,) * 3), tokenizer=Tokenizer()))
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty emoji with captions, and a file that is no picture."""
    root = tmp_path_factory.mktemp("emoji")
    for number, emoji in zip(range(20), draw_emoji(), strict=False):
        Image.fromarray(emoji.pixels).save(root / f"{number}.png")
        (root / f"{number}.txt").write_text(" ".join(sorted(emoji.words)), "utf-8")
    (root / "broken.png").write_bytes(b"")
    for path in root.iterdir():  # files that changed a moment ago would be read again
        os.utime(path, ns=(10**18,) * 2)
    return root


@pytest.fixture(scope="module")
def db(model: Path, pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    db = tmp_path_factory.mktemp("db") / "emoji"
    assert main(["index", str(pictures), "--db", str(db), "--model", str(model), "--device", "cpu"]) == 1
    return db


def test_summary_and_unreadable_files_are_printed(db: Path, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", str(pictures), "--db", str(db), "--device", "cpu"]) == 1  # as predict
    out, error = capsys.readouterr()
    assert out.startswith("0 pictures embedded, 0 known by their content, 20 unchanged, 0 removed, in ")
    assert f"20 pictures in {db}\n" in out
    assert f"error: {pictures}/broken.png: UnidentifiedImageError" in error
    assert error.endswith("error: 1 of 21 files could not be read\n")
    assert main(["search", str(db), "--unreadable"]) == 0
    assert capsys.readouterr().out.startswith(f"{pictures}/broken.png: UnidentifiedImageError")


def test_query_that_names_a_picture_file_is_a_picture_without_text_option(
    db: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = str(pictures / "7.png")
    outs = [tmp_path / f"matches.{suffix}" for suffix in ("json", "csv", "html", "png", "txt")]
    options = [word for out in outs for word in ("--out", str(out))]
    assert main(["search", str(db), picture, "--top-k", "3", "--device", "cpu", *options]) == 0
    assert capsys.readouterr().out == ""
    matches = json.loads(outs[0].read_text("utf-8"))
    assert len(matches) == 3 and matches[0]["file"] == picture and matches[0]["score"] > 0.999
    assert matches[0]["caption"] == (pictures / "7.txt").read_text("utf-8")
    with outs[1].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == [match["file"] for match in matches]
    assert outs[2].read_text("utf-8").count("data:image/") == 3
    assert np.asarray(Image.open(outs[3])).shape[1] > 3 * 128
    assert outs[4].read_text("utf-8").count("\n") == 3
    assert main(["search", str(db), picture, "--text", "--format", "json", "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["score"] < 0.99
    with pytest.raises(SystemExit):
        main(["search", str(db), picture, "--text", "--picture"])


def test_captions_conditions_and_near_duplicates(db: Path, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["search", str(db), "--device", "cpu"]
    caption = (pictures / "3.txt").read_text("utf-8")
    assert main([*base, caption, "--captions", "--top-k", "1"]) == 0
    line = capsys.readouterr().out
    assert line.startswith(f" 1.000  {pictures}/") and line.endswith(f".png  {caption}\n")
    assert main([*base, "a face", "--where", "path like '1%' and width = 80", "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 10  # all that meet the condition
    assert main([*base, "--near-duplicates", "--near", "1.0", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == []  # no two are equal
    assert main([*base, "--near-duplicates", "--near", "0.1", "--format", "json"]) == 0
    groups = json.loads(capsys.readouterr().out)
    for group in groups:
        assert group["kind"] == "near-duplicates" and group["lowest"] == group["matches"][-1]["score"] >= 0.1
    assert main([*base, "--near-duplicates", "--near", "0.1"]) == 0
    assert capsys.readouterr().out.startswith(
        f"{len(groups[0]['matches'])} near-duplicates, lowest similarity {groups[0]['lowest']:.4f}\n 1.000  "
    )
    assert main([*base, caption, "--near-duplicates"]) == main([*base, "--near-duplicates"]) == 0
    notes = capsys.readouterr().err.splitlines()
    assert len(notes) == 2 and notes[0] == notes[1]  # the similarity that was chosen
    assert notes[0].startswith("near-duplicates have a cosine of 0.") and notes[0].endswith(", from this collection")


def test_missing_folder_is_removed_with_forget(
    model: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old").mkdir()
    for number in range(3):
        shutil.copy2(pictures / f"{number}.png", tmp_path / "old")  # with its time
    base = ["index", "--db", str(tmp_path / "db"), "--device", "cpu"]
    assert main([*base, str(tmp_path / "old"), "--model", str(model)]) == 0
    (tmp_path / "old").rename(tmp_path / "new")
    assert main([*base, str(tmp_path / "new")]) == 0
    assert f"note: 3 pictures of {tmp_path}/old, which no longer exists" in capsys.readouterr().err
    assert main([*base, str(tmp_path / "new"), "--forget", str(tmp_path / "old")]) == 0
    out, err = capsys.readouterr()
    assert (
        out.startswith("3 files removed from the database\n0 pictures embedded, 0 known by their content, 3 unchanged")
        and not err
    )
    assert main([*base, "--forget", str(tmp_path / "new")]) == 0
    assert capsys.readouterr().out == "3 files removed from the database\n"


def test_ten_notes_and_the_number_of_the_others_are_printed(
    model: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(12):
        shutil.copy2(pictures / f"{number}.png", tmp_path)
        (tmp_path / f"{number}.txt").write_bytes("caf\xe9".encode("latin-1"))
    assert main(["index", str(tmp_path), "--db", str(tmp_path / "db"), "--model", str(model), "--device", "cpu"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11 and all(".txt is not in UTF-8" in line for line in lines[:10])
    assert lines[10] == "note: and 2 more like the last"


def test_recall_below_the_minimum_is_printed_with_its_consequence() -> None:
    enough, poor = Measurement(8, 0.97, 1.0, 2.0), Measurement(64, 0.91, 2.0, 2.0)
    first, second = format_index(Index(100_000, 1.0, {"text": enough, "picture": poor})).splitlines()[1:]
    assert first.endswith("1.0 ms a query, exact search 2.0 ms")
    assert second.endswith("; below 0.95, so exact search is used")


def test_truncated_query_is_noted(db: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", str(db), "heart " * 100, "--device", "cpu"]) == 0
    error = capsys.readouterr().err
    assert error.startswith("note: 1 of 1 texts do not fit into 77 ids") and error.count("\n") == 1


def test_invalid_options_are_one_line_errors(
    db: Path, model: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = {
        ("search", str(db)): "query must be given, unless --near-duplicates or --unreadable is",
        ("search", str(db), "x", "--picture"): "query must be a picture file that exists, got query=x",
        (
            "search",
            str(db),
            str(pictures / "1.txt"),
        ): "query must be a picture or a text, got .*1.txt, a file that is no",
        ("search", str(db), "dgo.png"): "query must be a picture file that exists, got query=dgo.png; or say --text",
        ("search", str(db), "x", "--near", "0.9"): "near must come with near-duplicates, got near=0.9",
        (
            "search",
            str(db),
            "--near-duplicates",
            "--top-k",
            "3",
            "--captions",
        ): "query must be given with captions, top-k",
        ("search", str(db), "--unreadable", "--format", "json"): "unreadable must be given without format",
        ("search", str(db), "x", "--top-k", "0", "--near", "2"): "near must be a cosine .*; top-k must be at least 1",
        ("search", str(db), "x", "--out", str(pictures / "0.png")): "out must be a new file, .*add --overwrite",
        ("search", str(db), "x", "--where", "wide > 3"): "where must be a condition on columns, .*No field named wide",
        ("search", str(tmp_path), "x"): "db must be a collection, got .*; vitkit index creates one",
        ("index", str(pictures), "--db", str(tmp_path / "new")): "model must be given for a new collection",
        ("index", "--db", str(db)): "folders must be at least one, got none",
        ("index", "--db", str(tmp_path / "new"), "--forget", "x"): "db must be a collection",
        ("index", str(pictures), "--db", str(db), "--devices", "0"): "devices must be at least 1",
        ("index", str(pictures), "--db", str(db), "--batch", "0"): "batch and commit must be at least 1",
    }
    for call, message in calls.items():
        assert main([*call]) == 1
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        with pytest.raises(AssertionError, match=message):
            raise AssertionError(error)


def test_tables_and_shards_are_indexed_and_updated(
    model: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Index a table with captions, and shards in which one sample has a caption."""
    db, table, tar = tmp_path / "db", tmp_path / "pairs.csv", tmp_path / "0.tar"
    rows = [f"{pictures}/{number}.png,caption {number}\n" for number in (0, 1, 2)]
    table.write_text("".join(["file_name,text\n", *rows]))
    with tarfile.open(tar, "w") as file:
        for number in (5, 6):
            file.add(pictures / f"{number}.png", f"{number}.png")
        (tmp_path / "5.txt").write_text("five")
        file.add(tmp_path / "5.txt", "5.txt")
    index = ["index", str(table), str(tar), "--db", str(db), "--device", "cpu"]
    assert main([*index, "--model", str(model)]) == 0
    assert capsys.readouterr().out.startswith("5 pictures and 4 captions embedded, 0 known by their content, 0 unch")
    assert main(["search", str(db), "five", "--top-k", "5"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("5.png", "6.png", "0.png"))
    assert main(["search", str(db), "five", "--top-k", "5", "--out", str(tmp_path / "page.html")]) == 0
    assert f"written to {tmp_path}/page.html: 5 matches\n" in capsys.readouterr().err
    assert "can no longer be read" not in (tmp_path / "page.html").read_text()
    capsys.readouterr()
    assert main(index) == 0
    assert "0 pictures embedded, 0 known by their content, 5 unchanged, 0 removed" in capsys.readouterr().out
    table.write_text("".join(["file_name,text\n", *rows[:1], rows[1].replace("caption", "another")]))
    assert main(index) == 0
    assert "1 caption embedded, 1 known by their content, 3 unchanged, 1 removed" in capsys.readouterr().out
    assert main(["index", "--db", str(db), "--forget", str(tar)]) == 0
    assert capsys.readouterr().out == "2 files removed from the database\n"


def test_columns_of_a_table_are_named_as_for_other_commands(
    model: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "pairs.csv"
    table.write_text(f"image,title\n{pictures}/0.png,a red thing\n{pictures}/1.png,two\n")
    index = ["index", str(table), "--db", str(tmp_path / "db"), "--device", "cpu", "--model", str(model)]
    assert main([*index, "--columns", "image", "titel"]) == 1
    assert "columns must be among image, title, got titel; did you mean title?" in capsys.readouterr().err
    assert main([*index, "--columns", "image", "title"]) == 0
    assert capsys.readouterr().out.startswith("2 pictures and 2 captions embedded")
    assert main(["search", str(tmp_path / "db"), "a red thing", "--captions", "--top-k", "1", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.endswith("0.png  a red thing\n")


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_table_in_a_folder_of_pictures_has_their_captions(
    form: str, model: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of other commands, and of the imagefolder of Hugging Face: the table is not left out, and says what counts."""
    folder = tmp_path / "folder"
    (folder / "train").mkdir(parents=True)
    for number in range(3):
        shutil.copy2(pictures / f"{number}.png", folder / "train")
    rows = [{"file_name": f"train/{number}.png", "text": f"caption {number}"} for number in range(2)]
    lines = [json.dumps(row) for row in rows]
    if form == "csv":
        lines = [",".join(row) for row in ({"file_name": 0, "text": 0}, *(row.values() for row in rows))]
    (folder / f"metadata.{form}").write_text("\n".join(lines))
    index = ["index", str(folder), "--db", str(tmp_path / "db"), "--device", "cpu"]
    assert main([*index, "--model", str(model)]) == 0
    out, error = capsys.readouterr()
    assert out.startswith("2 pictures and 2 captions embedded")
    assert error == f"left out: 1 picture that the table does not list, such as {folder}/train/2.png\n"
    assert main([*index]) == 0
    assert "0 pictures embedded, 0 known by their content, 2 unchanged, 0 removed" in capsys.readouterr().out
    assert main(["search", str(tmp_path / "db"), "caption 1", "--captions", "--top-k", "1", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.endswith("1.png  caption 1\n")
    (folder / f"metadata.{form}").unlink()
    assert main([*index]) == 0
    assert "3 pictures in" in capsys.readouterr().out


def test_search_hashes_no_weights_unless_the_files_of_the_model_changed(
    model: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(model, tmp_path / "model")
    weights, db = tmp_path / "model/model.safetensors", str(tmp_path / "db")
    main(["index", str(pictures), "--db", db, "--model", str(tmp_path / "model"), "--device", "cpu"])
    calls: list[str] = []
    for name in ("compute_fingerprint", "embed_probe"):
        compute = getattr(Embedder, name)
        monkeypatch.setattr(
            Embedder, name, lambda self, name=name, compute=compute: calls.append(name) or compute(self)
        )
    assert main(["search", db, "heart", "--device", "cpu"]) == 0 and not calls
    content, times = bytearray(weights.read_bytes()), weights.stat()
    weights.write_bytes(content)
    assert main(["search", db, "heart", "--device", "cpu"]) == 0
    assert calls == ["compute_fingerprint", "embed_probe"]  # the files are others, with the same content
    content[-1] ^= 1
    weights.write_bytes(content)
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert main(["search", db, "heart", "--device", "cpu"]) == 1
    assert "model must be the one that" in capsys.readouterr().err


def test_each_of_several_queries_has_its_table(
    db: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    picture, base = str(pictures / "7.png"), ["search", str(db), "--device", "cpu", "--top-k", "2"]
    out = tmp_path / "matches.csv"
    assert main([*base, "a <b> heart", picture, "--out", str(out), "--out", str(out.with_suffix(".html"))]) == 0
    with out.open(newline="") as file:
        assert [(row["query"], row["group"]) for row in csv.DictReader(file)] == [
            *[("a <b> heart", "1")] * 2,
            *[(picture, "2")] * 2,
        ]
    assert "<h2>a &lt;b&gt; heart</h2>" in out.with_suffix(".html").read_text("utf-8")
    capsys.readouterr()
    assert main([*base, "a heart", "--format", "json"]) == 0
    matches = json.loads(capsys.readouterr().out)
    for queries, content in (("a heart\n\n", ["a heart"]), (f"{picture}\r\na heart", [picture, "a heart"])):
        monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(queries.encode())))
        assert main([*base, "-", "--format", "json"]) == 0
        tables = json.loads(capsys.readouterr().out)
        assert [table["query"] for table in tables] == content and tables[-1]["matches"] == matches
    assert main([*base, "a heart", picture, "--where", "width < 0"]) == 0
    assert capsys.readouterr().out == f"a heart\nnothing was found\n\n{picture}\nnothing was found\n"
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO()))
    assert main([*base, "-"]) == 1
    assert "query must be given on standard input" in capsys.readouterr().err
