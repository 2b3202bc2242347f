"""Write the images and captions of a source as files, x.png beside x.txt."""

import re
from collections import Counter
from pathlib import Path

from PIL import Image

from vitkit.data.annotations.captions import Captioned
from vitkit.data.preprocess import FULL, PictureError, convert_to_8_bits, convert_to_rgba, flatten, is_deep
from vitkit.support.files import create_folder
from vitkit.support.names import split_lines
from vitkit.support.progress import track_progress

PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA")


def write_pairs(source: Captioned, folder: Path, overwrite: bool = False) -> list[str]:
    """Write each image as PNG, named after its first caption, and its captions beside it, a line each; all or none.

    Returns: a line for each image that could not be read.
    Raises: ValueError if the folder is not empty and not to be overwritten.
    """
    skipped: list[str] = []
    names: Counter[str] = Counter()
    with create_folder(folder, overwrite) as temporary:
        for index, captions in enumerate(track_progress(source.captions, "writing pictures")):
            stem = make_file_name(captions[0])
            names[stem] += 1
            path = temporary / (stem if names[stem] == 1 else f"{stem}-{names[stem]}")
            try:
                convert_for_png(source.pictures.read_image(index)).save(f"{path}.png")
            except PictureError as error:
                skipped.append(str(error))
                continue
            # A caption of two lines stays one caption.
            lines = dict.fromkeys(" ".join(split_lines(caption)) for caption in captions)
            Path(f"{path}.txt").write_text("\n".join(lines) + "\n", "utf-8")
    return skipped


def convert_for_png(image: Image.Image) -> Image.Image:
    """Return an image in a mode that PNG holds: grey of 16 bits, but not of 32, and no CMYK, for example."""
    if image.mode == "I":
        return convert_to_8_bits(image, FULL)
    if image.mode in PNG_MODES or is_deep(image):
        return image
    return convert_to_rgba(image) if image.has_transparency_data else flatten(image, "RGB")


def make_file_name(caption: str) -> str:
    """Return a file name of at most 80 letters and 200 bytes (file systems take 255) without a suffix."""
    stem = re.sub(r"\W+", "_", caption.lower()).strip("_")[:80] or "picture"
    return stem.encode("utf-8")[:200].decode("utf-8", "ignore")
