"""The pixel values and the transparency of a sample of images, and the preprocessing that they ask for."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from vitkit.data.preprocess import FULL, PictureError, Preprocess, convert_to_rgba, is_deep
from vitkit.data.sources.source import Source

IMAGES = 64  # at most, evenly spread
VALUES = 4096  # of an image, about, for percentiles


class PixelValues(NamedTuple):
    """The pixels of a sample of images that are not opaque grey or colour of 8 bits.

    Args:
        images: the size of the sample.
        grey: for each image of grey with more than 8 bits its least and greatest value, and some of the others.
        colours: for each image with 16 bits a colour the greatest of the upper 8, which Pillow reads.
        hidden: for each transparent image whether white would hide it.
    """

    images: int
    grey: list[np.ndarray]
    colours: list[int]
    hidden: list[bool]


def survey_pixel_values(source: Source, samples: Sequence[int], preprocess: Preprocess) -> PixelValues:
    """Read the headers of some of the samples, and decode the images that are not plain grey or colour of 8 bits.

    Images that cannot be read are left out: whatever reads all samples reports them.
    """
    spread = np.linspace(0, len(samples) - 1, min(IMAGES, len(samples))).round().astype(int).tolist()
    survey = PixelValues(len(spread), [], [], [])
    for index in spread:
        try:
            header = source.read_header(samples[index])
            wide = any(";16" in str(tile.args) for tile in header.tile)
            if not (wide or is_deep(header) or header.has_transparency_data):
                continue
            image = source.read_image(samples[index])
        except (PictureError, OSError):
            continue
        if is_deep(image):
            pixels = np.asarray(image).ravel()
            survey.grey.append(np.array([pixels.min(), pixels.max(), *pixels[:: 1 + len(pixels) // VALUES]]))
            continue  # Pillow does not apply a transparent shade of 16 bits
        if wide:
            survey.colours.append(int(np.asarray(image).max()))
        if image.has_transparency_data and np.asarray(convert_to_rgba(image))[..., 3].min() < 255:
            survey.hidden.append(preprocess.is_hidden_on_white(image))
    return survey


def choose_preprocess(preprocess: Preprocess, survey: PixelValues) -> Preprocess:
    """Return the preprocessing with a window and a background for the images where it has none and they need one."""
    if survey.grey and preprocess.window is None:
        preprocess = replace(preprocess, window=choose_window(np.concatenate(survey.grey)))
    if survey.hidden and preprocess.background is None:
        preprocess = replace(preprocess, background="contrast")
    return preprocess


def choose_window(values: np.ndarray) -> tuple[int, int] | None:
    """Return the range of as few bits as hold the values, or their own range if that is less than half of it.

    None for the range of 16 bits, and for values that are all equal.
    """
    low, high = int(values.min()), int(values.max())
    greatest = 2 ** max(high, 0).bit_length() - 1
    window = (low, high) if low < 0 or 2 * (high - low) < greatest else (0, greatest)
    return None if window == FULL or low == high else window


def format_pixel_values(preprocess: Preprocess, survey: PixelValues) -> list[str]:
    """Return lines about the images that are not plain grey or colour of 8 bits, and what is done with them."""
    lines: list[str] = []
    if survey.grey:
        low, high = preprocess.window or FULL
        values = np.concatenate(survey.grey)
        first, last = np.percentile(values, (0.5, 99.5)).astype(int).tolist()
        line = (
            f"{len(survey.grey)} of {survey.images} sampled pictures are grey of more than 8 bits, with values from "
            f"{values.min()} to {values.max()}; preprocess.window = [{low}, {high}]"
        )
        if clipped := ((values < low) | (values > high)).mean():
            line += f" clips {clipped:.1%} of them"
        if 4 * (last - first) < high - low:
            line += f"; 99 % are from {first} to {last}, which may be a better window"
        lines.append(line)
    if survey.hidden:
        lines.append(
            f"{len(survey.hidden)} of {survey.images} sampled pictures are transparent, and white would hide "
            f"{sum(survey.hidden)} of them; preprocess.background = {preprocess.background or 'white'}"
        )
    if survey.colours:
        greatest = max(survey.colours)
        lines.append(
            f"{len(survey.colours)} of {survey.images} sampled pictures have 16 bits a colour, of which the upper 8 "
            f"are read, here up to {greatest}{'; store them as 8 bits' if greatest < 128 else ''}"
        )
    return lines
