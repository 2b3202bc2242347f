"""`vitkit heads`: how the heads of a model attend over many pictures, and what it loses without each."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitkit.bundle.image_bundle import untrained
from vitkit.commands.batches import add_fold, add_reading, chosen_folds, chosen_reading
from vitkit.commands.examined import Examined, examined, open_examined
from vitkit.commands.heads_report import Heads, checked_folder, finish
from vitkit.commands.removal import Drawn, glanced, labels_known, measured, remove
from vitkit.convert.open import open_tower
from vitkit.data.batches import Reading
from vitkit.data.order import FOLDS
from vitkit.data.sources.open import open_source, open_unlabelled
from vitkit.data.sources.source import COLUMNS, Source
from vitkit.inference.prompts import class_names
from vitkit.interpret.comparison import compare, refuse_unlike
from vitkit.interpret.flags import ablation_flags, flags
from vitkit.support.devices import present

PICTURES = 256  # the interval of a share of 0.5 is then 0.06 to either side at worst
UNTRAINED = "untrained"


def heads(
    model: str | Path | Examined,
    source: str | Source,
    *,
    classes: Sequence[str] = (),
    pictures: int = PICTURES,
    fold: int | None = None,
    folds: int = FOLDS,
    ablation: bool = True,
    mean: bool = False,
    against: str | Path | None = None,
    columns: tuple[str, str] = COLUMNS,
    reading: Reading | None = None,
) -> Heads:
    """Measure every head of a model over pictures, and remove each.

    Args:
        model: as in `open_examined`, or what it gives.
        classes: what a CLIP is to tell apart, in words.
        pictures: so many at most, drawn evenly and always the same.
        fold, folds: only the part that training with these numbers holds out.
        ablation: whether heads are removed: one pass over the pictures for each head, and one more by chance.
        mean: a removed head gathers its mean over the pictures, in place of zeros.
        against: a model with as many layers and heads to compare with, or "untrained": a folder's before training.

    Raises: ValueError, one line, for a model or a source that cannot be examined.
    """
    if mean and not ablation:
        raise ValueError("mean must be left out where no head is removed, got mean=True, ablation=False")
    reading = reading or Reading()
    opened = model if isinstance(model, Examined) else open_examined(model, classes)
    other = None if against is None else beside(opened, against)
    for one in (opened, other):
        if one is not None:
            one.to(present(reading.device))
    whole = source if isinstance(source, Source) else open_source(source, columns)
    drawn = Drawn.of(whole, pictures, fold, folds, reading)
    if other is not None:
        refuse_unlike(glanced(other), glanced(opened))  # not after minutes
    before = None if other is None else measured(other, drawn, f"measure {other.source}")
    after = measured(opened, drawn, "measure heads")
    places, labels = labels_known(opened, whole)
    removed = remove(opened, drawn, after, places, mean) if ablation else None
    numbers: dict[str, Any] = {
        "model": opened.source,
        "source": source if isinstance(source, str) else f"{len(source):,} pictures",
        "fold": fold,
        "folds": folds,
        "drawn_from": drawn.among,
        "labels": labels,
        "removed_is": "mean" if mean else "zero",
        "against": None if other is None else other.source,
        "unreadable": [*drawn.skipped],
    }
    odd = (*flags(after), *(() if removed is None else ablation_flags(removed)))
    told = (*after.skipped, *map(str, odd))
    return Heads(numbers, after, removed, None if before is None else compare(before, after), told, opened)


def beside(opened: Examined, against: str | Path) -> Examined:
    """The model to compare with."""
    if against != UNTRAINED:
        return open_examined(against)
    if not Path(opened.source).is_dir():
        raise ValueError(f"against=untrained must come with a model folder of vitkit, got {opened.source}")
    tower = open_tower(opened.source)
    return examined(untrained(tower, Path(opened.source)))._replace(source=f"{opened.source}, untrained")


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "vitkit heads",
        description="Measure every head of a model over pictures: how far it looks, how evenly, and at which kinds of "
        "tokens; remove each, and tell what that does to the answer, beside what chance does. Writes a table, JSON, "
        "CSV and pictures.",
        epilog="example: vitkit heads runs/classify_digits/model digits --fold 0",
    )
    parser.add_argument("model", help="a model folder, timm:NAME, openclip:NAME@PRETRAINED, hf:USER/NAME")
    parser.add_argument("source", help="pictures, labelled and named as for --data.train")
    parser.add_argument("--unlabelled", action="store_true", help="source is a picture, or any folder of pictures")
    add_fold(parser)
    parser.add_argument("--columns", nargs=2, default=COLUMNS, metavar=("FILE", "LABEL"), help="of a table")
    parser.add_argument("--classes", nargs="+", metavar="NAME", help="of a CLIP: words, a file of them, or imagenet")
    parser.add_argument(
        "--pictures", type=int, default=PICTURES, help="so many at most, drawn evenly (default: %(default)s)"
    )
    parser.add_argument(
        "--no-ablation", action="store_true", help="measure only: removing heads takes most of the time"
    )
    parser.add_argument(
        "--how",
        choices=("zero", "mean"),
        default="zero",
        help="what a removed head gathers: nothing, or its mean over the pictures (default: %(default)s)",
    )
    parser.add_argument(
        "--against",
        metavar="MODEL",
        help=f"compare with another model, or, by the word {UNTRAINED}, with this one before training",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="(default: the folder heads beside the model, or here)")
    add_reading(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parsed(arguments)
    folds = chosen_folds(options)
    place = Path(options.model).resolve().parent if Path(options.model).is_dir() else Path()
    folder = checked_folder(options.out or place / "heads")
    columns = tuple(options.columns)
    opening = open_unlabelled if options.unlabelled else open_source
    found = heads(
        options.model,
        opening(options.source, columns),
        classes=() if options.classes is None else class_names(options.classes),
        pictures=options.pictures,
        fold=options.fold,
        folds=folds,
        ablation=not options.no_ablation,
        mean=options.how == "mean",
        against=options.against,
        reading=chosen_reading(options),
    )
    found.numbers["source"] = options.source
    return finish(found, folder)
