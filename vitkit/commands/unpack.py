"""`vitkit unpack`: pictures and captions of any source as files, x.png beside x.txt."""

import argparse
from pathlib import Path

from vitkit.commands.options import add_columns, add_exclude, add_overwrite
from vitkit.data.annotations.captions import CAPTIONS, TEXT_COLUMNS
from vitkit.data.pair_files import write_pairs
from vitkit.data.sources.open import open_source
from vitkit.support.errors import format_count
from vitkit.support.files import require_new


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "vitkit unpack",
        description="Write the pictures of a source with captions as files, x.png beside x.txt with a caption a line, "
        "which training, evaluate and index read.",
    )
    parser.add_argument("source", help="pictures with captions, such as openmoji or pairs.csv")
    parser.add_argument("folder", type=Path, help="a new or empty folder")
    add_overwrite(parser)
    add_columns(parser, TEXT_COLUMNS, "TEXT")
    add_exclude(parser)
    options = parser.parse_args(arguments)

    require_new(options.folder, options.overwrite, folder=True, option="folder")
    source = open_source(options.source, CAPTIONS, tuple(options.columns), options.exclude)
    unreadable = write_pairs(source, options.folder, options.overwrite)
    print(f"{format_count(len(source.captions) - len(unreadable), 'pictures')} with captions in {options.folder}")
    omissions = source.pictures.omissions
    omissions.unreadable += unreadable
    return omissions.report(len(source.captions))
