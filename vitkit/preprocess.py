"""From a picture file to the numbers that a model reads; training, prediction and export share it.

Letters: C channels (1 grey, 3 RGB), h w the model's image size in pixels.
"""

import math
import operator
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image, ImageCms, ImageOps
from torch import Tensor

RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}

ORIENTATION = 0x0112  # EXIF's tag; from 5 on the picture lies on its side


class PictureError(ValueError):
    """A picture that cannot be read; the message is one line and names it."""

    def __init__(self, message: str) -> None:
        # A DataLoader makes a worker's error again from its traceback as text, where the message is the end.
        super().__init__(message.strip().rpartition("PictureError: ")[2])


def read(path: str | Path, at_least: tuple[int, int] | None = None) -> Image.Image:
    """The first frame of a picture file, upright and with 8 bits a channel; every failure is a PictureError.

    `at_least`, (h, w) in pixels, lets a JPEG be decoded at 1/2, 1/4 or 1/8 of its size where both sides stay as large.
    """
    return _open(path, path, at_least)


def decode(content: bytes, name: str, at_least: tuple[int, int] | None = None) -> Image.Image:
    """What `read` gives, from the bytes of a file that messages call `name`."""
    return _open(BytesIO(content), name, at_least)


def _open(file: str | Path | BytesIO, name: str | Path, at_least: tuple[int, int] | None) -> Image.Image:
    try:
        # Pillow warns about damaged metadata; whether that is fatal must not depend on the caller's warning filters.
        with warnings.catch_warnings(action="ignore"), Image.open(file) as image:
            if at_least is not None:
                sideways = image.getexif().get(ORIENTATION, 1) >= 5
                height, width = reversed(at_least) if sideways else at_least
                image.draft(None, (width, height))
            return eight_bits(ImageOps.exif_transpose(image))
    # Decoders of broken files raise OSError, ValueError, SyntaxError, NotImplementedError, struct.error and others.
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise PictureError(f"picture must be readable, got picture={name} ({reason}); repair or remove it") from None


def eight_bits(image: Image.Image) -> Image.Image:
    """16-bit grey scaled to 8 bits (65535 becomes 255), every other mode as it is.

    Raises: ValueError for floating-point pixels, whose range is unknown.
    """
    if image.mode == "F":
        raise ValueError("pixels must be integers, got floating point (mode F); store 8 or 16 bits")
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image).clip(0, 65535) / 257).round().astype(np.uint8))


@dataclass(frozen=True)
class Preprocess:
    """Shorter side to size / crop, centre crop to size, pixels to 0..1, minus mean over std.

    The convention of torchvision and timm. Args: size (h, w) in pixels; mean and std one number a channel.
    """

    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bicubic"
    crop: float = 1.0

    def __post_init__(self) -> None:
        checks = {
            f"size must be two positive numbers of pixels (h, w), got size={self.size}": min(self.size) > 0,
            f"mean must hold 1 number (grey) or 3 (RGB), all finite, got mean={self.mean}": (
                len(self.mean) in (1, 3) and all(map(math.isfinite, self.mean))
            ),
            f"std must hold {len(self.mean)} positive numbers, as mean does, got std={self.std}": (
                len(self.std) == len(self.mean) and all(value > 0 for value in self.std)
            ),
            f"interpolation must be one of {', '.join(RESAMPLING)}, got interpolation={self.interpolation}": (
                self.interpolation in RESAMPLING
            ),
            f"crop must be above 0 and at most 1, got crop={self.crop}": 0 < self.crop <= 1,
        }
        if not all(checks.values()):
            raise ValueError("; ".join(message for message, holds in checks.items() if not holds))

    @property
    def channels(self) -> int:
        return len(self.mean)

    def __call__(self, image: Image.Image) -> Float[Tensor, "C h w"]:
        return self.normalise(self.pixels([self.resize(self.convert(image))]))[0]

    def convert(self, image: Image.Image) -> Image.Image:
        """Any mode to L or RGB, by the number of channels; transparency is laid over white."""
        image = eight_bits(image)
        if image.mode == "LAB":
            lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
            image = ImageCms.buildTransform(lab, srgb, "LAB", "RGB").apply(image)
        if image.has_transparency_data:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        return image.convert("L" if self.channels == 1 else "RGB")

    def resize(self, image: Image.Image) -> Image.Image:
        """The smallest size that covers (h, w) / crop at the picture's own proportions, then its centre (h, w)."""
        height, width = (math.floor(side / self.crop) for side in self.size)
        if width * image.height >= height * image.width:
            height = width * image.height // image.width
        else:
            width = height * image.width // image.height
        if image.size != (width, height):
            image = image.resize((width, height), RESAMPLING[self.interpolation])
        top, left = round((height - self.size[0]) / 2), round((width - self.size[1]) / 2)
        return image.crop((left, top, left + self.size[1], top + self.size[0]))

    def pixels(self, images: Sequence[Image.Image]) -> UInt8[Tensor, "B C h w"]:
        """The bytes of pictures that `convert` and `resize` made."""
        stacked = np.stack([np.asarray(image) for image in images])
        return torch.from_numpy(stacked).view(-1, *self.size, self.channels).permute(0, 3, 1, 2).contiguous()

    def normalise(self, pixels: UInt8[Tensor, "B C h w"]) -> Float[Tensor, "B C h w"]:
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return (pixels / 255 - mean) / std

    def to_dict(self) -> dict[str, Any]:
        """What preprocess.json holds."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Preprocess":
        """The inverse of to_dict. Every field must be there: nothing is filled in from a default.

        Raises: ValueError that lists unknown and missing fields, or names a value of the wrong kind.
        """
        names = {field.name for field in fields(cls)}
        if set(values) != names:
            unknown, missing = sorted(set(values) - names), sorted(names - set(values))
            raise ValueError(f"preprocess must hold exactly {sorted(names)}, got {unknown=}, {missing=}")
        try:
            height, width = map(operator.index, values["size"])
            mean, std = (tuple(map(float, values[name])) for name in ("mean", "std"))
            return cls((height, width), mean, std, str(values["interpolation"]), float(values["crop"]))
        except (TypeError, ValueError) as error:
            raise ValueError(f"preprocess must hold numbers as to_dict writes them, got {values} ({error})") from None
