from collections.abc import Callable
from pathlib import Path

import pytest

from vitkit.data.annotations.captions import CAPTIONS
from vitkit.data.annotations.no_annotation import UNLABELLED
from vitkit.data.omissions import Omission, Omissions
from vitkit.data.sources.open import open_source

Picture = Callable[..., bytes]


@pytest.fixture
def folder(tmp_path: Path, picture: Picture) -> Path:
    """Two class folders, and files that no listing reads."""
    for name in ("a/1.png", "b/2.png", "b/.3.png", ".git/4.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(picture(len(name)))
    for name in ("a/notes.md", "b/1.mp4", "b/2.mp4", "README.md"):
        (tmp_path / name).write_text("x")
    return tmp_path


def test_listing_counts_omitted_files(folder: Path) -> None:
    assert [*open_source(str(folder)).omissions] == [
        Omission("files that are not images", 3, f"{folder}/a/notes.md"),
        Omission("hidden files and folders", 1, f"{folder}/b/.3.png"),
        Omission("files beside the class folders", 2, f"{folder}/.git"),
    ]
    assert [*open_source(str(folder), UNLABELLED).omissions] == [
        Omission("hidden files and folders", 2, f"{folder}/.git"),
        Omission("files that are not images", 4, f"{folder}/README.md"),
    ]


def test_listing_of_captions_counts_omitted_files(folder: Path) -> None:
    for name in ("a/1.txt", "b/2.txt"):
        (folder / name).write_text(name)
    assert [*open_source(str(folder), CAPTIONS).pictures.omissions][1:] == [
        Omission("files that are not images or texts", 4, f"{folder}/README.md")
    ]


def test_listing_of_shards_counts_omitted_members(tmp_path: Path, shard: Callable[..., Path], picture: Picture) -> None:
    path = shard(tmp_path / "0.tar", [("1.png", picture(1)), ("1.cls", "a"), ("2.png", picture(2)), ("2.cls", "b"),
                                      ("LICENSE", "x"), (".2.png", "x")])  # fmt: skip
    omissions = open_source(str(path)).omissions
    assert [*omissions] == [Omission("members that are hidden or have no extension", 2, f"{path}/LICENSE")]


def test_a_report_has_a_line_for_each_reason_and_each_error(capsys: pytest.CaptureFixture[str]) -> None:
    omissions, others = Omissions(), Omissions()
    assert (omissions.report(9), omissions.to_json(), capsys.readouterr().err) == (0, {}, "")
    omissions.add("hidden files", ["a", "b"])
    others.add("hidden files", ["c"])
    others.add("rows", [7])
    others.add("nothing", [])
    others.unreadable += ["x is broken", "y is broken"]
    omissions.update(others)
    assert omissions.report(9, "texts", shown=1, more="; see z") == 1
    assert capsys.readouterr().err.splitlines() == [
        "left out: 3 hidden files, such as a",
        "left out: 1 rows, such as 7",
        "error: x is broken",
        "error: 2 of 9 texts could not be read; see z",
    ]
    assert omissions.to_json()["left_out"][2] == {
        "reason": "samples that could not be read",
        "count": 2,
        "example": "x is broken",
    }
