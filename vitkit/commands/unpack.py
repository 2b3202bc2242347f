"""`vitkit unpack`: pictures and captions of any source as files, x.png beside x.txt."""

import argparse
import re
from collections import Counter
from pathlib import Path

from vitkit.data.captions import TEXT_COLUMNS, Captioned, open_captioned
from vitkit.preprocess import PictureError
from vitkit.support.files import new_folder
from vitkit.support.progress import progress


def unpack(source: Captioned, folder: Path) -> list[str]:
    """Write each picture as PNG, named after its first caption, and its captions beside it, a line each; all or none.

    Returns: what could not be read, a line each. Raises: ValueError where the folder holds anything.
    """
    skipped: list[str] = []
    names: Counter[str] = Counter()
    with new_folder(folder) as beside:
        for index, captions in enumerate(progress(source.captions, "writing pictures")):
            stem = named(captions[0])
            names[stem] += 1
            path = beside / (stem if names[stem] == 1 else f"{stem}-{names[stem]}")
            try:
                source.pictures.picture(index).save(f"{path}.png")
            except PictureError as error:
                skipped.append(str(error))
                continue
            lines = dict.fromkeys(" ".join(caption.splitlines()) for caption in captions)  # one of two lines stays one
            Path(f"{path}.txt").write_text("\n".join(lines) + "\n", "utf-8")
    return skipped


def named(caption: str) -> str:
    """What a file is called after it: 80 letters at most, and 200 bytes, since file systems take 255."""
    stem = re.sub(r"\W+", "_", caption.lower()).strip("_")[:80] or "picture"
    return stem.encode("utf-8")[:200].decode("utf-8", "ignore")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "vitkit unpack",
        description="Write the pictures of a source with captions as files, x.png beside x.txt with a caption a line: "
        "what training, evaluate and index read.",
    )
    parser.add_argument("source", help="pictures with captions, such as openmoji or pairs.csv")
    parser.add_argument("folder", type=Path, help="a new or empty folder")
    parser.add_argument("--columns", nargs=2, default=TEXT_COLUMNS, metavar=("FILE", "TEXT"), help="of a table")
    options = parser.parse_args(arguments)
    source = open_captioned(options.source, tuple(options.columns))
    skipped = unpack(source, options.folder)
    print(f"{len(source.captions) - len(skipped):,} pictures with captions in {options.folder}")
    print(*(f"left out: {line}" for line in skipped), sep="\n", end="\n" if skipped else "")
    return 0
