"""The textures are where they are said to be, and nothing else tells the class."""

import pickle
import re

import numpy as np
import pytest

from vitkit.data.demo.textures import PATCH, PlantedTextures, load_planted, load_planted_test
from vitkit.data.sources.open import open_source

GRID = (5, 7)


@pytest.fixture(scope="module")
def source() -> PlantedTextures:
    return PlantedTextures(400, 3, GRID)


def cell(source: PlantedTextures, index: int, row: int, column: int) -> np.ndarray:
    return source.pixels[index][PATCH * row :, PATCH * column :][:PATCH, :PATCH].astype(float) - 128


def measure_similarity(patch: np.ndarray) -> dict[str, float]:
    """Return the similarity of neighbouring pixels, by the direction of bars."""
    pairs = {
        "horizontal": (patch[:, 1:], patch[:, :-1]),
        "vertical": (patch[1:], patch[:-1]),
        "rising": (patch[1:, :-1], patch[:-1, 1:]),
        "falling": (patch[1:, 1:], patch[:-1, :-1]),
    }
    return {name: -np.abs(one - other).mean() for name, (one, other) in pairs.items()}


def test_bars_in_the_cell_have_the_direction_of_the_class(source: PlantedTextures) -> None:
    right = 0
    for index in range(len(source)):
        similarities = measure_similarity(cell(source, index, *source.cells[index]))
        right += max(similarities, key=lambda name: similarities[name]) == source.class_names[source.labels[index]]
    assert right >= 0.97 * len(source)


def test_other_cells_do_not_depend_on_the_class(source: PlantedTextures) -> None:
    """Read in the same way, the cell beside it does as well as chance."""
    right = 0
    for index in range(len(source)):
        row, column = source.cells[index]
        similarities = measure_similarity(cell(source, index, row, (column + 1) % GRID[1]))
        right += max(similarities, key=lambda name: similarities[name]) == source.class_names[source.labels[index]]
    assert abs(right / len(source) - 0.25) < 0.07  # 3 deviations


def test_three_more_cells_differ_from_noise_in_every_picture(source: PlantedTextures) -> None:
    calm = []
    for index in range(40):
        spread = [cell(source, index, row, column).std() for row in range(GRID[0]) for column in range(GRID[1])]
        calm.append(sum(value > 57 for value in spread))  # bars: sqrt(60^2 + 25^2) = 65; noise: 40
    assert 2 <= np.mean(calm) <= 4  # two of the three are darker or lighter, not wider


def test_labels_cells_and_masks_agree(source: PlantedTextures) -> None:
    assert np.bincount(source.labels).tolist() == [100] * 4
    assert source.get_mask(9).shape == GRID and source.get_mask(9).sum() == 1
    assert np.argwhere(source.get_mask(9)).tolist() == [source.cells[9].tolist()]
    assert len({tuple(where) for where in source.cells.tolist()}) == 35  # every cell is used
    picture = source.read_image(9)
    assert (picture.mode, picture.size) == ("L", (56, 40))
    assert np.array_equal(np.asarray(picture), source.pixels[9])
    assert (source.get_name(9), source.count_bytes(9)) == ("planted[9]", len(source.read_content(9)))


def test_images_depend_on_the_seed_only(source: PlantedTextures) -> None:
    again, other = PlantedTextures(400, 3, GRID), PlantedTextures(400, 4, GRID)
    assert np.array_equal(again.pixels, source.pixels) and np.array_equal(again.cells, source.cells)
    assert not np.array_equal(other.cells, source.cells)
    assert pickle.loads(pickle.dumps(source)).read_content(5) == source.read_content(5)


def test_training_and_test_images_are_disjoint() -> None:
    training, test = open_source("planted"), open_source("planted-test")
    assert (len(training), len(test)) == (4000, 1000) and test.read_image(0).size == (48, 48)
    contents = {training.read_content(index) for index in range(len(training))}
    assert len(contents) == 4000 and not contents & {test.read_content(index) for index in range(len(test))}
    assert test.get_name(0) == "planted-test[0]"
    assert np.array_equal(load_planted().cells, training.cells)
    assert np.array_equal(load_planted_test().cells, test.cells)


@pytest.mark.parametrize("grid", [(1, 3), (0, 9)])
def test_small_grid_is_refused(grid: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=re.escape(f"grid must hold 4 patches at least, got grid={grid}")):
        PlantedTextures(4, 0, grid)
