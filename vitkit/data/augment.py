"""Augmentation that torchvision does not have. Everything else in a recipe is a class of torchvision.transforms.v2."""

from typing import Any, cast

import torch
from PIL import Image, ImageFilter, ImageOps
from torchvision.transforms import v2

from vitkit.data.preprocess import RESAMPLING


class RandomResizedCrop(v2.Transform):
    """torchvision's, of the same parts of a picture, but four times as fast for 12 megapixels.

    A part is averaged over blocks of pixels, to three times the size, before it is resampled. At 224 pixels that moves
    values by 0.2 levels of 255 on average, and by 16 at most.
    """

    def __init__(
        self,
        size: tuple[int, int],
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        interpolation: str = "bicubic",
    ) -> None:
        super().__init__()
        self.height, self.width = size
        self.part = v2.RandomResizedCrop(size, scale, ratio)
        self.resampling = RESAMPLING[interpolation]

    def transform(self, inpt: Image.Image, params: dict[str, Any]) -> Image.Image:
        part = self.part.make_params([inpt])
        box = part["left"], part["top"], part["left"] + part["width"], part["top"] + part["height"]
        return inpt.resize((self.width, self.height), self.resampling, box, reducing_gap=3.0)


class RandomErasing(v2.RandomErasing):
    """A part of the numbers becomes noise, pixel by pixel, as in DeiT; torchvision's own takes no word from a config.

    https://arxiv.org/abs/1708.04896; sizes as in timm.
    """

    def __init__(
        self, p: float = 0.25, scale: tuple[float, float] = (0.02, 1 / 3), ratio: tuple[float, float] = (0.3, 3.3)
    ) -> None:
        super().__init__(p, scale, ratio, value=cast(float, "random"))  # which its type leaves out


class ThreeAugment(v2.Transform):
    """One of grey, solarised and blurred, each a third of the time, then colour jitter.

    3-Augment of DeiT III, https://arxiv.org/abs/2204.07118, section 4.2; its flips and crops are torchvision's own.
    Constants as in its code: solarised above 128, a blur of radius 0.1 to 2 pixels, a jitter of 0.3.
    """

    def __init__(self, jitter: float = 0.3) -> None:
        super().__init__()
        self.jitter = v2.ColorJitter(jitter, jitter, jitter)

    def transform(self, inpt: Image.Image, params: dict[str, Any]) -> Image.Image:
        match int(torch.randint(3, ())):
            case 0:
                varied = ImageOps.grayscale(inpt).convert(inpt.mode)
            case 1:
                varied = ImageOps.solarize(inpt, 128)
            case _:
                varied = inpt.filter(ImageFilter.GaussianBlur(torch.empty(()).uniform_(0.1, 2.0).item()))
        return self.jitter(varied)
