"""Augmentation that torchvision does not have. Everything else in a recipe is a class of torchvision.transforms.v2."""

from typing import Any

import torch
from PIL import Image, ImageFilter, ImageOps
from torchvision.transforms import v2


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
