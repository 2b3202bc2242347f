"""A part of a source."""

from collections.abc import Sequence

from PIL import Image, ImageFile

from vitkit.data.sources.source import Source


class Subset(Source):
    """Some samples of another source."""

    def __init__(self, whole: Source, samples: Sequence[int]) -> None:
        super().__init__(whole.class_names, [whole.labels[sample] for sample in samples])
        self.whole, self.samples, self.omissions = whole, samples, whole.omissions

    def get_name(self, index: int) -> str:
        return self.whole.get_name(self.samples[index])

    def get_relative_name(self, index: int) -> str:
        return self.whole.get_relative_name(self.samples[index])

    def read_content(self, index: int) -> bytes:
        return self.whole.read_content(self.samples[index])

    def count_bytes(self, index: int) -> int:
        return self.whole.count_bytes(self.samples[index])

    def read_image(self, index: int, at_least: tuple[int, int] | None = None) -> Image.Image:
        return self.whole.read_image(self.samples[index], at_least)

    def read_header(self, index: int) -> ImageFile.ImageFile:
        return self.whole.read_header(self.samples[index])
