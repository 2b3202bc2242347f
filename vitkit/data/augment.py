"""Augmentation that torchvision does not have. Everything else in a recipe is a class of torchvision.transforms.v2."""

from typing import Any, cast

import torch
from PIL import Image, ImageFilter, ImageOps
from torchvision.transforms import v2

from vitkit.data.preprocess import RESAMPLING


class RandomResizedCrop(v2.Transform):
    """torchvision's RandomResizedCrop with the same crops, but four times as fast for 12 megapixels.

    A crop is averaged over blocks of pixels, to three times the size, before it is resampled. At 224 pixels that moves
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
        crop = self.part.make_params([inpt])
        box = crop["left"], crop["top"], crop["left"] + crop["width"], crop["top"] + crop["height"]
        return inpt.resize((self.width, self.height), self.resampling, box, reducing_gap=3.0)


class RandomErasing(v2.RandomErasing):
    """torchvision's RandomErasing with noise for each pixel, as in DeiT; a config cannot give that one the word.

    https://arxiv.org/abs/1708.04896; sizes as in timm.
    """

    def __init__(
        self, p: float = 0.25, scale: tuple[float, float] = (0.02, 1 / 3), ratio: tuple[float, float] = (0.3, 3.3)
    ) -> None:
        super().__init__(p, scale, ratio, value=cast(float, "random"))  # which its type leaves out


class ThreeAugment(v2.Transform):
    """Greyscale, solarisation or blur, each a third of the time, then colour jitter.

    3-Augment of DeiT III, https://arxiv.org/abs/2204.07118, section 4.2; its flips and crops are torchvision's own.
    Constants as in its code: solarisation above 128, a blur of radius 0.1 to 2 pixels, a jitter of 0.3.
    """

    def __init__(self, jitter: float = 0.3) -> None:
        super().__init__()
        self.jitter = v2.ColorJitter(jitter, jitter, jitter)

    def transform(self, inpt: Image.Image, params: dict[str, Any]) -> Image.Image:
        match int(torch.randint(3, ())):
            case 0:
                image = ImageOps.grayscale(inpt).convert(inpt.mode)
            case 1:
                image = ImageOps.solarize(inpt, 128)
            case _:
                image = inpt.filter(ImageFilter.GaussianBlur(torch.empty(()).uniform_(0.1, 2.0).item()))
        return self.jitter(image)
