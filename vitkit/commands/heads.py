"""`vitkit heads`: how the heads of a model attend over many pictures, and what it loses without each."""

import argparse

from vitkit.commands.options import (
    add_columns,
    add_fold,
    add_optional_out,
    add_reading,
    add_unlabelled,
    add_words,
    choose_report_folder,
    chosen_folds,
    chosen_reading,
)
from vitkit.data.annotations.labels import LABELS
from vitkit.data.annotations.no_annotation import UNLABELLED
from vitkit.data.sources.open import open_source
from vitkit.inference.prompts import parse_class_names
from vitkit.interpret.examine.head_report import check_heads_folder, finish_heads
from vitkit.interpret.examine.head_survey import PICTURES, UNTRAINED, heads


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "vitkit heads",
        description="Measure every head of a model over pictures: how far it looks, how evenly, and at which kinds of "
        "tokens; remove each, and tell what that does to the answer, beside what chance does. Writes a table, JSON, "
        "CSV and pictures.",
        epilog="example: vitkit heads runs/classify_digits/model digits --fold 0",
    )
    parser.add_argument("model", help="a model folder, timm:NAME, openclip:NAME@PRETRAINED, hf:USER/NAME")
    parser.add_argument("source", help="pictures, labelled and named as for --data.train")
    add_unlabelled(parser)
    add_fold(parser)
    add_columns(parser)
    add_words(parser)
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
    add_optional_out(parser, "(default: the folder heads beside the model, or here)")
    add_reading(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parse_arguments(arguments)
    folds = chosen_folds(options)
    folder = check_heads_folder(choose_report_folder(options, "heads"))
    source = open_source(options.source, UNLABELLED if options.unlabelled else LABELS, tuple(options.columns))
    found = heads(
        options.model,
        source,
        classes=() if options.classes is None else parse_class_names(options.classes),
        pictures=options.pictures,
        fold=options.fold,
        folds=folds,
        ablation=not options.no_ablation,
        mean=options.how == "mean",
        against=options.against,
        reading=chosen_reading(options),
    )
    found.numbers["source"] = options.source
    return finish_heads(found, folder, source.omissions)
