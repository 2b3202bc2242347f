"""The photo as a page shows it, with the part of it that the model sees."""

import base64
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from vitkit.data.preprocess import Preprocess
from vitkit.interpret.maps.geometry import Frame
from vitkit.interpret.maps.layout import Layout

LONGEST = 1000  # pixels of the longer side: two on a screen's one where the photo is 500 wide
LOSSLESS = 128 * 128  # pixels up to which each is shown as a square, and none may be blurred
QUALITY = 88


def render_photo(photo: Image.Image, preprocess: Preprocess, layout: Layout) -> dict[str, Any]:
    """In the colours that the model sees; the crop in shares of the photo's sides: left, top, right, bottom."""
    left, top, right, bottom = Frame.from_preprocess(preprocess, photo.size, layout).box
    width, height = photo.size
    return {
        "source": encoded(smaller(preprocess.convert(photo))),
        "width": width,
        "height": height,
        "sharp": width * height <= LOSSLESS,
        "box": [left / width, top / height, right / width, bottom / height],
    }


def smaller(picture: Image.Image) -> Image.Image:
    scale = LONGEST / max(picture.size)
    if scale >= 1:
        return picture
    size = max(round(picture.width * scale), 1), max(round(picture.height * scale), 1)
    return picture.resize(size, Image.Resampling.LANCZOS)


def encoded(picture: Image.Image) -> str:
    """A data URI, made from pixels alone: comments, places and colour profiles of the file stay behind."""
    form, options = ("JPEG", {"quality": QUALITY}) if picture.width * picture.height > LOSSLESS else ("PNG", {})
    stream = BytesIO()
    Image.fromarray(np.asarray(picture)).save(stream, form, **options)
    return f"data:image/{form.lower()};base64,{base64.b64encode(stream.getvalue()).decode()}"
