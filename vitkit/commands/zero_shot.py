"""`vitkit zero-shot`: classify images with a CLIP, by class names."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from vitkit.bundle.bundle import Bundle
from vitkit.bundle.record_file import read_record
from vitkit.commands.options import (
    add_columns,
    add_fold,
    add_optional_out,
    add_reading,
    add_row_format,
    add_unlabelled,
    choose_folds,
    choose_report_folder,
    describe_report_folder,
    make_reading,
)
from vitkit.data.sources.open import has_labels, open_held_out, open_source, open_unlabelled
from vitkit.evaluation.classification import evaluate
from vitkit.evaluation.report import finish_evaluation
from vitkit.inference import prediction_rows
from vitkit.inference.prediction import TOP, predict_source
from vitkit.inference.prediction_rows import write_predictions
from vitkit.inference.prompts import PHOTO, parse_class_names, parse_templates
from vitkit.inference.zero_shot_classifier import zero_shot
from vitkit.support.errors import escape_controls


def parse_options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "vitkit zero-shot",
        description="Classify pictures with a CLIP and class names. Labelled pictures are evaluated, as by vitkit "
        "evaluate; for unlabelled ones the predictions are written, as by vitkit predict.",
    )
    parser.add_argument("model", help="a model folder of a CLIP, or openclip:NAME@PRETRAINED, hf:NAME")
    parser.add_argument("source", help="pictures: named as for --data.train, or an image or any folder")
    add_unlabelled(parser)
    parser.add_argument(
        "--classes",
        nargs="+",
        metavar="NAME",
        help="names of the classes in the source's order, a file with one a line, or imagenet (default: its own)",
    )
    parser.add_argument(
        "--templates",
        nargs="+",
        default=PHOTO,
        metavar="TEXT",
        help="with {} for the class, a file with one a line, imagenet (CLIP's 80) or simple (7 of them) "
        f"(default: {PHOTO[0]!r})",
    )
    add_fold(parser, "only what training with --data.fold held out: by captions if there are any, else by labels")
    parser.add_argument("--no-cache", action="store_true", help="neither read nor write the cache of class embeddings")
    add_optional_out(
        parser,
        f"a folder (default: {describe_report_folder('zero_shot')}); of unlabelled pictures a new file: .txt, .csv, "
        ".jsonl (default: the screen)",
        metavar=None,
    )
    parser.add_argument("--top", type=int, help=f"number of classes to show for unlabelled pictures (default: {TOP})")
    add_row_format(parser, prediction_rows.FORMATS.values())
    add_columns(parser)
    add_reading(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parse_options(arguments)
    options.folds = choose_folds(options)
    make_reading(options).check()
    names = None if options.classes is None else parse_class_names(options.classes)
    templates = parse_templates(options.templates)
    if options.unlabelled or not has_labels(options.source, options.exclude):
        if names is None or options.fold is not None:
            raise ValueError("classes must be given for unlabelled pictures, and fold left out; add --classes cat dog")
        if not options.unlabelled:
            print(f"note: {escape_controls(options.source)} has no labels: predictions, no accuracy", file=sys.stderr)
        return predict_unlabelled(names, templates, options)
    return evaluate_labelled(names, templates, options)


def predict_unlabelled(names: Sequence[str], templates: Sequence[str], options: argparse.Namespace) -> int:
    """Write the predictions of unlabelled images."""
    form = prediction_rows.choose_format(options.out, options.format, options.overwrite)
    source = open_unlabelled(options.source, tuple(options.columns), options.exclude)
    classifier = open_zero_shot(names, templates, False, options)
    predictions = predict_source(classifier, source, options.top, make_reading(options), "zero-shot")
    width = max(len(source.get_name(index)) for index in range(len(source)))
    return write_predictions(predictions, form, width, options.top, classifier, options.out, source.omissions)


def evaluate_labelled(names: Sequence[str] | None, templates: Sequence[str], options: argparse.Namespace) -> int:
    """Evaluate the predictions of labelled images, and write the report."""
    if options.top is not None or options.format is not None:
        raise ValueError("top and format must be left out for labelled pictures; or add --unlabelled")
    folder = choose_report_folder(options, "zero_shot")
    source = open_source(options.source, columns=tuple(options.columns), exclude=options.exclude)
    names = source.class_names if names is None else names
    if len(names) != len(source.class_names):
        theirs = ", ".join(source.class_names[:5]) + (", ..." if len(source.class_names) > 5 else "")
        raise ValueError(
            f"classes must be {len(source.class_names)}, in the order of the source's {theirs}, got {len(names)}"
        )
    part, selection = source, dict[str, Any]()
    if options.fold is not None:
        place, record = (options.source, options.fold, options.folds), read_record(options.model)
        part, selection = open_held_out(source, *place, options.exclude, record)
    classifier = open_zero_shot(names, templates, source.multilabel, options)
    source.class_names = part.class_names = classifier.class_names
    evaluation = evaluate(classifier, part, knn=False, linear=False, reading=make_reading(options))
    evaluation.numbers.update(source=options.source, fold=options.fold, folds=options.folds, **selection)
    evaluation.numbers.update(classes=list(names), templates=list(templates))
    return finish_evaluation(evaluation, folder)


def open_zero_shot(
    names: Sequence[str], templates: Sequence[str], multilabel: bool, options: argparse.Namespace
) -> Bundle:
    return zero_shot(
        options.model, names, templates, several=multilabel, cache=not options.no_cache, device=options.device
    )
