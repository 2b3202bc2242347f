import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitkit.data.preprocess import read
from vitkit.retrieval import scan, update
from vitkit.retrieval.collection import Collection
from vitkit.retrieval.embedder import Embedder
from vitkit.retrieval.store import VECTOR, matrix
from vitkit.retrieval.writer import IndexReading

Rows = Callable[[Collection], list[dict]]
Draw = Callable[[Path, int], None]


def stored(collection: Collection, condition: str) -> np.ndarray:
    return matrix(collection.store.items.search().where(condition).select([VECTOR]).limit(None).to_arrow())


def done(found: update.Indexed) -> tuple[int, ...]:
    return found[:7]


def counts(
    encoded: int = 0, captions: int = 0, cut: int = 0, reused: int = 0, unchanged: int = 0, removed: int = 0
) -> tuple[int, ...]:
    """What `index` tells; one file is always broken."""
    return encoded, captions, cut, reused, unchanged, removed, 1


def test_every_picture_and_caption_has_a_row_and_its_own_vector(
    collection: Collection, pictures: Path, rows: Rows
) -> None:
    assert done(collection.index(pictures)) == counts(12, 5)  # four of their own, and one that all four have
    assert len(collection) == 12
    found = rows(collection)
    assert [(row["path"], row["line"], row["caption"]) for row in found[:4]] == [
        ("a/0.png", 0, "picture 0\nseen twice"),
        ("a/0.png", 1, "picture 0"),
        ("a/0.png", 2, "seen twice"),
        ("a/1.png", 0, "picture 2\nseen twice"),
    ]
    assert len({(row["path"], row["line"]) for row in found}) == len(found) == 12 + 8
    assert {row["root"] for row in found} == {str(pictures)}
    with Image.open(pictures / "a/0.png") as image:
        assert (found[0]["width"], found[0]["height"]) == image.size
    expected = collection.embedder.picture(read(pictures / "a/0.png"))
    np.testing.assert_allclose(stored(collection, "path = 'a/0.png' and line = 0")[0], expected, atol=2e-3)
    expected = collection.embedder.text("seen twice")
    for vector in stored(collection, "caption = 'seen twice'"):
        np.testing.assert_allclose(vector, expected, atol=2e-3)


def test_a_second_run_reads_and_embeds_nothing(
    collection: Collection, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection.index(pictures)
    version = collection.store.items.version
    for path in pictures.rglob("*.*"):  # it would be noticed if one were opened
        path.chmod(0) if os.geteuid() else None
    assert done(collection.index(pictures)) == counts(unchanged=12)
    assert collection.store.items.version == version
    assert done(collection.index(pictures, rehash=True)) == counts(reused=12)


def test_new_changed_moved_and_deleted_files_are_told_apart(
    collection: Collection, pictures: Path, rows: Rows, draw: Draw
) -> None:
    collection.index(pictures)
    draw(pictures / "new.png", 100)
    draw(pictures / "a/0.png", 101)  # other content, and the captions stay
    (pictures / "a/1.png").rename(pictures / "a/1 moved.png")
    (pictures / "a/1.txt").rename(pictures / "a/1 moved.txt")
    (pictures / "b/5.png").unlink()
    assert done(collection.index(pictures)) == counts(encoded=2, reused=1, unchanged=9, removed=2)
    found = {row["path"]: row for row in rows(collection) if row["line"] == 0}
    assert set(found) == {str(path.relative_to(pictures)) for path in pictures.rglob("*.png")} - {"broken.png"}
    assert found["a/1 moved.png"]["caption"] == "picture 2\nseen twice"
    for name in ("new.png", "a/0.png", "a/1 moved.png"):
        expected = collection.embedder.picture(read(pictures / name))
        np.testing.assert_allclose(stored(collection, f"path = '{name}' and line = 0")[0], expected, atol=2e-3)
    assert done(collection.index(pictures)) == counts(unchanged=12)


def test_names_that_are_swapped_take_their_vectors_along(collection: Collection, pictures: Path) -> None:
    collection.index(pictures, reading=IndexReading(batch=1, commit=1))
    one, other, aside = pictures / "a/3.png", pictures / "b/3.png", pictures / "aside"
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
    os.utime(one, ns=(2 * 10**18,) * 2)
    os.utime(other, ns=(3 * 10**18,) * 2)
    assert done(collection.index(pictures, reading=IndexReading(batch=1, commit=1))) == counts(reused=2, unchanged=10)
    for path in (one, other):
        name = path.relative_to(pictures)
        expected = collection.embedder.picture(read(path))
        np.testing.assert_allclose(stored(collection, f"path = '{name}'")[0], expected, atol=2e-3)


def test_captions_may_come_change_and_go_without_their_picture(
    collection: Collection, pictures: Path, rows: Rows
) -> None:
    collection.index(pictures)
    (pictures / "a/0.txt").write_text("one\ntwo\nthree\n")
    (pictures / "b/0.txt").unlink()
    (pictures / "a/4.txt").write_bytes(b"\xef\xbb\xbfnew, and not \xff UTF-8\x1b[2J\r\nnew\n  new \n")
    changed = collection.index(pictures)
    assert done(changed) == counts(captions=5, reused=3, unchanged=9)
    (note,) = changed.notes
    assert note.startswith(f"{pictures}/a/4.txt is not in UTF-8")
    found = [(row["path"], row["caption"]) for row in rows(collection) if row["line"]]
    assert found[:3] == [("a/0.png", "one"), ("a/0.png", "two"), ("a/0.png", "three")]
    assert ("a/4.png", "new, and not \N{REPLACEMENT CHARACTER} UTF-8 [2J") in found
    assert found.count(("a/4.png", "new")) == 1  # which it says twice
    assert not any(path == "b/0.png" for path, _ in found)


def test_captions_that_change_within_a_tick_of_the_clock_are_looked_at_again(
    collection: Collection, pictures: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "TICK", 10**11)
    (pictures / "a/0.txt").write_text("one\n")
    collection.index(pictures)
    times = (pictures / "a/0.txt").stat()
    (pictures / "a/0.txt").write_text("two\n")
    os.utime(pictures / "a/0.txt", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert done(collection.index(pictures)) == counts(captions=1, reused=1, unchanged=11)
    assert rows(collection)[1]["caption"] == "two"


def test_captions_that_cannot_be_read_leave_their_picture(pictures: Path) -> None:
    entry = next(one for one in scan.scan([str(pictures)]).entries.values() if one.file.endswith("a/0.png"))
    (pictures / "a/0.txt").unlink()  # just now
    found = scan.content(entry, ())
    assert found.picture and found.captions == () and found.stamp != entry.stamp
    assert found.note == f"{pictures}/a/0.txt could not be read: No such file or directory"


def test_a_file_that_breaks_or_is_repaired_changes_tables(collection: Collection, pictures: Path, draw: Draw) -> None:
    collection.index(pictures)
    assert [(one.file.name, one.reason) for one in collection.unreadable()] == [
        ("broken.png", "UnidentifiedImageError: cannot identify image file")
    ]
    draw(pictures / "broken.png", 50)
    (pictures / "a/0.png").write_bytes(b"")
    found = collection.index(pictures)
    assert (found.encoded, found.unreadable, len(collection)) == (1, 1, 12)
    assert [one.file.name for one in collection.unreadable()] == ["0.png"]
    (pictures / "a/0.png").unlink()
    assert collection.index(pictures).unreadable == 0
    assert (collection.unreadable(), len(collection)) == ([], 12)


def test_what_a_kill_between_two_tables_leaves_is_mended(collection: Collection, pictures: Path) -> None:
    collection.index(pictures)
    row = collection.store.items.search().where("path = 'a/0.png' and line = 0").limit(1).to_arrow()
    both = row.select([name for name in collection.store.unreadable.schema.names if name != "reason"])
    collection.store.unreadable.add(both.append_column("reason", [["was broken"]]))
    assert done(collection.index(pictures)) == counts(reused=1, unchanged=11)
    assert len(collection.unreadable()) == 1


def test_odd_files_are_listed_with_a_reason_and_stop_nothing(
    collection: Collection, pictures: Path, draw: Draw, rows: Rows
) -> None:
    (pictures / "gone.png").symlink_to(pictures / "nowhere.png")
    os.mkfifo(pictures / "pipe.png")
    (pictures / "loop").symlink_to(pictures)
    draw(pictures / ".hidden.png", 60)
    draw(pictures / ".hidden/x.png", 61)
    draw(pictures / os.fsdecode(b"caf\xe9.png"), 62)
    (pictures / "link.png").symlink_to(pictures / "a/0.png")
    found = collection.index(pictures)
    assert (found.encoded, found.reused, found.unreadable) == (14, 0, 3)
    reasons = {one.file.name: one.reason for one in collection.unreadable()}
    assert reasons["gone.png"] == "No such file or directory" and reasons["pipe.png"] == "not a file"
    assert {"caf\\xe9.png", "link.png"} <= {row["path"] for row in rows(collection)}
    hit = collection.search(Path(pictures / os.fsdecode(b"caf\xe9.png")), 1)[0]
    assert hit.file.exists()
    again = collection.index(pictures)
    assert (again.encoded, again.reused, again.unreadable) == (0, 0, 3)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_nothing_is_removed_of_a_folder_that_cannot_be_listed(collection: Collection, pictures: Path) -> None:
    collection.index(pictures)
    (pictures / "a").chmod(0)
    try:
        assert collection.index(pictures).removed == 0
        assert [one.reason for one in collection.unreadable()][0].startswith("folder")
    finally:
        (pictures / "a").chmod(0o755)
    assert collection.index(pictures).unchanged == 12


def test_other_folders_stay_as_they_are(collection: Collection, pictures: Path, rows: Rows) -> None:
    collection.index([pictures / "a", pictures])  # once each, below the outermost
    (pictures / "b/0.png").unlink()
    assert collection.index(pictures / "a").removed == 0
    assert len(collection) == 12
    with pytest.raises(
        ValueError, match="folders must exist and be folders, got .*nowhere; what was indexed of them stays until"
    ):
        collection.index(pictures / "nowhere")
    assert collection.index(pictures).removed == 1


def test_a_folder_and_a_link_to_it_are_one(collection: Collection, pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(pictures)
    assert done(collection.index([tmp_path / "link", pictures])) == counts(12, 5)
    assert done(collection.index(tmp_path / "link")) == counts(unchanged=12)
    assert len(collection) == 12
    assert collection.forget(tmp_path / "link") == 13


def test_a_folder_that_was_renamed_is_told_until_it_is_forgotten(collection: Collection, pictures: Path) -> None:
    assert collection.index(pictures).notes == ()
    moved = pictures.rename(pictures.with_name("moved"))
    found = collection.index(moved)
    assert (done(found), len(collection)) == (counts(reused=12), 24)
    assert found.notes == (
        f"12 pictures are of {pictures}, which is not there, until vitkit index --forget takes it out",
    )
    assert collection.forget(pictures) == 13 and len(collection) == 12
    assert {one.file.parent.name for one in collection.unreadable()} == {"moved"}
    assert collection.index(moved).notes == ()


def test_a_full_disk_is_one_line_and_loses_nothing(
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
    assert done(collection.index(pictures)) == counts(encoded=200, unchanged=12)


def test_a_change_within_a_tick_of_the_clock_is_looked_at_again(
    collection: Collection, pictures: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "TICK", 10**11)
    os.utime(pictures / "a/0.png", ns=(time.time_ns() - 10**10,) * 2)
    collection.index(pictures)
    now = "mtime > timestamp '2020-01-01'"
    assert [one.path for one in collection.search("a heart", where=now)] == ["a/0.png"]  # its own time, meanwhile
    monkeypatch.undo()
    assert done(collection.index(pictures)) == counts(reused=1, unchanged=11)
    assert done(collection.index(pictures)) == counts(unchanged=12)


def test_another_model_is_refused_whatever_makes_it_another(
    collection: Collection, pictures: Path, clips: Callable[..., Embedder], tmp_path: Path
) -> None:
    collection.index(pictures)
    for other in (clips(seed=1), clips(heads=4)):  # other weights; the same weights in another architecture
        for use in (lambda c: c.index(pictures), lambda c: c.search("a heart")):
            with pytest.raises(ValueError, match=r"model must be the one that .*/db was made with.*take another --db"):
                use(Collection(tmp_path / "db", other, device="cpu"))


def test_a_place_that_is_no_collection_is_left_alone(pictures: Path, clip: Embedder, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="db must be a new folder or a collection, got .*, which holds a"):
        Collection(pictures, clip).index(pictures)
    with pytest.raises(ValueError, match="db must be a collection, got .*new; vitkit index makes one"):
        Collection(tmp_path / "new", clip).search("a heart")
    with pytest.raises(ValueError, match="model must be given for a new collection"):
        Collection(tmp_path / "new").index(pictures)
    assert not (tmp_path / "new").exists()


def test_a_damaged_collection_is_one_line(collection: Collection, pictures: Path) -> None:
    collection.index(pictures)
    for path in (collection.path / "items.lance/data").iterdir():
        os.truncate(path, 100)
    again = Collection(collection.path, collection.model, device="cpu")
    asks = (lambda: again.search("a heart"), again.duplicates, lambda: again.index(pictures))
    for ask in asks:
        with pytest.raises(ValueError, match=r"db must be readable, got .*; index into another --db$") as error:
            ask()
        assert "\n" not in str(error.value) and ".rs" not in str(error.value)


def test_what_others_leave_in_a_collection_does_not_matter(collection: Collection, pictures: Path) -> None:
    collection.index(pictures)
    (collection.path / ".DS_Store").touch()
    assert collection.index(pictures).unchanged == 12


def test_another_layout_is_told(collection: Collection, pictures: Path, clip: Embedder, tmp_path: Path) -> None:
    collection.index(pictures)
    changed = {"a column less": lambda: collection.store.items.drop_columns(["beside"])}
    changed["no vectors"] = lambda: collection.store.items.drop_columns(["vector"])
    changed["a table less"] = lambda: collection.store.database.drop_table("unreadable")
    for change in changed.values():
        change()
        for use in (Collection.index, Collection.search):
            with pytest.raises(ValueError, match="db must be of this release, got .*/db of another layout"):
                use(Collection(collection.path, clip, device="cpu"), str(pictures))
