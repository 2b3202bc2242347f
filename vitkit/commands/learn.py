"""`vitkit learn`: a page of lessons on what attention computes."""

import argparse
import sys
from pathlib import Path

from vitkit.bundle.bundle import get_preprocess
from vitkit.commands.options import add_language, add_out
from vitkit.convert.open import open_image_tower
from vitkit.data.preprocess import read
from vitkit.models.parts import image_tower
from vitkit.pages.learn.lessons import learn, waves
from vitkit.pages.learn.position_table import PACKAGE
from vitkit.pages.page import Page, called
from vitkit.support.files import require_new_file
from vitkit.support.texts import read_texts


def page_of(source: str, picture: Path | None, layer: int, language: str) -> Page:
    """Of a model folder, or of what `vitkit import` takes. Raises: ValueError, one line."""
    bundle = open_image_tower(source)
    preprocess = get_preprocess(bundle)
    images = waves(preprocess.channels, *preprocess.size) if picture is None else preprocess(read(picture))[None]
    return learn(
        image_tower(bundle.model),
        images,
        layer=layer,
        name=called(source),
        picture="" if picture is None else picture.name,
        language=language,
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "vitkit learn",
        description="Write a page of lessons to play with: dot products, softmax, attention in a sentence, positions, "
        "one layer step by step, sampling, counting parameters. It is one file that needs no network.",
        epilog="example: vitkit learn runs/classify_digits/model --layer -1 -o learn.html",
    )
    parser.add_argument(
        "model",
        nargs="?",
        help="whose layer and positions are shown: a model folder, timm:NAME, openclip:NAME (default: a small one that "
        "is not trained)",
    )
    add_out(parser, "FILE", "new, such as learn.html", short=("-o",))
    parser.add_argument("--picture", type=Path, metavar="FILE", help="what the model sees (default: computed waves)")
    parser.add_argument("--layer", type=int, default=0, help="which is shown, from 0, or -1 the last (default: 0)")
    add_language(parser, PACKAGE)
    options = parser.parse_args(arguments)

    require_new_file(options.out)
    read_texts(options.language, PACKAGE)
    if options.model is None:
        if options.picture is not None:
            raise ValueError(f"picture must come with a model that sees it, got picture={options.picture}")
        page = learn(layer=options.layer, language=options.language)
    else:
        page = page_of(options.model, options.picture, options.layer, options.language)
    page.save(options.out)
    print(f"{options.out}: {options.out.stat().st_size / 1000:,.0f} kB; open it in a browser", file=sys.stderr)
    return 0
