"""`vitkit zero-shot`: a CLIP as a classifier of classes that it is told in words."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from vitkit.bundle.bundle import Bundle
from vitkit.commands.options import (
    add_columns,
    add_fold,
    add_optional_out,
    add_reading,
    add_row_format,
    choose_folds,
    choose_report_folder,
    make_reading,
)
from vitkit.convert.open import open_pair_model
from vitkit.data.sources.open import open_held_out, open_source, open_unlabelled
from vitkit.data.sources.source import SUFFIXES
from vitkit.evaluation.classification import evaluate
from vitkit.evaluation.report import check_evaluation_folder, finish_evaluation
from vitkit.inference import prediction_rows
from vitkit.inference.prediction import TOP, predict_source
from vitkit.inference.prediction_rows import write_rows
from vitkit.inference.prompts import PHOTO, embedded, parse_class_names, templates_of
from vitkit.inference.zero_shot_classifier import build_classifier, overflow
from vitkit.support.devices import get_device


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "vitkit zero-shot",
        description="Classify pictures by a CLIP that is told the classes in words. Of labelled pictures the answers "
        "are compared with the labels, as vitkit evaluate does; of others they are written, as vitkit predict does.",
    )
    parser.add_argument("model", help="a model folder of a CLIP, or openclip:NAME@PRETRAINED, hf:NAME")
    parser.add_argument("source", help="labelled pictures, named as for --data.train, or a picture")
    parser.add_argument("--unlabelled", action="store_true", help="source is any folder of pictures")
    parser.add_argument(
        "--classes",
        nargs="+",
        metavar="NAME",
        help="words for the source's classes in their order, a file with one a line, or imagenet (default: its own)",
    )
    parser.add_argument(
        "--templates",
        nargs="+",
        default=PHOTO,
        metavar="TEXT",
        help="with {} for the class, a file with one a line, imagenet (CLIP's 80) or simple (7 of them) "
        f"(default: {PHOTO[0]!r})",
    )
    add_fold(parser, "only what training with --data.fold held out: by captions where there are some, else by labels")
    parser.add_argument("--no-cache", action="store_true", help="neither read nor keep the classes' embeddings")
    add_optional_out(
        parser,
        "a folder (default: zero_shot beside the model, or here); of unlabelled pictures a new file: .txt, .csv, "
        ".jsonl (default: the screen)",
        metavar=None,
    )
    parser.add_argument("--top", type=int, help=f"how many classes to show of unlabelled pictures (default: {TOP})")
    add_row_format(parser, prediction_rows.FORMATS.values())
    add_columns(parser)
    add_reading(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parse_arguments(arguments)
    options.folds = choose_folds(options)
    make_reading(options).check()
    names = None if options.classes is None else parse_class_names(options.classes)
    templates = templates_of(options.templates)
    if options.unlabelled or Path(options.source).suffix.lower() in SUFFIXES:
        if names is None or options.fold is not None:
            raise ValueError("classes must be named for unlabelled pictures, and fold left out; add --classes cat dog")
        return show(names, templates, options)
    return compare(names, templates, options)


def show(names: Sequence[str], templates: Sequence[str], options: argparse.Namespace) -> int:
    """Say what each picture shows."""
    form = prediction_rows.checked_format(options.out, options.format)
    source = open_unlabelled(options.source, tuple(options.columns))
    network = told_classes(names, templates, False, options)
    predictions = predict_source(network, source, options.top, make_reading(options), "zero-shot")
    wide = max(len(source.get_name(index)) for index in range(len(source)))
    return write_rows(predictions, form, wide, options.top, network, options.out, source.omissions)


def compare(names: Sequence[str] | None, templates: Sequence[str], options: argparse.Namespace) -> int:
    """Compare what each picture shows with its label."""
    if options.top is not None or options.format is not None:
        raise ValueError("top and format must be left out where answers are compared with labels; or add --unlabelled")
    folder = check_evaluation_folder(choose_report_folder(options, "zero_shot"))
    source = open_source(options.source, columns=tuple(options.columns))
    names = source.class_names if names is None else names
    if len(names) != len(source.class_names):
        theirs = ", ".join(source.class_names[:5]) + (", ..." if len(source.class_names) > 5 else "")
        raise ValueError(
            f"classes must be {len(source.class_names)}, in the order of the source's {theirs}, got {len(names)}"
        )
    part = source if options.fold is None else open_held_out(source, options.source, options.fold, options.folds)
    network = told_classes(names, templates, source.multilabel, options)
    source.class_names = part.class_names = network.class_names
    found = evaluate(network, part, knn=False, linear=False, reading=make_reading(options))
    found.numbers.update(source=options.source, fold=options.fold, folds=options.folds)
    found.numbers.update(classes=list(names), templates=list(templates))
    return finish_evaluation(found, folder)


def told_classes(names: Sequence[str], templates: Sequence[str], several: bool, options: argparse.Namespace) -> Bundle:
    bundle = open_pair_model(options.model)
    bundle.model.to(get_device(options.device))
    found = embedded(bundle, names, templates, cache=not options.no_cache)
    if found.cut:
        print(f"note: {overflow(found.cut, len(names) * len(templates), bundle)}", file=sys.stderr)
    return build_classifier(bundle, names, found.embeddings, several)
