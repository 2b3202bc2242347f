from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitkit.data.duplicates import find_shared_samples, format_shared, match_keys
from vitkit.data.sources.arrays import Arrays
from vitkit.data.sources.source import Files


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., Files]:
    def files(contents: list[bytes], folder: str = "train") -> Files:
        (tmp_path / folder).mkdir()
        paths = [tmp_path / folder / f"{index}.png" for index in range(len(contents))]
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
        return Files(list(map(str, paths)), ["a"], [0] * len(contents))

    return files


END = bytes(range(256)) * 32  # 8 KiB


def test_equal_files_of_different_names_match(files: Callable[..., Files]) -> None:
    train = files([b"a", b"b" + END, b"c" + END, b"a", b"", END])
    val = files([b"c" + END, b"x" + END, b"a", b"aa", b""], "val")
    assert find_shared_samples(train, range(6), val, range(5)) == [(2, 0), (0, 2), (4, 4)]
    assert find_shared_samples(train, [0, 1, 3], val, [0, 1, 2, 3]) == [(0, 2)]
    assert find_shared_samples(train, [5, 1], val, [1, 3]) == []


def test_one_source_may_be_split(files: Callable[..., Files]) -> None:
    source = files([b"a", b"b", b"a", b"c"])
    assert find_shared_samples(source, [0, 1], source, [2, 3]) == [(0, 2)]


def test_unreadable_file_matches_none(files: Callable[..., Files]) -> None:
    train, val = files([b"a", b"b"]), files([b"a", b"b"], "val")
    Path(train.files[0]).unlink()
    assert find_shared_samples(train, [0, 1], val, [0, 1]) == [(1, 1)]


def test_files_of_unique_length_are_not_read(files: Callable[..., Files]) -> None:
    class Watched(Files):
        def read_content(self, index: int) -> bytes:
            opened.append(index)
            return super().read_content(index)

    opened: list[int] = []
    train = files([b"a", b"bb", b"x" + END, END + b"x"])
    val = Watched(files([b"ccc", b"dd", b"y" + END, END + b"y"], "val").files, ["a"], [0] * 4)
    assert find_shared_samples(train, range(4), val, range(4)) == []
    assert opened == [2]  # of the length of another, with the same end


def test_pictures_in_memory_are_compared_by_their_pixels() -> None:
    pixels = np.arange(60, dtype=np.uint8).reshape(5, 4, 3)
    train, val = Arrays("one", pixels, "a", [0] * 5), Arrays("other", pixels[[4, 0]], "a", [0] * 2)
    assert find_shared_samples(train, range(5), val, range(2)) == [(4, 0), (0, 1)]
    assert isinstance(train.read_image(0), Image.Image)


def test_equal_keys_match_the_first_sample() -> None:
    assert match_keys({7: "a", 5: "b", 3: "a"}, {0: "a", 1: "c", 2: "b", 4: "a"}) == [(7, 0), (5, 2), (7, 4)]
    assert match_keys({}, {0: "a"}) == match_keys({0: "a"}, {}) == []


def test_shared_samples_are_reported_in_one_line() -> None:
    assert format_shared(2, 3, "pictures", ("a.png", "b.png")) == (
        "2 of 3 validation pictures are also in training, such as a.png = b.png; the score on them is no evidence"
    )
    assert format_shared(1, 1200, "texts", ("a", "b")) == (
        "1 of 1,200 validation texts is also in training, such as a = b; the score on it is no evidence"
    )
