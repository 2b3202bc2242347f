import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitkit
from vitkit.data.preprocess import read_image
from vitkit.retrieval import scan, update
from vitkit.retrieval.collection import Collection
from vitkit.retrieval.embedder import Embedder
from vitkit.retrieval.store import VECTOR, get_vectors
from vitkit.retrieval.writer import IndexReading

Rows = Callable[[Collection], list[dict]]
Draw = Callable[[Path, int], None]


def read_vectors(collection: Collection, condition: str) -> np.ndarray:
    return get_vectors(collection.store.items.search().where(condition).select([VECTOR]).limit(None).to_arrow())


def get_counts(summary: update.IndexSummary) -> tuple[int, ...]:
    return summary[:7]


def counts(
    encoded: int = 0, captions: int = 0, cut: int = 0, reused: int = 0, unchanged: int = 0, removed: int = 0
) -> tuple[int, ...]:
    """Return the counts of an `IndexSummary`; one file is always broken."""
    return encoded, captions, cut, reused, unchanged, removed, 1


def test_every_picture_and_caption_has_a_row_with_its_vector(
    collection: Collection, pictures: Path, rows: Rows
) -> None:
    assert get_counts(collection.index(pictures)) == counts(12, 5)  # one of each of four, and a shared one
    assert len(collection) == 12
    stored = rows(collection)
    assert [(row["path"], row["line"], row["caption"]) for row in stored[:4]] == [
        ("a/0.png", 0, "picture 0\nseen twice"),
        ("a/0.png", 1, "picture 0"),
        ("a/0.png", 2, "seen twice"),
        ("a/1.png", 0, "picture 2\nseen twice"),
    ]
    assert len({(row["path"], row["line"]) for row in stored}) == len(stored) == 12 + 8
    assert {row["root"] for row in stored} == {str(pictures)}
    with Image.open(pictures / "a/0.png") as image:
        assert (stored[0]["width"], stored[0]["height"]) == image.size
    expected = collection.embedder.embed_picture(read_image(pictures / "a/0.png"))
    np.testing.assert_allclose(read_vectors(collection, "path = 'a/0.png' and line = 0")[0], expected, atol=2e-3)
    expected = collection.embedder.embed_text("seen twice")
    for vector in read_vectors(collection, "caption = 'seen twice'"):
        np.testing.assert_allclose(vector, expected, atol=2e-3)


def test_second_run_reads_and_embeds_nothing(
    collection: Collection, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection.index(pictures)
    version = collection.store.items.version
    for path in pictures.rglob("*.*"):  # opening one fails
        path.chmod(0) if os.geteuid() else None
    assert get_counts(collection.index(pictures)) == counts(unchanged=12)
    assert collection.store.items.version == version
    assert get_counts(collection.index(pictures, rehash=True)) == counts(reused=12)


def test_new_changed_moved_and_deleted_files_are_distinguished(
    collection: Collection, pictures: Path, rows: Rows, draw: Draw
) -> None:
    collection.index(pictures)
    draw(pictures / "new.png", 100)
    draw(pictures / "a/0.png", 101)  # other content, and the captions stay
    (pictures / "a/1.png").rename(pictures / "a/1 moved.png")
    (pictures / "a/1.txt").rename(pictures / "a/1 moved.txt")
    (pictures / "b/5.png").unlink()
    assert get_counts(collection.index(pictures)) == counts(encoded=2, reused=1, unchanged=9, removed=2)
    stored = {row["path"]: row for row in rows(collection) if row["line"] == 0}
    assert set(stored) == {str(path.relative_to(pictures)) for path in pictures.rglob("*.png")} - {"broken.png"}
    assert stored["a/1 moved.png"]["caption"] == "picture 2\nseen twice"
    for name in ("new.png", "a/0.png", "a/1 moved.png"):
        expected = collection.embedder.embed_picture(read_image(pictures / name))
        np.testing.assert_allclose(read_vectors(collection, f"path = '{name}' and line = 0")[0], expected, atol=2e-3)
    assert get_counts(collection.index(pictures)) == counts(unchanged=12)


def test_files_that_match_exclude_are_removed(collection: Collection, pictures: Path, draw: Draw) -> None:
    draw(pictures / "a/@eaDir/0.png", 100)
    (pictures / "notes.txt").write_text("x")
    draw(pictures / "more.png", 101)
    (pictures / "more.png").rename(pictures / "more")
    still, others = Image.new("L", (9, 9)), [Image.new("L", (9, 9), 200)]
    still.save(pictures / "c.gif", save_all=True, append_images=others)
    summary = collection.index(pictures)
    assert get_counts(summary) == counts(encoded=14, captions=5)
    assert summary.notes == (f"{pictures}/c.gif has several pages or frames, of which the first was embedded",)
    assert {omission.reason: omission.count for omission in summary.omissions} == {
        "files and folders of the operating system": 1,
        "texts without a picture of their name": 1,
    }
    assert get_counts(collection.index(pictures, exclude=["*.gif", "a/[01].*"])) == counts(unchanged=11, removed=3)
    assert get_counts(collection.index(pictures, exclude="b/*")) == counts(
        encoded=3, captions=2, unchanged=5, removed=6
    )


def test_swapped_names_keep_the_vectors_of_their_contents(collection: Collection, pictures: Path) -> None:
    collection.index(pictures, reading=IndexReading(batch=1, commit=1))
    first, second, aside = pictures / "a/3.png", pictures / "b/3.png", pictures / "aside"
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    os.utime(first, ns=(2 * 10**18,) * 2)
    os.utime(second, ns=(3 * 10**18,) * 2)
    assert get_counts(collection.index(pictures, reading=IndexReading(batch=1, commit=1))) == counts(
        reused=2, unchanged=10
    )
    for path in (first, second):
        name = path.relative_to(pictures)
        expected = collection.embedder.embed_picture(read_image(path))
        np.testing.assert_allclose(read_vectors(collection, f"path = '{name}'")[0], expected, atol=2e-3)


def test_added_changed_and_deleted_captions_are_updated_without_their_picture(
    collection: Collection, pictures: Path, rows: Rows
) -> None:
    collection.index(pictures)
    (pictures / "a/0.txt").write_text("one\ntwo\u2028\x0c2\nthree\n", "utf-8")
    (pictures / "b/0.txt").unlink()
    (pictures / "a/4.txt").write_bytes(b"\xef\xbb\xbfnew, and not \xff UTF-8\x1b[2J\r\nnew\n  new \n")
    changed = collection.index(pictures)
    assert get_counts(changed) == counts(captions=5, reused=3, unchanged=9)
    (note,) = changed.notes
    assert note.startswith(f"{pictures}/a/4.txt is not in UTF-8")
    captions = [(row["path"], row["caption"]) for row in rows(collection) if row["line"]]
    assert captions[:3] == [("a/0.png", "one"), ("a/0.png", "two 2"), ("a/0.png", "three")]
    assert ("a/4.png", "new, and not \N{REPLACEMENT CHARACTER} UTF-8 [2J") in captions
    assert captions.count(("a/4.png", "new")) == 1  # of two equal lines
    assert not any(path == "b/0.png" for path, _ in captions)


def test_captions_that_change_within_a_clock_tick_are_read_again(
    collection: Collection, pictures: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "TICK", 10**11)
    (pictures / "a/0.txt").write_text("one\n")
    collection.index(pictures)
    times = (pictures / "a/0.txt").stat()
    (pictures / "a/0.txt").write_text("two\n")
    os.utime(pictures / "a/0.txt", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert get_counts(collection.index(pictures)) == counts(captions=1, reused=1, unchanged=11)
    assert rows(collection)[1]["caption"] == "two"


def test_unreadable_captions_leave_their_picture(pictures: Path) -> None:
    entries = scan.scan_folders([str(pictures)]).entries.values()
    entry = next(entry for entry in entries if entry.file.endswith("a/0.png"))
    (pictures / "a/0.txt").unlink()
    content = scan.read_content(entry, ())
    assert content.picture and content.captions == () and content.stamp != entry.stamp
    assert content.note == f"{pictures}/a/0.txt could not be read: No such file or directory"


def test_damaged_or_repaired_file_changes_tables(collection: Collection, pictures: Path, draw: Draw) -> None:
    collection.index(pictures)
    assert [(item.file.name, item.reason) for item in collection.unreadable()] == [
        ("broken.png", "UnidentifiedImageError: cannot identify image file")
    ]
    draw(pictures / "broken.png", 50)
    (pictures / "a/0.png").write_bytes(b"")
    summary = collection.index(pictures)
    assert (summary.encoded, summary.unreadable, len(collection)) == (1, 1, 12)
    assert [item.file.name for item in collection.unreadable()] == ["0.png"]
    (pictures / "a/0.png").unlink()
    assert collection.index(pictures).unreadable == 0
    assert (collection.unreadable(), len(collection)) == ([], 12)


def test_entry_in_both_tables_after_a_kill_is_repaired(collection: Collection, pictures: Path) -> None:
    collection.index(pictures)
    row = collection.store.items.search().where("path = 'a/0.png' and line = 0").limit(1).to_arrow()
    both = row.select([name for name in collection.store.unreadable.schema.names if name != "reason"])
    collection.store.unreadable.add(both.append_column("reason", [["was broken"]]))
    assert get_counts(collection.index(pictures)) == counts(reused=1, unchanged=11)
    assert len(collection.unreadable()) == 1


def test_unusual_files_are_listed_with_a_reason_and_do_not_stop_the_run(
    collection: Collection, pictures: Path, draw: Draw, rows: Rows
) -> None:
    (pictures / "gone.png").symlink_to(pictures / "nowhere.png")
    os.mkfifo(pictures / "pipe.png")
    (pictures / "loop").symlink_to(pictures)
    draw(pictures / ".hidden.png", 60)
    draw(pictures / ".hidden/x.png", 61)
    draw(pictures / os.fsdecode(b"caf\xe9.png"), 62)
    (pictures / "link.png").symlink_to(pictures / "a/0.png")
    summary = collection.index(pictures)
    assert (summary.encoded, summary.reused, summary.unreadable) == (14, 0, 3)
    reasons = {item.file.name: item.reason for item in collection.unreadable()}
    assert reasons["gone.png"] == "No such file or directory" and reasons["pipe.png"] == "not a file"
    assert {"caf\\xe9.png", "link.png"} <= {row["path"] for row in rows(collection)}
    match = collection.search(Path(pictures / os.fsdecode(b"caf\xe9.png")), 1)[0]
    assert match.file.exists()
    again = collection.index(pictures)
    assert (again.encoded, again.reused, again.unreadable) == (0, 0, 3)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_folder_that_cannot_be_listed_keeps_its_pictures(collection: Collection, pictures: Path) -> None:
    collection.index(pictures)
    (pictures / "a").chmod(0)
    try:
        assert collection.index(pictures).removed == 0
        assert collection.unreadable()[0].reason.startswith("folder")
    finally:
        (pictures / "a").chmod(0o755)
    assert collection.index(pictures).unchanged == 12


def test_other_folders_are_unchanged(collection: Collection, pictures: Path, rows: Rows) -> None:
    collection.index([pictures / "a", pictures])  # once each, below the outermost
    (pictures / "b/0.png").unlink()
    assert collection.index(pictures / "a").removed == 0
    assert len(collection) == 12
    with pytest.raises(
        ValueError, match="folders must exist and be folders, got .*nowhere; vitkit index --forget removes"
    ):
        collection.index(pictures / "nowhere")
    assert collection.index(pictures).removed == 1


def test_folder_and_link_to_it_are_one(collection: Collection, pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(pictures)
    assert get_counts(collection.index([tmp_path / "link", pictures])) == counts(12, 5)
    assert get_counts(collection.index(tmp_path / "link")) == counts(unchanged=12)
    assert len(collection) == 12
    assert collection.forget(tmp_path / "link") == 13


def test_renamed_folder_is_noted_until_it_is_removed(collection: Collection, pictures: Path) -> None:
    assert collection.index(pictures).notes == ()
    moved = pictures.rename(pictures.with_name("moved"))
    summary = collection.index(moved)
    assert (get_counts(summary), len(collection)) == (counts(reused=12), 24)
    assert summary.notes == (
        f"12 pictures of {pictures}, which no longer exists; vitkit index --forget removes its pictures",
    )
    assert collection.forget(pictures) == 13 and len(collection) == 12
    assert {item.file.parent.name for item in collection.unreadable()} == {"moved"}
    assert collection.index(moved).notes == ()


def test_full_disk_is_a_one_line_error_and_loses_nothing(
    collection: Collection, pictures: Path, draw: Draw, rows: Rows
) -> None:
    collection.index(pictures)
    before = rows(collection)
    for seed in range(200):
        draw(pictures / f"more/{seed}.png", 100 + seed)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
    try:
        with pytest.raises(ValueError, match=r"db must be writable, got .*/db: .*File too large \(os error 27\); what"):
            collection.index(pictures)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert rows(collection) == before
    assert get_counts(collection.index(pictures)) == counts(encoded=200, unchanged=12)


def test_picture_that_changes_within_a_clock_tick_is_read_again(
    collection: Collection, pictures: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "TICK", 10**11)
    os.utime(pictures / "a/0.png", ns=(time.time_ns() - 10**10,) * 2)
    collection.index(pictures)
    now = "mtime > timestamp '2020-01-01'"
    assert [match.path for match in collection.search("a heart", where=now)] == ["a/0.png"]
    monkeypatch.undo()
    assert get_counts(collection.index(pictures)) == counts(reused=1, unchanged=11)
    assert get_counts(collection.index(pictures)) == counts(unchanged=12)


def test_other_weights_or_architecture_are_refused(
    collection: Collection, pictures: Path, clips: Callable[..., Embedder], tmp_path: Path
) -> None:
    collection.index(pictures)
    for other in (clips(seed=1), clips(heads=4)):  # other weights; the same weights in another architecture
        for use in (lambda c: c.index(pictures), lambda c: c.search("a heart")):
            with pytest.raises(ValueError, match=r"model must be the one that .*/db was made with.*take another --db"):
                use(Collection(tmp_path / "db", other, device="cpu"))


def test_folder_that_is_no_collection_is_not_changed(pictures: Path, clip: Embedder, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="db must be a new folder or a collection, got .*, which holds a"):
        Collection(pictures, clip).index(pictures)
    with pytest.raises(ValueError, match="db must be a collection, got .*new; vitkit index creates one"):
        Collection(tmp_path / "new", clip).search("a heart")
    with pytest.raises(ValueError, match="model must be given for a new collection"):
        Collection(tmp_path / "new").index(pictures)
    assert not (tmp_path / "new").exists()


def test_damaged_collection_is_a_one_line_error(collection: Collection, pictures: Path) -> None:
    collection.index(pictures)
    for path in (collection.path / "items.lance/data").iterdir():
        os.truncate(path, 100)
    again = Collection(collection.path, collection.model, device="cpu")
    asks = (lambda: again.search("a heart"), again.duplicates, lambda: again.index(pictures))
    for ask in asks:
        with pytest.raises(ValueError, match=r"db must be readable, got .*; index into another --db$") as error:
            ask()
        assert "\n" not in str(error.value) and ".rs" not in str(error.value)


def test_foreign_files_in_a_collection_are_ignored(collection: Collection, pictures: Path) -> None:
    collection.index(pictures)
    (collection.path / ".DS_Store").touch()
    assert collection.index(pictures).unchanged == 12


def test_other_table_layout_is_refused(collection: Collection, pictures: Path, clip: Embedder, tmp_path: Path) -> None:
    collection.index(pictures)
    changed = {"a column less": lambda: collection.store.items.drop_columns(["beside"])}
    changed["no vectors"] = lambda: collection.store.items.drop_columns(["vector"])
    changed["a table less"] = lambda: collection.store.database.drop_table("unreadable")
    for change in changed.values():
        change()
        for use in (Collection.index, Collection.search):
            with pytest.raises(ValueError, match="db must have this release's tables, got others in .*/db"):
                use(Collection(collection.path, clip, device="cpu"), str(pictures))


def test_functions_return_what_the_collection_returns(
    clip: Embedder, pictures: Path, tmp_path: Path, clip_folder: Path
) -> None:
    summary = vitkit.index(pictures, tmp_path / "db", clip_folder, exclude="0.png", device="cpu")
    assert (summary.encoded, summary.unreadable) == (10, 1)
    collection = Collection(tmp_path / "db", device="cpu")
    for query in ("a red heart", pictures / "b" / "1.png"):
        matches = vitkit.search(tmp_path / "db", query, 3, device="cpu")
        assert len(matches) == 3
        assert matches == collection.search(query, 3)
    assert matches[0].file == pictures / "b" / "1.png"


def test_collection_without_its_package_is_an_import_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lancedb", None)
    with pytest.raises(ImportError, match=r'package lancedb, which is missing; pip install "vitkit\[retrieval\]"'):
        vitkit.search(tmp_path / "db", "a red heart")
