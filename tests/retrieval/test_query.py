import re
from collections.abc import Callable
from inspect import unwrap
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from lancedb.query import LanceVectorQueryBuilder
from PIL import Image

from vitkit.data.preprocess import read
from vitkit.retrieval import approximate
from vitkit.retrieval.collection import Collection
from vitkit.retrieval.near_duplicates import joined
from vitkit.retrieval.query import Query, probed
from vitkit.retrieval.update import queries

KINDS = {"picture", "text", "picture for captions", "text for captions"}


@pytest.fixture
def indexed(collection: Collection, pictures: Path) -> Collection:
    collection.index(pictures)
    return collection


def by_hand(collection: Collection, root: Path, vector: np.ndarray) -> list[str]:
    """Paths by their cosines."""
    paths = sorted(root.rglob("?.png"))
    vectors = np.stack([collection.embedder.picture(read(path)) for path in paths]).astype(np.float32)
    return [str(paths[row].relative_to(root)) for row in np.argsort(-(vectors @ vector.astype(np.float32)))]


def test_pictures_are_found_by_a_text_in_the_order_of_their_cosines(indexed: Collection, pictures: Path) -> None:
    found = indexed.search("a red heart", 5)
    vector = indexed.embedder.text("a red heart")
    assert [one.path for one in found] == by_hand(indexed, pictures, vector)[:5]
    exact = indexed.embedder.picture(read(found[0].file)).astype(np.float32) @ vector.astype(np.float32)
    assert found[0].score == pytest.approx(exact, abs=2e-3)
    assert len(indexed.search("a red heart", 100)) == 12


def test_a_picture_finds_itself_first_and_its_likes_next(indexed: Collection, pictures: Path) -> None:
    path = pictures / "b/3.png"
    found = indexed.search(path, 4)
    assert [one.path for one in found] == by_hand(indexed, pictures, indexed.embedder.picture(read(path)))[:4]
    assert found[0].path == "b/3.png" and found[0].score == pytest.approx(1, abs=1e-3)
    with Image.open(path) as image:
        assert indexed.search(image, 4) == found


def test_captions_are_found_by_a_text_and_by_a_picture(indexed: Collection, pictures: Path) -> None:
    assert indexed.search("picture 2", 1, captions=True)[0].caption == "picture 2"
    found = indexed.search(pictures / "a/0.png", 100, captions=True)
    assert len(found) == 8 and {one.caption for one in found} == {*(f"picture {n}" for n in range(4)), "seen twice"}
    assert all(one.score >= other.score for one, other in zip(found, found[1:], strict=False))


def test_a_condition_holds_for_all_that_is_found_and_leaves_as_many_as_there_are(indexed: Collection) -> None:
    found = indexed.search("a red heart", 3, where="path like 'b/%' and width > 8")
    assert len(found) == 3 and all(one.path.startswith("b/") and one.width > 8 for one in found)
    assert len(indexed.search("a red heart", 3, where="path = 'a/5.png' -- alone")) == 1
    assert indexed.search("a red heart", 3, where="1 = 1 or 1 = 1", captions=True)[0].caption
    with pytest.raises(
        ValueError, match="where must be a condition on columns, got where='wide > 3': .*No field named wide"
    ):
        indexed.search("a red heart", where="wide > 3")
    with pytest.raises(ValueError, match="top must be at least 1, got top=0"):
        indexed.search("a red heart", 0)


def test_of_near_duplicates_the_nearest_is_shown_and_the_number_stays(
    indexed: Collection, pictures: Path, draw: Callable[[Path, int], None]
) -> None:
    copies = {f"copy.{kind}" for kind in ("bmp", "gif", "ppm", "tiff", "tif", "webp")}
    with Image.open(pictures / "a/0.png") as image:
        for name in copies:
            image.save(pictures / name, lossless=True)
    indexed.index(pictures)
    assert {one.path for one in indexed.search(pictures / "a/0.png", 7)} == {"a/0.png", *copies}
    found = indexed.search(pictures / "a/0.png", 5, near=0.99)
    assert len(found) == 5 and len(found[0].also) == 6
    assert {found[0].path, *(one.path for one in found[0].also)} == {"a/0.png", *copies}
    group = indexed.duplicates(0.99)[0]
    assert len(group) == 7 and {one.path for one in group} == {"a/0.png", *copies}
    assert all(one.score > 0.99 for one in group)
    assert indexed.duplicates(0.99, where="path like 'a/%'") == []


def test_groups_are_joined_by_chains_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitkit.retrieval.near_duplicates.ROWS", 2)
    angles = torch.tensor([0.0, 90.0, 10.0, 180.0, 20.0, 100.0, 270.0]).deg2rad()
    vectors = torch.stack([angles.cos(), angles.sin()], dim=1)
    assert sorted(joined(vectors, 0.98)) == [[0, 2, 4], [1, 5]]  # 0 and 20 degrees are joined by 10 alone


def test_an_index_is_built_above_a_size_and_tells_its_recall(
    indexed: Collection, pictures: Path, draw: Callable[[Path, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approximate, "SHARE", 40)
    for seed in range(300):
        draw(pictures / f"more/{seed}.png", 1000 + seed)
    assert indexed.index(pictures, above=321).approximate is None
    exact = indexed.search("a red heart", 20)
    built = indexed.index(pictures, above=320).approximate
    assert built and built.rows == 320 and set(built.measured) == KINDS
    assert all(0.95 <= found.recall <= 1 and found.probes <= 8 for found in built.measured.values())
    assert approximate.of(indexed.store) == built
    assert indexed.index(pictures, above=320).approximate is None  # it is there
    found = indexed.search("a red heart", 20)
    assert len({one.path for one in found} & {one.path for one in exact}) >= 18
    monkeypatch.setattr(approximate, "ROWS", 0)  # not even for a condition that leaves few is search exact
    assert len(indexed.search("a red heart", 10, where="path like 'a/%'")) == 6
    draw(pictures / "new.png", 7)
    indexed.index(pictures)
    assert indexed.search(pictures / "new.png", 1)[0].score > 0.999  # rows that came later are found as well
    for seed in range(330):
        draw(pictures / f"again/{seed}.png", 5000 + seed)
    assert indexed.index(pictures, above=320).approximate  # twice as many
    half = indexed.store.items.count_rows() // 2 + 1
    for turn in (1, 2):  # as many rows as before, of other pictures
        held = approximate.of(indexed.store)
        assert held and held.fresh == (turn - 1) * half
        for seed in range(half):
            draw(pictures / f"other/{seed}.png", turn * 10000 + seed)
        assert bool(indexed.index(pictures, above=320).approximate) == (turn == 2)


def test_where_all_partitions_are_not_enough_search_is_exact(
    indexed: Collection, pictures: Path, draw: Callable[[Path, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approximate, "SHARE", 40)
    for seed in range(300):
        draw(pictures / f"more/{seed}.png", 1000 + seed)
    assert indexed.index(pictures, above=320).approximate
    asked = Query(indexed.embedder.text("a red heart"), "text")
    assert probed(indexed.store, asked) == 8
    monkeypatch.setattr(approximate, "GOAL", 1.1)
    assert probed(indexed.store, asked) == probed(indexed.store, asked._replace(where="line = 0")) == 0


def test_so_many_partitions_are_read_as_were_measured_and_more_only_if_need_be(
    indexed: Collection, pictures: Path, draw: Callable[[Path, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("SHARE", 40), ("PROBES", (2,)), ("GOAL", 0), ("ROWS", 10)):
        monkeypatch.setattr(approximate, name, value)
    for seed in range(300):
        draw(pictures / f"more/{seed}.png", 1000 + seed)
    built = indexed.index(pictures, above=320).approximate
    assert built and {found.probes for found in built.measured.values()} == {2}
    assert {tuple(index.columns): index.index_type for index in indexed.store.items.list_indices()} == {
        ("vector",): "IvfSq",
        ("line",): "Bitmap",  # without it every query reads the column
    }
    read, whole = list[str](), LanceVectorQueryBuilder.to_arrow

    def watched(builder: LanceVectorQueryBuilder) -> pyarrow.Table:
        read.extend(re.findall(r"partitions_searched=(\d+)", builder.analyze_plan()))
        return whole(builder)

    monkeypatch.setattr(LanceVectorQueryBuilder, "to_arrow", watched)

    def searched(top: int, where: str = "") -> list[int]:
        read.clear()
        indexed.search("a red heart", top, where=where)
        return [*map(int, read)]

    assert searched(1) == [2]
    assert searched(300) == [2, 8]  # there are not so many in two
    assert indexed.store.items.count_rows("line = 0 and width = 9") in range(55, 70)  # a fifth
    assert searched(1, "width < 12") == [3] and searched(1, "width = 9") == [8]
    assert searched(1, "path = 'a/5.png'") == []  # exact


def test_an_index_is_measured_on_what_is_searched(indexed: Collection) -> None:
    lines = indexed.store.items.search().with_row_id(True).select(["line"]).limit(None).to_arrow().to_pylist()
    captions = {row["_rowid"] for row in lines if row["line"]}
    for kind, asked in queries(indexed.store, indexed.embedder).items():
        assert len(asked.vectors) == (12 if kind.startswith("picture") else 67)
        found = set[int]().union(*approximate.answers(indexed.store, asked, 0)[0])
        assert found and (found <= captions if kind.endswith("captions") else not found & captions)


def test_of_nothing_there_is_no_index(collection: Collection, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert collection.index(tmp_path / "empty", above=0).approximate is None
    assert collection.search("a red heart") == collection.search("a red heart", near=0.9) == []
    assert collection.duplicates() == []


def test_more_than_there_is_may_be_asked_for(indexed: Collection) -> None:
    """The database made room for all of them, and the process was aborted."""
    assert len(indexed.search("a red heart", 10**12)) == len(indexed.search("a red heart", 10**12, near=1.0)) == 12


@pytest.mark.parametrize(
    ("where", "told"), [("width = 'a'", "could not convert to literal of type 'Int32'"), ("1/0 = 1", "Divide by zero")]
)
def test_what_is_no_condition_is_one_line_with_the_reason(indexed: Collection, where: str, told: str) -> None:
    for ask in (lambda: indexed.search("a heart", where=where), lambda: indexed.duplicates(where=where)):
        with pytest.raises(ValueError, match="where must be a condition on columns") as error:
            ask()
        assert told in str(error.value) and "\n" not in str(error.value) and ".rs" not in str(error.value)


def test_a_text_that_loses_its_end_is_told(indexed: Collection) -> None:
    with pytest.warns(UserWarning, match="1 of 1 texts do not fit into 77 ids"):
        indexed.search("heart " * 100)


def test_what_lies_before_a_comment_and_after_is_one_condition() -> None:
    asked = Query(np.zeros(2, np.float16), "text", where="width > 3 -- wide")
    assert asked.condition == "line = 0 and (width > 3 -- wide\n)"


def test_equal_pictures_are_near_duplicates_from_a_cosine_of_1_on(
    indexed: Collection, pictures: Path, draw: Callable[[Path, int], None]
) -> None:
    """Rows of 16 bits are not as long as 1: of some the product with itself is 0.9998."""
    for seed in range(12):
        draw(pictures / f"again/{seed}.png", seed)
    indexed.index(pictures)
    assert [len(group) for group in indexed.duplicates(1.0)] == [2] * 12
    found = indexed.search("a red heart", 12, near=1.0)
    assert [len(one.also) for one in found] == [1] * 12
    assert all(one.score == pytest.approx(1, abs=1e-6) for group in indexed.duplicates(1.0) for one in group)
    with pytest.raises(ValueError, match="near must be a cosine above 0 and at most 1, got near=94"):
        indexed.search("a red heart", near=94)


def test_of_equal_captions_any_is_the_nearest_when_the_index_is_measured(
    indexed: Collection, pictures: Path, draw: Callable[[Path, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They counted by their rows: recall was next to 0, and every partition was read."""
    monkeypatch.setattr(approximate, "SHARE", 40)
    words = ["dog", "a red heart", "two old houses by the sea", "snow!", "7 clocks"]
    for seed in range(300):
        draw(pictures / f"more/{seed}.png", 1000 + seed)
        (pictures / f"more/{seed}.txt").write_text(words[seed % 5], "utf-8")
    built = indexed.index(pictures, above=320).approximate
    assert built and all(found.recall >= approximate.GOAL for found in built.measured.values())


def test_what_is_neither_a_text_nor_a_picture_is_told(indexed: Collection) -> None:
    for query in (["a red heart", "a clock"], None, np.zeros((8, 8, 3), np.uint8)):
        with pytest.raises(ValueError, match=rf"query must be one text, .*, got {type(query).__name__}"):
            unwrap(Collection.search)(indexed, query, 2)  # users have no types checked
