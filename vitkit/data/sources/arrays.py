"""Images held in memory as an array."""

from collections.abc import Sequence

import numpy as np
from PIL import Image

from vitkit.data.order import Labels
from vitkit.data.sources.source import Source


class Arrays(Source):
    """Grey or RGB images in memory, as bytes (count, height, width[, 3])."""

    def __init__(self, title: str, pictures: np.ndarray, class_names: Sequence[str], labels: Labels) -> None:
        super().__init__(class_names, labels)
        self.title = title
        self.pictures = pictures

    def get_name(self, index: int) -> str:
        return f"{self.title}[{index}]"

    def read_content(self, index: int) -> bytes:
        return self.pictures[index].tobytes()

    def count_bytes(self, index: int) -> int:
        return self.pictures[index].nbytes

    def read_image(self, index: int, at_least: tuple[int, int] | None = None) -> Image.Image:
        return Image.fromarray(self.pictures[index])

    def is_sequence(self, index: int) -> bool:
        return False
