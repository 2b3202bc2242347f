"""What a CLIP is worth on pictures with captions: how far in front each finds what belongs to it.

N pictures that could be read, U texts, P pairs of a picture and a text, E embedding.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from vitkit.bundle.image_bundle import Dual
from vitkit.commands.batches import chosen_folds, chosen_reading
from vitkit.data.annotations.captions import TEXT_COLUMNS
from vitkit.data.tokenizer import POLICIES
from vitkit.evaluation.caption_retrieval import captions_in, evaluate_pairs, files, report
from vitkit.evaluation.report import replace, told

ONLY_LABELLED = ("probe", "knn", "linear_probe", "no_probe", "probed")


ONLY_CAPTIONED = ("own_only", "overflow")


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("CLIPs, on pictures with captions")
    group.add_argument(
        "--own-only",
        action="store_true",
        help="equal captions of two pictures are two texts, as in published numbers (default: one, of both pictures)",
    )
    group.add_argument("--overflow", choices=POLICIES, help="of captions that do not fit (default: warn)")


def run(opened: Dual, options: argparse.Namespace, folder: Path) -> int:
    if given := [name for name in ONLY_LABELLED if getattr(options, name)]:
        raise ValueError(f"{listed(given)} must be left out for a CLIP: it has no classes to compare probes with")
    columns = TEXT_COLUMNS if options.columns is None else tuple(options.columns)
    captioned = captions_in(options.source, columns, opened)
    overflow = options.overflow or "warn"
    found = evaluate_pairs(
        opened,
        captioned,
        fold=options.fold,
        folds=chosen_folds(options),
        own_only=options.own_only,
        overflow="truncate" if overflow == "warn" else overflow,
        reading=chosen_reading(options),
    )
    found.numbers["source"] = options.source
    if found.numbers["cut"] and overflow == "warn":
        cut, of, most = found.numbers["cut"], found.numbers["captions"], opened.tokenizer.context
        print(f"note: {cut} of {of} captions do not fit into {most} ids; their ends are cut off", file=sys.stderr)
    replace(folder, found.numbers, files(found, opened, captioned.pictures, folder))
    print(report(found.numbers))
    return told(folder, True, found.numbers["unreadable"])


def refuse_options(options: argparse.Namespace) -> None:
    """Raises: ValueError for what only a CLIP takes."""
    if given := [name for name in ONLY_CAPTIONED if getattr(options, name)]:
        raise ValueError(f"{listed(given)} must be left out for a model that is no CLIP")


def listed(names: Sequence[str]) -> str:
    return " and ".join(name.replace("_", "-") for name in names)
