import re
import shutil
from collections.abc import Callable
from inspect import unwrap
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from lancedb.query import LanceVectorQueryBuilder
from PIL import Image

from vitkit.data.preprocess import read_image
from vitkit.retrieval import approximate, near_duplicates
from vitkit.retrieval.collection import Collection
from vitkit.retrieval.near_duplicates import find_leaders, measure_distance
from vitkit.retrieval.query import Query, count_probes
from vitkit.retrieval.update import make_queries

KINDS = {"picture", "text", "picture for captions", "text for captions"}


@pytest.fixture
def indexed(collection: Collection, pictures: Path) -> Collection:
    collection.index(pictures)
    return collection


def rank_paths(collection: Collection, root: Path, vector: np.ndarray) -> list[str]:
    """Return the paths by their cosines, computed here."""
    paths = sorted(root.rglob("?.png"))
    vectors = np.stack([collection.embedder.embed_picture(read_image(path)) for path in paths]).astype(np.float32)
    return [str(paths[row].relative_to(root)) for row in np.argsort(-(vectors @ vector.astype(np.float32)))]


def test_text_finds_pictures_in_the_order_of_their_cosines(indexed: Collection, pictures: Path) -> None:
    matches = indexed.search("a red heart", 5)
    vector = indexed.embedder.embed_text("a red heart")
    assert [match.path for match in matches] == rank_paths(indexed, pictures, vector)[:5]
    exact = indexed.embedder.embed_picture(read_image(matches[0].file)).astype(np.float32) @ vector.astype(np.float32)
    assert matches[0].score == pytest.approx(exact, abs=2e-3)
    assert len(indexed.search("a red heart", 100)) == 12


def test_picture_finds_itself_first(indexed: Collection, pictures: Path) -> None:
    path = pictures / "b/3.png"
    matches = indexed.search(path, 4)
    assert [match.path for match in matches] == rank_paths(
        indexed, pictures, indexed.embedder.embed_picture(read_image(path))
    )[:4]
    assert matches[0].path == "b/3.png" and matches[0].score == pytest.approx(1, abs=1e-3)
    with Image.open(path) as image:
        assert indexed.search(image, 4) == matches


def test_text_and_picture_find_captions(indexed: Collection, pictures: Path) -> None:
    assert indexed.search("picture 2", 1, captions=True)[0].caption == "picture 2"
    matches = indexed.search(pictures / "a/0.png", 100, captions=True)
    assert len(matches) == 8 and {match.caption for match in matches} == {
        *(f"picture {n}" for n in range(4)),
        "seen twice",
    }
    assert all(better.score >= worse.score for better, worse in pairwise(matches))


def test_condition_holds_for_all_matches(indexed: Collection) -> None:
    matches = indexed.search("a red heart", 3, where="path like 'b/%' and width > 8")
    assert len(matches) == 3 and all(match.path.startswith("b/") and match.width > 8 for match in matches)
    assert len(indexed.search("a red heart", 3, where="path = 'a/5.png' -- alone")) == 1
    assert indexed.search("a red heart", 3, where="1 = 1 or 1 = 1", captions=True)[0].caption
    with pytest.raises(
        ValueError, match="where must be a condition on columns, got where='wide > 3': .*No field named wide"
    ):
        indexed.search("a red heart", where="wide > 3")
    with pytest.raises(ValueError, match="top must be at least 1, got top=0"):
        indexed.search("a red heart", 0)


def test_near_duplicates_are_replaced_by_further_matches(
    indexed: Collection, pictures: Path, draw: Callable[[Path, int], None]
) -> None:
    copies = {f"copy.{kind}" for kind in ("bmp", "gif", "ppm", "tiff", "tif", "webp")}
    with Image.open(pictures / "a/0.png") as image:
        for name in copies:
            image.save(pictures / name, lossless=True)
    indexed.index(pictures)
    assert {match.path for match in indexed.search(pictures / "a/0.png", 7)} == {"a/0.png", *copies}
    matches = indexed.search(pictures / "a/0.png", 5, near=0.99)
    assert len(matches) == 5 and len(matches[0].also) == 6
    assert {matches[0].path, *(match.path for match in matches[0].also)} == {"a/0.png", *copies}
    identical, similar = indexed.duplicates(0.99)
    assert [match.path for match in identical.matches] == ["copy.tif", "copy.tiff"]
    assert {match.path for match in similar.matches} == {"a/0.png", *copies - {"copy.tiff"}} and similar.lowest > 0.99
    assert indexed.duplicates(0.99, where="path like 'a/%'") == []


@pytest.mark.parametrize("pairs", [1, 20, 10**6])  # that are compared at a time
def test_members_of_a_group_are_near_the_first(pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were near some member: a chain from 0 to 180 degrees was one group, with a similarity of -1."""
    monkeypatch.setattr(near_duplicates, "PAIRS", pairs)
    angles = torch.arange(0.0, 181.0, 10.0).deg2rad()
    vectors = torch.stack([angles.cos(), angles.sin()], dim=1)
    groups = find_leaders(vectors, near=np.cos(np.deg2rad(20)).item())
    assert groups == [[row, row + 1, row + 2] for row in range(0, 18, 3)]
    mixed = find_leaders(vectors[[0, 9, 1, 18, 2, 10, 3]], near=np.cos(np.deg2rad(20)).item())
    assert mixed == [[0, 2, 4], [1, 5]]


def test_identical_files_are_grouped_by_content_whatever_the_model(
    indexed: Collection, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("c.png", "b/d.png"):
        shutil.copy(pictures / "a/0.png", pictures / name)
    indexed.index(pictures)
    monkeypatch.setattr(near_duplicates, "get_vectors", lambda table: np.ones((len(table), 24), np.float16))
    for near in (None, 1.0):
        group, *others = indexed.duplicates(near)
        assert group.kind == "identical files" and group.title == "3 identical files, lowest similarity 1.0000"
        assert [match.path for match in group.matches] == ["a/0.png", "b/d.png", "c.png"]
        assert all(other.kind == "near-duplicates" for other in others)
    others = indexed.duplicates(0.0001)[1:]
    assert not {"b/d.png", "c.png"} & {match.path for other in others for match in other.matches}


def test_default_similarity_follows_the_distances_in_the_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was 0.94 for any model: of one whose similarities begin at 0.95, all pictures were near-duplicates."""
    monkeypatch.setattr(near_duplicates, "PAIRS", 2**14)
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(600, 16, generator=generator)
    for shift in (0.0, 20.0):  # 20: all vectors are close to one direction
        vectors = torch.nn.functional.normalize(directions + shift, dim=1)
        distance = measure_distance(vectors)
        exact = (1 - (vectors @ vectors.T).sort(descending=True).values[:, 10]).median().item()
        assert distance == pytest.approx(exact, rel=1e-3)
        assert find_leaders(vectors, 1 - near_duplicates.SHARE * distance) == []
        copies = torch.nn.functional.normalize(vectors + 1e-3 * distance, dim=1)
        twice = torch.cat([vectors, copies])  # each picture has a copy
        near = 1 - near_duplicates.SHARE * measure_distance(twice)
        assert find_leaders(twice, near) == [[row, row + 600] for row in range(600)]
    assert [measure_distance(vectors[:count]) for count in (0, 1)] == [0, 0]
    assert measure_distance(vectors[:2]) == pytest.approx(1 - (vectors[0] @ vectors[1]).item(), rel=1e-3)


def test_index_is_built_above_a_size_with_its_recall(
    indexed: Collection, pictures: Path, draw: Callable[[Path, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approximate, "PARTITION_ROWS", 40)
    for seed in range(300):
        draw(pictures / f"more/{seed}.png", 1000 + seed)
    assert indexed.index(pictures, above=321).approximate is None
    exact = indexed.search("a red heart", 20)
    built = indexed.index(pictures, above=320).approximate
    assert built and built.rows == 320 and set(built.measurements) == KINDS
    assert all(0.95 <= figures.recall <= 1 and figures.probes <= 8 for figures in built.measurements.values())
    assert approximate.read_index(indexed.store) == built
    assert indexed.index(pictures, above=320).approximate is None  # it exists
    matches = indexed.search("a red heart", 20)
    assert len({match.path for match in matches} & {match.path for match in exact}) >= 18
    monkeypatch.setattr(approximate, "MIN_ROWS", 0)  # search is approximate even if a condition leaves few rows
    assert len(indexed.search("a red heart", 10, where="path like 'a/%'")) == 6
    draw(pictures / "new.png", 7)
    indexed.index(pictures)
    assert indexed.search(pictures / "new.png", 1)[0].score > 0.999  # rows added after the index was built are found
    for seed in range(330):
        draw(pictures / f"again/{seed}.png", 5000 + seed)
    assert indexed.index(pictures, above=320).approximate  # twice as many
    half = indexed.store.items.count_rows() // 2 + 1
    for turn in (1, 2):  # as many rows as before, of other pictures
        index = approximate.read_index(indexed.store)
        assert index and index.fresh == (turn - 1) * half
        for seed in range(half):
            draw(pictures / f"other/{seed}.png", turn * 10000 + seed)
        assert bool(indexed.index(pictures, above=320).approximate) == (turn == 2)


def test_search_is_exact_if_all_partitions_miss_the_recall(
    indexed: Collection, pictures: Path, draw: Callable[[Path, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approximate, "PARTITION_ROWS", 40)
    for seed in range(300):
        draw(pictures / f"more/{seed}.png", 1000 + seed)
    assert indexed.index(pictures, above=320).approximate
    query = Query(indexed.embedder.embed_text("a red heart"), "text")
    assert count_probes(indexed.store, query) == 8
    monkeypatch.setattr(approximate, "MIN_RECALL", 1.1)
    assert count_probes(indexed.store, query) == count_probes(indexed.store, query._replace(where="line = 0")) == 0


def test_query_reads_the_measured_number_of_partitions(
    indexed: Collection, pictures: Path, draw: Callable[[Path, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("PARTITION_ROWS", 40), ("PROBES", (2,)), ("MIN_RECALL", 0), ("MIN_ROWS", 10)):
        monkeypatch.setattr(approximate, name, value)
    for seed in range(300):
        draw(pictures / f"more/{seed}.png", 1000 + seed)
    built = indexed.index(pictures, above=320).approximate
    assert built and {figures.probes for figures in built.measurements.values()} == {2}
    assert {tuple(index.columns): index.index_type for index in indexed.store.items.list_indices()} == {
        ("vector",): "IvfSq",
        ("line",): "Bitmap",  # without it every query reads the column
    }
    partitions, to_arrow = list[str](), LanceVectorQueryBuilder.to_arrow

    def record_partitions(builder: LanceVectorQueryBuilder) -> pyarrow.Table:
        partitions.extend(re.findall(r"partitions_searched=(\d+)", builder.analyze_plan()))
        return to_arrow(builder)

    monkeypatch.setattr(LanceVectorQueryBuilder, "to_arrow", record_partitions)

    def count_partitions(top: int, where: str = "") -> list[int]:
        partitions.clear()
        indexed.search("a red heart", top, where=where)
        return [*map(int, partitions)]

    assert count_partitions(1) == [2]
    assert count_partitions(300) == [2, 8]  # two hold fewer than 300 rows
    assert indexed.store.items.count_rows("line = 0 and width = 9") in range(55, 70)  # a fifth
    assert count_partitions(1, "width < 12") == [3] and count_partitions(1, "width = 9") == [8]
    assert count_partitions(1, "path = 'a/5.png'") == []  # exact


def test_index_is_measured_on_the_rows_that_are_searched(indexed: Collection) -> None:
    lines = indexed.store.items.search().with_row_id(True).select(["line"]).limit(None).to_arrow().to_pylist()
    captions = {row["_rowid"] for row in lines if row["line"]}
    for kind, queries in make_queries(indexed.store, indexed.embedder).items():
        assert len(queries.vectors) == (12 if kind.startswith("picture") else 67)
        neighbours = set[int]().union(*approximate.find_neighbours(indexed.store, queries, 0)[0])
        assert neighbours
        assert neighbours <= captions if kind.endswith("captions") else not neighbours & captions


def test_empty_collection_has_no_index(collection: Collection, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert collection.index(tmp_path / "empty", above=0).approximate is None
    assert collection.search("a red heart") == collection.search("a red heart", near=0.9) == []
    assert collection.duplicates() == []


def test_top_may_exceed_the_number_of_rows(indexed: Collection) -> None:
    """The database allocated `top` rows, and the process was aborted."""
    assert len(indexed.search("a red heart", 10**12)) == len(indexed.search("a red heart", 10**12, near=1.0)) == 12


@pytest.mark.parametrize(
    ("where", "reason"),
    [("width = 'a'", "could not convert to literal of type 'Int32'"), ("1/0 = 1", "Divide by zero")],
)
def test_invalid_condition_is_a_one_line_error_with_the_reason(indexed: Collection, where: str, reason: str) -> None:
    for ask in (lambda: indexed.search("a heart", where=where), lambda: indexed.duplicates(where=where)):
        with pytest.raises(ValueError, match="where must be a condition on columns") as error:
            ask()
        assert reason in str(error.value) and "\n" not in str(error.value) and ".rs" not in str(error.value)


@pytest.mark.parametrize(
    "where",
    [
        "width > 99) or (width > 0",
        "width > 0) -- (",
        "width > 0) or line in (1, 2",
        "path = ') or (') or (1 = 1",
        "width > 0 /* ( */) or (1 = 1",
        "width > 99 /* /* */ ( */) or (1 = 1",
        "path = $$($$) or (1 = 1",
        r"path = e'\'(') or (1 = 1 or path = '\'",
        "(width > 99)) or ((1 = 1)",
        "width > 99 -- (\r) or (1 = 1",
    ],
)
def test_condition_that_closes_a_bracket_of_the_search_is_refused(indexed: Collection, where: str) -> None:
    """Captions were returned among pictures."""
    for ask in (lambda: indexed.search("a heart", where=where), lambda: indexed.duplicates(where=where)):
        with pytest.raises(ValueError, match="where must be a condition on columns"):
            ask()


@pytest.mark.parametrize(
    ("where", "count"),
    [
        ("(path like 'a/%') or (width in (1, 2))", 6),
        ("not ((path = ')') or (path = '''(')) -- ) or (", 12),
        ("path != '(' /* ) */ and `width` - 1 > 3 / 2", 12),
        ("\"width\" > 0 and path not like '%)%'", 12),
    ],
)
def test_condition_may_have_brackets_in_texts_and_comments(indexed: Collection, where: str, count: int) -> None:
    assert len(indexed.search("a heart", 100, where=where)) == count


def test_truncated_text_is_a_warning(indexed: Collection) -> None:
    with pytest.warns(UserWarning, match="1 of 1 texts do not fit into 77 ids"):
        indexed.search("heart " * 100)


def test_query_that_the_vocabulary_lacks_is_a_warning(indexed: Collection) -> None:
    with pytest.warns(UserWarning, match="vocabulary knows 'ꙮꙮ' only as bytes or as unknown: scores mean little"):
        indexed.search("ꙮꙮ")


def test_condition_may_end_in_a_comment() -> None:
    query = Query(np.zeros(2, np.float16), "text", where="width > 3 -- wide")
    assert query.condition == "line = 0 and (width > 3 -- wide\n)"


def test_equal_pictures_are_near_duplicates_at_a_cosine_of_1(
    indexed: Collection, pictures: Path, draw: Callable[[Path, int], None]
) -> None:
    """Rounded to 16 bits, some vectors have a product of 0.9998 with themselves."""
    for seed in range(12):
        draw(pictures / f"again/{seed}.png", seed)
    indexed.index(pictures)
    groups = indexed.duplicates(1.0)
    assert [(len(group.matches), group.kind) for group in groups] == [(2, "identical files")] * 12
    matches = indexed.search("a red heart", 12, near=1.0)
    assert [len(match.also) for match in matches] == [1] * 12
    assert all(match.score == pytest.approx(1, abs=1e-6) for group in groups for match in group.matches)
    with pytest.raises(ValueError, match="near must be a cosine above 0 and at most 1, got near=94"):
        indexed.search("a red heart", near=94)


def test_recall_counts_equal_captions_as_equally_near(
    indexed: Collection, pictures: Path, draw: Callable[[Path, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recall compared rows: it was close to 0, and every partition was read."""
    monkeypatch.setattr(approximate, "PARTITION_ROWS", 40)
    words = ["dog", "a red heart", "two old houses by the sea", "snow!", "7 clocks"]
    for seed in range(300):
        draw(pictures / f"more/{seed}.png", 1000 + seed)
        (pictures / f"more/{seed}.txt").write_text(words[seed % 5], "utf-8")
    built = indexed.index(pictures, above=320).approximate
    assert built and all(figures.recall >= approximate.MIN_RECALL for figures in built.measurements.values())


def test_query_of_another_type_is_refused(indexed: Collection) -> None:
    for query in (["a red heart", "a clock"], None, np.zeros((8, 8, 3), np.uint8)):
        with pytest.raises(ValueError, match=rf"query must be one text, .*, got {type(query).__name__}"):
            unwrap(Collection.search)(indexed, query, 2)  # past the type check of the tests
