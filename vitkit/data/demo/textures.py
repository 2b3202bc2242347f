"""Pictures of which is known what tells their class, and where: one patch among noise."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Int64, UInt8
from PIL import Image

from vitkit.data.sources.source import Source

PATCH = 8  # pixels
GREY, CONTRAST, GRAIN, NOISE = 128, 60, 25, 40  # of 255: the mean, of bars from it, deviations on and beside a texture
TRAIN, TEST = 4_000, 1_000

Texture = Callable[[np.ndarray, np.ndarray], np.ndarray]  # from rows and columns of pixels to 0 and 1

CLASSES: dict[str, Texture] = {
    "horizontal": lambda row, column: row // 2 % 2,
    "vertical": lambda row, column: column // 2 % 2,
    "rising": lambda row, column: (row + column) // 2 % 2,
    "falling": lambda row, column: (row - column) // 2 % 2,
}
# In every picture, and so of no class.
DISTRACTORS: tuple[Texture, ...] = (
    lambda row, column: (row // 2 + column // 2) % 2,
    lambda row, column: (row // 2 % 2) * (column // 2 % 2),
    lambda row, column: np.maximum(row // 2 % 2, column // 2 % 2),
)


class Planted(Source):
    """Grey pictures of noise on a grid of patches of 8 pixels. One holds the bars of its class, three others patterns
    that every picture has; what a map of the class should point at is its cell. All follows from the seed.

    `cells` are the row and the column of each picture's bars, `pixels` (count, height, width) bytes.

    Args: grid: (rows, columns) of patches, at least four of them.
    """

    def __init__(self, count: int, seed: int, grid: tuple[int, int] = (6, 6), title: str = "planted") -> None:
        textures = 1 + len(DISTRACTORS)
        if min(grid) < 1 or grid[0] * grid[1] < textures:
            raise ValueError(f"grid must hold {textures} patches at least, got grid={grid}")
        super().__init__(tuple(CLASSES), [index % len(CLASSES) for index in range(count)])
        self.grid, self.title = grid, title
        drawn = np.random.default_rng(seed)
        order = drawn.random((count, grid[0] * grid[1])).argsort(axis=1)
        places = np.stack(np.divmod(order[:, :textures], grid[1]), axis=-1)  # (count, textures, 2)
        self.cells: Int64[np.ndarray, "count 2"] = places[:, 0]
        self.pixels: UInt8[np.ndarray, "count height width"] = self.draw(places, drawn)

    def draw(self, places: Int64[np.ndarray, "count textures 2"], drawn: np.random.Generator) -> np.ndarray:
        """Args: places: the row and the column of the bars, and of each pattern that every picture has."""
        rows, columns = self.grid
        noise = drawn.standard_normal((len(self), rows * PATCH, columns * PATCH), dtype=np.float32)
        patches = noise.reshape(len(self), rows, PATCH, columns, PATCH).swapaxes(2, 3)  # the same memory
        scale = np.full((len(self), *self.grid, 1, 1), NOISE, np.float32)
        phases = drawn.integers(4, size=(2, *places.shape[:2], 1, 1))
        row, column = np.mgrid[:PATCH, :PATCH][:, None, None] + phases
        bars = np.zeros(patches.shape, np.float32)
        kinds = [
            (texture, 0, np.equal(self.labels, label).nonzero()[0]) for label, texture in enumerate(CLASSES.values())
        ]
        kinds += [(texture, place, np.arange(len(self))) for place, texture in enumerate(DISTRACTORS, 1)]
        for texture, place, some in kinds:
            where = (some, *places[some, place].T)
            bars[where] = CONTRAST * (2 * texture(row[some, place], column[some, place]) - 1)
            scale[where] = GRAIN
        patches[...] = GREY + scale * patches + bars
        return noise.round().clip(0, 255).astype(np.uint8)

    def get_name(self, index: int) -> str:
        return f"{self.title}[{index}]"

    def read_content(self, index: int) -> bytes:
        return self.pixels[index].tobytes()

    def count_bytes(self, index: int) -> int:
        return self.pixels[index].nbytes

    def read_image(self, index: int, at_least: tuple[int, int] | None = None) -> Image.Image:
        return Image.fromarray(self.pixels[index])

    def mask(self, index: int) -> Bool[np.ndarray, "h w"]:
        """True where the bars are."""
        mask = np.zeros(self.grid, dtype=bool)
        mask[tuple(self.cells[index])] = True
        return mask


def planted() -> Planted:
    """4,000 pictures of 48x48 pixels: noise, and in one of 36 patches bars that run in one of 4 directions."""
    return Planted(TRAIN, 0)


def planted_test() -> Planted:
    """1,000 more, of another seed."""
    return Planted(TEST, 1, title="planted-test")
