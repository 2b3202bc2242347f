"""The photo of a page, with the crop that the model sees."""

import base64
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from vitkit.data.preprocess import Preprocess
from vitkit.interpret.maps.geometry import Frame
from vitkit.interpret.maps.layout import Layout

LONGEST = 1000  # pixels of the longer side: two for each of a screen where the photo is 500 wide
LOSSLESS = 128 * 128  # up to so many pixels the photo is a PNG, and each pixel is shown as a sharp square
QUALITY = 88


def render_photo(photo: Image.Image, preprocess: Preprocess, layout: Layout) -> dict[str, Any]:
    """Return the photo in the colours that the model sees, and the crop (left, top, right, bottom) in shares of the
    photo's sides."""
    left, top, right, bottom = Frame.from_preprocess(preprocess, photo.size, layout).box
    width, height = photo.size
    return {
        "source": encode_image(shrink(preprocess.convert(photo))),
        "width": width,
        "height": height,
        "sharp": width * height <= LOSSLESS,
        "box": [left / width, top / height, right / width, bottom / height],
    }


def shrink(image: Image.Image) -> Image.Image:
    scale = LONGEST / max(image.size)
    if scale >= 1:
        return image
    size = max(round(image.width * scale), 1), max(round(image.height * scale), 1)
    return image.resize(size, Image.Resampling.LANCZOS)


def encode_image(image: Image.Image) -> str:
    """Return a data URI of the pixels alone: comments, locations and colour profiles of the file are dropped."""
    form, options = ("JPEG", {"quality": QUALITY}) if image.width * image.height > LOSSLESS else ("PNG", {})
    stream = BytesIO()
    Image.fromarray(np.asarray(image)).save(stream, form, **options)
    return f"data:image/{form.lower()};base64,{base64.b64encode(stream.getvalue()).decode()}"
