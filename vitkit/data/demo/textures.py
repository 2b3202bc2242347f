"""Images whose class depends on one known patch among noise."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Int64, UInt8
from PIL import Image

from vitkit.data.sources.source import Source

PATCH = 8  # pixels
# Of 255: the mean, the distance of bars from it, the standard deviations of noise on and beside a texture.
GREY, CONTRAST, GRAIN, NOISE = 128, 60, 25, 40
TRAIN, TEST = 4_000, 1_000

Texture = Callable[[np.ndarray, np.ndarray], np.ndarray]  # from rows and columns of pixels to 0 and 1

CLASSES: dict[str, Texture] = {
    "horizontal": lambda row, column: row // 2 % 2,
    "vertical": lambda row, column: column // 2 % 2,
    "rising": lambda row, column: (row + column) // 2 % 2,
    "falling": lambda row, column: (row - column) // 2 % 2,
}
# In every image, so they tell nothing about the class.
DISTRACTORS: tuple[Texture, ...] = (
    lambda row, column: (row // 2 + column // 2) % 2,
    lambda row, column: (row // 2 % 2) * (column // 2 % 2),
    lambda row, column: np.maximum(row // 2 % 2, column // 2 % 2),
)


class PlantedTextures(Source):
    """Grey images of noise on a grid of patches of 8 pixels. One patch holds the bars of the class, three others hold
    patterns that every image has; a map of the class should point at the first. The seed determines all.

    `cells` are the row and the column of each image's bars, `pixels` (count, height, width) bytes.

    Args: grid: (rows, columns) of patches, at least four of them.
    """

    def __init__(self, count: int, seed: int, grid: tuple[int, int] = (6, 6), title: str = "planted") -> None:
        textures = 1 + len(DISTRACTORS)
        if min(grid) < 1 or grid[0] * grid[1] < textures:
            raise ValueError(f"grid must hold {textures} patches at least, got grid={grid}")
        super().__init__(tuple(CLASSES), [index % len(CLASSES) for index in range(count)])
        self.grid, self.title = grid, title
        generator = np.random.default_rng(seed)
        order = generator.random((count, grid[0] * grid[1])).argsort(axis=1)
        places = np.stack(np.divmod(order[:, :textures], grid[1]), axis=-1)  # (count, textures, 2)
        self.cells: Int64[np.ndarray, "count 2"] = places[:, 0]
        self.pixels: UInt8[np.ndarray, "count height width"] = self.draw_pixels(places, generator)

    def draw_pixels(self, places: Int64[np.ndarray, "count textures 2"], generator: np.random.Generator) -> np.ndarray:
        """Draw all images. Args: places: the row and the column of the bars and of the patterns in every image."""
        rows, columns = self.grid
        noise = generator.standard_normal((len(self), rows * PATCH, columns * PATCH), dtype=np.float32)
        patches = noise.reshape(len(self), rows, PATCH, columns, PATCH).swapaxes(2, 3)  # the same memory
        scale = np.full((len(self), *self.grid, 1, 1), NOISE, np.float32)
        phases = generator.integers(4, size=(2, *places.shape[:2], 1, 1))
        row, column = np.mgrid[:PATCH, :PATCH][:, None, None] + phases
        bars = np.zeros(patches.shape, np.float32)
        kinds = [
            (texture, 0, np.equal(self.labels, label).nonzero()[0]) for label, texture in enumerate(CLASSES.values())
        ]
        kinds += [(texture, place, np.arange(len(self))) for place, texture in enumerate(DISTRACTORS, 1)]
        for texture, place, images in kinds:
            patch = (images, *places[images, place].T)
            bars[patch] = CONTRAST * (2 * texture(row[images, place], column[images, place]) - 1)
            scale[patch] = GRAIN
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

    def get_mask(self, index: int) -> Bool[np.ndarray, "h w"]:
        """Return a mask of the grid that is True at the bars."""
        mask = np.zeros(self.grid, dtype=bool)
        mask[tuple(self.cells[index])] = True
        return mask


def load_planted() -> PlantedTextures:
    """Load 4,000 images of 48x48 pixels: noise, and in one of 36 patches bars that run in one of 4 directions."""
    return PlantedTextures(TRAIN, 0)


def load_planted_test() -> PlantedTextures:
    """Load 1,000 more, of another seed."""
    return PlantedTextures(TEST, 1, title="planted-test")
