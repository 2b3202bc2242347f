"""From an image file to the tensor that a model takes; training, prediction and export share it.

Letters: C channels (1 grey, 3 RGB), h w the model's image size in pixels.
"""

import math
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image, ImageCms, ImageFile, ImageOps, TiffImagePlugin
from torch import Tensor

RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}

ORIENTATION = 0x0112  # EXIF's tag; from 5 on the image lies on its side
SAMPLE_FORMAT = 339  # TIFF's tag: 1 for integers without a sign, its default, 2 with one
FULL = (0, 65535)  # the window of 16 bits
BACKGROUNDS = ("white", "black", "contrast")
CONTRAST = 32  # levels of 255 by which a pixel must differ from the background to be visible
# Pixels. Larger images, of up to 536 million, are converted in strips of this size, since whole copies take gigabytes.
# They are cropped before they are resized, not after: one of 1 x 60,000, made 224 wide, would be 13 million high.
LARGE = 2**22
MOST = 178_956_970  # pixels of a model's image
MOST_READ = 2**29  # pixels of the largest image that is read, 2 GB in memory; Pillow's limit is MOST
# Pillow hands PostScript to the program gs, Windows metafiles to the system, and what IPTC wraps to any of its readers.
REFUSED = {"EPS", "IPTC", "WMF"}
HEIF = (".heic", ".heif")  # decoded by the package pillow-heif


class PictureError(ValueError):
    """A picture that cannot be read; the message is one line and names it."""

    def __init__(self, message: str) -> None:
        # A DataLoader makes a worker's error again from its traceback as text, where the message is the end.
        super().__init__(message.strip().rpartition("PictureError: ")[2])


def read_image(path: str | Path, at_least: tuple[int, int] | None = None) -> Image.Image:
    """Return the first frame of an image file, upright (EXIF); any failure is a PictureError.

    Grey of 16 or 32 bits stays as it is, for the window of `Preprocess.convert`; of 16 bits a colour Pillow keeps the
    upper 8. Floating-point pixels, and integers that Pillow misreads, are refused.

    Pillow decides by content, not by name, what a file is, and how CMYK is inverted. More than 536 megapixels are
    refused, and so are formats that would start another program. Colour profiles (ICC) are ignored, as torchvision and
    timm do.

    `at_least`, (h, w) in pixels, lets a JPEG be decoded at 1/2, 1/4 or 1/8 of its size if both sides stay as large.
    """
    return _open_image(path, path, at_least)


def decode_image(content: bytes, name: str, at_least: tuple[int, int] | None = None) -> Image.Image:
    """Return the image in the bytes of a file, as `read_image` does. Args: name: of the file in messages."""
    return _open_image(BytesIO(content), name, at_least)


def read_image_header(file: str | Path | BytesIO) -> ImageFile.ImageFile:
    """Return an image with its mode, size and metadata, but without pixels. Raises: PictureError."""
    try:
        with open_lazily(file) as image:
            return image
    except Exception as error:  # as in _open_image
        raise PictureError(f"picture must be readable, got {type(error).__name__}: {error}") from None


@contextmanager
def open_lazily(file: str | Path | BytesIO, formats: tuple[str, ...] | None = None) -> Iterator[ImageFile.ImageFile]:
    """Yield the image in a file, whose pixels are not decoded yet, with a limit of MOST_READ pixels.

    Pillow warns about damaged metadata; whether that is fatal must not depend on the caller's warning filters.
    """
    limit = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = MOST_READ // 2  # Pillow warns above it, and refuses above twice that
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(file, formats=formats) as image:
            yield image
    finally:
        Image.MAX_IMAGE_PIXELS = limit


@cache
def register_heif() -> bool:
    """Let Pillow decode HEIC if the package pillow-heif is installed, and return whether it is."""
    if find_spec("pillow_heif") is None:
        return False
    import_module("pillow_heif").register_heif_opener()
    return True


def _open_image(file: str | Path | BytesIO, name: str | Path, at_least: tuple[int, int] | None) -> Image.Image:
    register_heif()
    try:
        with open_lazily(file) as image:
            if image.format in REFUSED:
                raise ValueError(f"{image.format} is not read, since other programs would have to; convert it")
            if at_least is not None:
                sideways = image.getexif().get(ORIENTATION, 1) >= 5
                height, width = reversed(at_least) if sideways else at_least
                image.draft(None, (width, height))
            image.load()
            refuse_misread_pixels(image)
            ImageOps.exif_transpose(image, in_place=True)
            return image
    # Decoders of broken files raise OSError, ValueError, SyntaxError, NotImplementedError, struct.error and others.
    except FileNotFoundError:
        raise PictureError(f"picture must be a file that exists, got picture={name}") from None
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".replace(f" {file!r}", "").split())
        remedy = "repair or remove it"
        if str(name).lower().endswith(HEIF) and not register_heif():
            remedy = "pip install pillow-heif"
        if isinstance(error, Image.DecompressionBombError):
            remedy = "cut it into pieces, or make it smaller"
        raise PictureError(f"picture must be readable, got picture={name} ({reason}); {remedy}") from None


def refuse_misread_pixels(image: Image.Image) -> None:
    """Raise ValueError for floating point, and for integers that Pillow reads wrongly without an error.

    Those of a TIFF with a sign and 8 bits, and without a sign from 2**31 on.
    """
    if image.mode == "F":
        raise ValueError("pixels must be integers, got floating point (mode F); store 8 or 16 bits")
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        signed = 2 in image.tag_v2.get(SAMPLE_FORMAT, ())
        if signed and not image.mode.startswith("I"):
            raise ValueError("integers with a sign must have 16 or 32 bits, got 8; store 16")
        if image.mode == "I" and not signed and np.asarray(image).min() < 0:
            raise ValueError(f"integers of 32 bits must be below {2**31}; store 16 bits")


def convert_to_8_bits(image: Image.Image, window: tuple[int, int]) -> Image.Image:
    """Scale grey of more than 8 bits so that the window's ends become 0 and 255; return any other mode as it is.

    Raises: ValueError for floating-point pixels.
    """
    refuse_misread_pixels(image)
    return apply_in_strips(image, partial(_scale_to_8_bits, window=window), "L") if is_deep(image) else image


def is_deep(image: Image.Image) -> bool:
    """Return whether an image is grey of more than 8 bits."""
    return image.mode.startswith("I")


def _scale_to_8_bits(image: Image.Image, window: tuple[int, int]) -> Image.Image:
    low, high = window
    shades = (np.asarray(image, float).clip(low, high) - low) / ((high - low) / 255)
    return Image.fromarray(shades.round().astype(np.uint8))


def apply_in_strips(image: Image.Image, change: Callable[[Image.Image], Image.Image], mode: str) -> Image.Image:
    """Apply a pixel-wise function to an image, strip by strip if it is large. Args: mode: of the result."""
    rows = max(1, LARGE // image.width)
    if image.height <= rows:
        return change(image)
    whole = Image.new(mode, image.size)
    for top in range(0, image.height, rows):
        whole.paste(change(image.crop((0, top, image.width, min(top + rows, image.height)))), (0, top))
    return whole


@dataclass(frozen=True)
class Preprocess:
    """Resize the shorter side to size / crop, crop the centre to size, scale to 0..1, subtract mean, divide by std.

    The convention of torchvision and timm.

    Args:
        size: (h, w) in pixels.
        mean, std: one number a channel.
        window: (low, high), the values of 16-bit or 32-bit grey that become black and white. None is (0, 65535), but
            `fit` replaces it if its images use other values, see `choose_window`.
        background: laid under transparent images: white, black, or contrast (black under those that white would hide,
            white under the others). None is white, but `fit` replaces it by contrast if an image is transparent.
    """

    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bicubic"
    crop: float = 1.0
    window: tuple[int, int] | None = None
    background: str | None = None

    def __post_init__(self) -> None:
        checks = {
            f"size must be two positive numbers of pixels (h, w), got size={self.size}": min(self.size) > 0,
            f"size must hold at most {MOST:,} pixels, got size={self.size}": math.prod(self.size) <= MOST,
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
            f"window must be two integers (low, high), the first below the second, got window={self.window}": (
                self.window is None or self.window[0] < self.window[1]
            ),
            f"background must be one of {', '.join(BACKGROUNDS)}, got background={self.background}": (
                self.background is None or self.background in BACKGROUNDS
            ),
        }
        if not all(checks.values()):
            raise ValueError("; ".join(message for message, holds in checks.items() if not holds))

    @property
    def channels(self) -> int:
        return len(self.mean)

    @property
    def mode(self) -> str:
        """Pillow's mode of the images that `convert` returns."""
        return "L" if self.channels == 1 else "RGB"

    def __call__(self, image: Image.Image) -> Float[Tensor, "C h w"]:
        return self.normalise(self.stack_pixels([self.resize(self.convert(image))]))[0]

    def convert(self, image: Image.Image) -> Image.Image:
        """Convert any mode to L or RGB, by the number of channels; return an image that needs no change itself.

        Grey of more than 8 bits is scaled from `window`. Transparency (alpha, premultiplied or not; of a palette, or
        one colour of 8 bits) is laid over `background`. Grey is Rec. 601 luma. CMYK, YCbCr and HSV follow Pillow's
        formulas, LAB its D50 profile to sRGB.
        """
        image = convert_to_8_bits(image, self.window or FULL)
        if image.mode == self.mode and not image.has_transparency_data:
            return image  # copying 12 megapixels would take 30 ms
        background = self.background or "white"
        if background == "contrast":
            background = "black" if self.is_hidden_on_white(image) else "white"
        return apply_in_strips(image, partial(flatten, mode=self.mode, background=background), self.mode)

    def is_hidden_on_white(self, image: Image.Image) -> bool:
        """Return whether a transparent image is visible on black and not on white.

        Not on white: where there is 1 pixel that differs from it, 100 differ from black.
        """
        if not image.has_transparency_data:
            return False
        sample = image.resize((min(image.width, 128), min(image.height, 128)), Image.Resampling.NEAREST)
        visible: list[int] = []
        for background, shade in (("white", 255), ("black", 0)):
            pixels = np.asarray(flatten(sample, self.mode, background), int)
            differs = abs(pixels - shade) > CONTRAST
            visible.append(int(differs.reshape(*pixels.shape[:2], -1).any(axis=2).sum()))
        return visible[0] * 100 < visible[1]

    def resize(self, image: Image.Image) -> Image.Image:
        """Resize to the smallest size of the same aspect ratio that covers (h, w) / crop, then crop the centre (h, w).

        Above 4 megapixels only that centre is computed: 1.7 times as fast for 12, and 1 in 10,000 values is 1/255 off.
        """
        (width, height), box = self.compute_resize(*image.size)
        resampling = RESAMPLING[self.interpolation]
        if max(width * height, image.width * image.height) > LARGE:
            across, down = image.width / width, image.height / height
            cut = box[0] * across, box[1] * down, box[2] * across, box[3] * down
            return image.resize((self.size[1], self.size[0]), resampling, cut)
        return (image if image.size == (width, height) else image.resize((width, height), resampling)).crop(box)

    @property
    def least_size(self) -> tuple[int, int]:
        """The (h, w) below which an image shows next to nothing: a 16th of the size, as a patch often is, and 2."""
        height, width = (max(2, math.ceil(side / 16)) for side in self.size)
        return height, width

    def is_tiny(self, image: Image.Image) -> bool:
        """Return whether an image has a side below `least_size`."""
        return image.height < self.least_size[0] or image.width < self.least_size[1]

    def compute_resize(self, image_width: int, image_height: int) -> tuple[tuple[int, int], tuple[int, int, int, int]]:
        """Return the (width, height) that `resize` scales an image to, and the crop's (left, top, right, bottom)."""
        height, width = (math.floor(side / self.crop) for side in self.size)
        if width * image_height >= height * image_width:
            height = width * image_height // image_width
        else:
            width = height * image_width // image_height
        top, left = round((height - self.size[0]) / 2), round((width - self.size[1]) / 2)
        return (width, height), (left, top, left + self.size[1], top + self.size[0])

    def stack_pixels(self, images: Sequence[Image.Image]) -> UInt8[Tensor, "B C h w"]:
        """Return the bytes of images that `convert` and `resize` have made."""
        stacked = np.stack([np.asarray(image) for image in images])
        return torch.from_numpy(stacked).view(-1, *self.size, self.channels).permute(0, 3, 1, 2).contiguous()

    def normalise(self, pixels: UInt8[Tensor, "B C h w"]) -> Float[Tensor, "B C h w"]:
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return (pixels / 255 - mean) / std

    def denormalise(self, images: Float[Tensor, "B C h w"]) -> UInt8[Tensor, "B C h w"]:
        """Return the inverse of `normalise`, clipped to a byte."""
        mean, std = (torch.tensor(values, device=images.device).view(-1, 1, 1) for values in (self.mean, self.std))
        return ((images.float() * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of preprocess.json, without fields that are None."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Preprocess":
        """Return the preprocessing that `to_dict` has written. No field may be missing but those that may be None.

        Raises: ValueError that lists unknown and missing fields, or names a value of the wrong kind.
        """
        names = {field.name: field.default is not None for field in fields(cls)}  # and whether they are required
        unknown = sorted(values.keys() - names.keys())
        missing = sorted(name for name, required in names.items() if required and name not in values)
        if unknown or missing:
            raise ValueError(f"preprocess must hold {sorted(names)}, got {unknown=}, {missing=}")
        try:
            height, width = map(operator.index, values["size"])
            mean, std = (tuple(map(float, values[name])) for name in ("mean", "std"))
            low, high = map(operator.index, values.get("window") or FULL)
            return cls(
                (height, width),
                mean,
                std,
                str(values["interpolation"]),
                float(values["crop"]),
                (low, high) if values.get("window") else None,
                None if values.get("background") is None else str(values["background"]),
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"preprocess must hold numbers as to_dict writes them, got {values} ({error})") from None


def flatten(image: Image.Image, mode: str, background: str = "white") -> Image.Image:
    """Convert an image to L or RGB over a background."""
    if image.mode == "LAB":
        lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        image = ImageCms.buildTransform(lab, srgb, "LAB", "RGB").apply(image)
    if image.has_transparency_data:
        image = convert_to_rgba(image)
        image = Image.alpha_composite(Image.new("RGBA", image.size, background), image)
    return image.convert(mode)


def convert_to_rgba(image: Image.Image) -> Image.Image:
    # Pillow knows no other way out of premultiplied grey.
    return (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
