from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from PIL import Image

from vitkit.data.annotations.captions import CAPTIONS
from vitkit.data.annotations.no_annotation import UNLABELLED
from vitkit.data.omissions import Omission, Omissions
from vitkit.data.preprocess import PictureError, read_image
from vitkit.data.sources.open import open_source, open_unlabelled

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
        Omission("files other than images", 3, f"{folder}/a/notes.md"),
        Omission("hidden files and folders", 2, f"{folder}/b/.3.png"),
        Omission("files beside the class folders", 1, f"{folder}/README.md"),
    ]
    assert [*open_source(str(folder), UNLABELLED).omissions] == [
        Omission("hidden files and folders", 2, f"{folder}/.git"),
        Omission("files other than images", 4, f"{folder}/README.md"),
    ]


def test_listing_of_captions_counts_omitted_files(folder: Path) -> None:
    for name in ("a/1.txt", "b/2.txt"):
        (folder / name).write_text(name)
    assert [*open_source(str(folder), CAPTIONS).pictures.omissions][1:] == [
        Omission("files other than images or texts", 4, f"{folder}/README.md")
    ]


def test_listing_of_shards_counts_omitted_members(tmp_path: Path, shard: Callable[..., Path], picture: Picture) -> None:
    members = [("1.png", picture(1)), ("1.cls", "a"), ("2.png", picture(2)), ("2.cls", "b"), ("LICENSE", "x"),
               (".2.png", "x"), ("x/__MACOSX/y/3.png", picture(3)), ("./.git/4.png", picture(4)), ("Thumbs.db", "x"),
               ("old/5.png", picture(5)), ("6.seg.png", "x")]  # fmt: skip
    path = shard(tmp_path / "0.tar", members)
    (tmp_path / "train").mkdir()
    for name in (str(path), str(tmp_path)):
        source = open_source(name, exclude=["old", "*.seg.png"])
        assert (len(source), source.class_names) == (2, ("a", "b"))
        beside = [Omission("files and folders beside the shards", 1, f"{tmp_path}/train")] if name != str(path) else []
        assert [*source.omissions] == [
            Omission("members without an extension", 1, f"{path}/LICENSE"),
            Omission("hidden files and folders", 2, f"{path}/.2.png"),
            Omission("files and folders of the operating system", 2, f"{path}/x/__MACOSX/y/3.png"),
            Omission("files and folders matched by exclude", 2, f"{path}/old/5.png"),
            *beside,
        ]


@pytest.fixture
def crowded(folder: Path, picture: Picture) -> Path:
    """Class folders with what archivers, file systems, notebooks and users leave beside pictures."""
    for name in ("__MACOSX/a/1.png", "lost+found/1.png", "a/@eaDir/1.png", "b/.ipynb_checkpoints/1.png", "old/1.png"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(picture(len(name)))
    (folder / "b" / "Thumbs.db").write_text("x")
    (folder / "b" / "more").symlink_to(folder / "a")
    return folder


def test_folders_of_the_system_are_no_classes(crowded: Path) -> None:
    source = open_source(str(crowded), exclude="old")
    assert (source.class_names, source.labels) == (("a", "b"), [0, 1])
    counts = {omission.reason: omission.count for omission in source.omissions}
    assert counts == {
        "files and folders of the operating system": 4,  # two of them beside the classes
        "files other than images": 3,
        "hidden files and folders": 3,
        "links to folders, not followed": 1,
        "files and folders matched by exclude": 1,
        "files beside the class folders": 1,
    }
    assert len(open_source(str(crowded), UNLABELLED, exclude=["old", "b"])) == 1


def test_patterns_match_names_and_ends_of_paths(tmp_path: Path, picture: Picture) -> None:
    for name in ("cat/old_1.png", "cat/2.png", "dog/old_3.png", "dog/4.bmp.png", "dog/deep/5.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(picture(len(name)))
    names = [path.relative_to(tmp_path) for path in sorted(tmp_path.rglob("*.png"))]
    (tmp_path / "t.csv").write_text("".join(["file_name,label\n", *(f"{name},{name.parts[0]}\n" for name in names)]))
    for source in (tmp_path, tmp_path / "t.csv"):
        for exclude, kept in (("cat/old_*", 4), ("old_*", 3), (("deep/", "*.bmp.png"), 3), ((), 5)):
            opened = open_source(str(source), exclude=exclude)
            assert (len(opened), opened.class_names) == (kept, ("cat", "dog"))
            assert sum("matched by exclude" in omission.reason for omission in opened.omissions) == (kept < 5)
        with pytest.warns(UserWarning, match=r"^exclude matches no file, got exclude=\['\*.gif'\]; source="):
            assert len(open_source(str(source), exclude="*.gif")) == 5
    with pytest.raises(ValueError, match=r"^exclude must be left out for pictures without paths, got \['0'\]; source="):
        open_source("digits", exclude="0")
    with pytest.raises(ValueError, match="^exclude must hold patterns of files, got exclude=''$"):
        open_source("digits", exclude="")


def test_pictures_that_a_folders_table_does_not_list_are_counted(tmp_path: Path, picture: Picture) -> None:
    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(picture(number))
    (tmp_path / "metadata.csv").write_text("file_name,label\n0.png,a\n./2.png,b\n")
    assert [*open_source(str(tmp_path)).omissions] == [
        Omission("pictures that the table does not list", 2, f"{tmp_path}/1.png")
    ]


def test_rows_of_a_listed_picture_are_counted(tmp_path: Path, picture: Picture) -> None:
    (tmp_path / "0.png").write_bytes(picture(0))
    (tmp_path / "t.csv").write_text("file_name,label\n0.png,a\n./0.png,b\n")
    source = open_unlabelled(str(tmp_path / "t.csv"))
    assert (len(source), [*source.omissions]) == (
        1,
        [Omission("rows of pictures listed already", 1, "line 3")],
    )


def test_files_without_suffix_and_all_suffixes_of_jpeg_are_read(tmp_path: Path, picture: Picture) -> None:
    names = ("0.jpg", "1.JFIF", "2.jpe", "3.dib", "4.jp2", "5", "6")
    formats = ("JPEG", "JPEG", "JPEG", "DIB", "JPEG2000", "JPEG", "PNG")
    for name, kind in zip(names, formats, strict=True):
        (tmp_path / name).write_bytes(picture(int(name[0]), kind=kind))
    (tmp_path / "README").write_text("PBM, PPM: P5 and P6")
    source = open_unlabelled(str(tmp_path))
    assert [Path(source.get_name(index)).name for index in range(len(source))] == [*names]
    assert [*source.omissions] == [Omission("files other than images", 1, f"{tmp_path}/README")]
    for index in range(len(source)):
        assert source.read_image(index).size == (9, 7)
    assert open_unlabelled(str(tmp_path / "5")).labels == [-1]


def test_files_with_further_pages_or_frames_are_counted(
    tmp_path: Path, shard: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("1.gif", "1.png", "1.tif", "1.webp", "2.gif", "2.png", "2.tif", "2.webp", "3.mpo"):
        first, *others = (Image.new("RGB", (9, 7), (shade, 0, 0)) for shade in (0, 100, 200))
        first.save(tmp_path / name, save_all=True, append_images=others if name[0] != "2" else [])
    (tmp_path / "3.mpo").rename(tmp_path / "3.jpg")  # of such a JPEG the others are previews
    (tmp_path / "4.gif").write_text("damaged")
    files = sorted(tmp_path.iterdir())
    path = shard(
        tmp_path.with_suffix(".tar"), [(f"{n}{file.suffix}", file.read_bytes()) for n, file in enumerate(files)]
    )
    reason = "files with several pages or frames, of which the first is read"
    source = open_unlabelled(str(tmp_path))
    assert [*source.omissions] == [Omission(reason, 4, f"{tmp_path}/1.gif")]
    assert source.read_image(0).convert("RGB").getpixel((0, 0)) == (0, 0, 0)
    assert [omission.count for omission in open_unlabelled(str(path)).omissions] == [4]
    monkeypatch.setattr("vitkit.data.sources.source.MAX_OPENED", 3)
    assert [*open_unlabelled(str(tmp_path)).omissions] == [
        Omission(f"{reason} (3 of 7 files were opened)", 1, f"{tmp_path}/1.gif"),
        Omission(reason, 1, f"{tmp_path}/1.png"),
    ]


@pytest.mark.skipif(bool(find_spec("pillow_heif")), reason="pillow-heif reads them")
def test_hint_for_heic_names_the_package(tmp_path: Path, picture: Picture) -> None:
    for name in ("a/1.png", "b/2.HEIC"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(picture(1))
    (tmp_path / "b/2.HEIC").write_bytes(b"\0\0\0\x18ftypheic")
    hint = "left out: 1 picture in HEIC, read after pip install pillow-heif, such as .*/b/2.HEIC; source="
    with pytest.raises(ValueError, match=rf"^every class folder must hold a picture .*, got none in \['b'\]; {hint}"):
        open_source(str(tmp_path))
    with pytest.raises(PictureError, match=r"; pip install pillow-heif$"):
        read_image(tmp_path / "b/2.HEIC")


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
        "left out: 1 row, such as 7",
        "error: x is broken",
        "error: 2 of 9 texts could not be read; see z",
    ]
    assert omissions.to_json()["left_out"][2] == {
        "reason": "samples that could not be read",
        "count": 2,
        "example": "x is broken",
    }
