"""`vitkit evaluate`: metrics, baselines and mistakes of a trained model on a data set."""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from torch import nn

from vitkit.bundle.bundle import Bundle, get_tokenizer
from vitkit.bundle.record_file import read_record
from vitkit.commands.options import (
    add_columns,
    add_fold,
    add_optional_out,
    add_reading,
    add_size,
    add_unlabelled,
    choose_folds,
    choose_report_folder,
    describe_report_folder,
    make_reading,
    open_resized,
)
from vitkit.convert.open import open_model
from vitkit.data.annotations.captions import TEXT_COLUMNS
from vitkit.data.annotations.labels import LABELS
from vitkit.data.annotations.no_annotation import UNLABELLED
from vitkit.data.sample_selection import select_all, select_held_out
from vitkit.data.sources.open import open_source
from vitkit.data.sources.source import COLUMNS
from vitkit.data.tokenizer import POLICIES
from vitkit.evaluation.bits_per_byte import POSITIONS, evaluate_texts, format_text_evaluation, write_text_files
from vitkit.evaluation.caption_retrieval import (
    evaluate_pairs,
    format_retrieval,
    open_captions,
    write_retrieval_files,
)
from vitkit.evaluation.classification import evaluate
from vitkit.evaluation.explained_variance import evaluate_hidden_patches
from vitkit.evaluation.probes import PROBED, list_better_baselines
from vitkit.evaluation.report import (
    Evaluation,
    add_omissions,
    finish_evaluation,
    format_evaluation,
    print_outcome,
    replace_report,
)
from vitkit.models import CLIP, MAE, TextDecoder, ViT


def parse_evaluate_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "vitkit evaluate",
        description="Evaluate a model on labelled images: accuracy, calibration and mistakes, and the accuracy of a "
        "20-NN and a linear probe on its frozen features, on pixels and, for a model without classes such as a "
        "pretrained MAE, on features of a random encoder. For an MAE also the explained variance of hidden patches. "
        "For a CLIP the recall of captions by images and of images by captions. For a text decoder the bits per byte "
        "and the perplexity of texts.",
    )
    parser.add_argument("model", help="a model folder, such as runs/classify_digits/model")
    parser.add_argument(
        "source",
        help="labelled images, named as for --data.train, all of whose classes the model has; for a CLIP "
        "images with captions, for a text decoder texts",
    )
    add_fold(parser)
    add_optional_out(parser, f"(default: {describe_report_folder('evaluation')})")
    add_columns(parser, default=None, help="the columns of a table; LABEL may be a caption")
    probe = parser.add_argument_group("classifiers and encoders")
    probe.add_argument(
        "--probe",
        metavar="SOURCE",
        help="images that probes are fitted to (default: the other folds; without --fold they are cross-validated)",
    )
    probe.add_argument("--knn", action="store_true", help="fit the 20-NN probe (default: both)")
    probe.add_argument("--linear-probe", action="store_true", help="fit the linear probe (default: both)")
    probe.add_argument("--no-probe", action="store_true", help="fit no probe")
    probe.add_argument("--probed", type=int, help=f"the most images to fit probes to (default: {PROBED})")
    add_options(parser)
    add_size(parser)
    add_reading(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parse_evaluate_arguments(arguments)
    choose_folds(options)
    if options.no_probe and (options.knn or options.linear_probe):
        raise ValueError("no-probe must not meet knn or linear-probe: leave out one or the other")
    folder = choose_report_folder(options, "evaluation")
    model = open_resized(options)
    bundle = open_model(model) if isinstance(model, str) else model
    evaluation = choose_evaluation(bundle)
    refuse_options(evaluation, options)
    return evaluation.run(bundle, options, folder)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_unlabelled(parser.add_argument_group("MAE, on images without labels"))
    group = parser.add_argument_group("CLIP, on images with captions")
    group.add_argument(
        "--own-only",
        action="store_true",
        help="keep equal captions of two images apart, as in published results (default: one text, a positive of both)",
    )
    group.add_argument("--overflow", choices=POLICIES, help="policy for captions that do not fit (default: warn)")


def evaluate_labels(bundle: Bundle, options: argparse.Namespace, folder: Path) -> int:
    return finish_evaluation(evaluate_classes(bundle, options), folder)


def evaluate_classes(bundle: Bundle, options: argparse.Namespace) -> Evaluation:
    return evaluate(
        bundle,
        options.source,
        fold=options.fold,
        folds=choose_folds(options),
        probe=options.probe,
        knn=not options.no_probe and (options.knn or not options.linear_probe),
        linear=not options.no_probe and (options.linear_probe or not options.knn),
        probed=PROBED if options.probed is None else options.probed,
        columns=COLUMNS if options.columns is None else tuple(options.columns),
        reading=make_reading(options),
    )


def evaluate_reconstruction(bundle: Bundle, options: argparse.Namespace, folder: Path) -> int:
    folds, annotation = choose_folds(options), UNLABELLED if options.unlabelled else LABELS
    if options.unlabelled or options.no_probe:
        if options.probe or options.probed or options.knn or options.linear_probe:
            raise ValueError("probe, probed, knn and linear-probe must be left out with unlabelled or no-probe")
        source = open_source(options.source, annotation, options.columns, options.exclude)
        numbers = {"model": bundle.source, "source": options.source, "fold": options.fold, "folds": folds}
    else:
        evaluation = evaluate_classes(bundle, options)
        source, numbers = evaluation.source, evaluation.numbers
    record = read_record(bundle.source)
    if options.fold is None:
        selection = select_all(record, source, range(len(source)))
    else:
        split = annotation.split(source, folds, options.fold)
        selection = select_held_out(record, source, split, options.fold, folds)
    scores, indices = evaluate_hidden_patches(bundle, source, selection.samples, make_reading(options))
    numbers |= selection.count_readable(indices) | scores
    better = list_better_baselines("explained variance", numbers["explained_variance"], {"the mean of each patch": 0.0})
    numbers["worse_than_baselines"] = [*numbers.get("worse_than_baselines", ()), *better]
    omissions = add_omissions(numbers, source)
    replace_report(folder, numbers, ())
    print(format_evaluation(numbers))
    return print_outcome(folder, False, omissions, numbers["pictures"])


def evaluate_captions(bundle: Bundle, options: argparse.Namespace, folder: Path) -> int:
    columns = TEXT_COLUMNS if options.columns is None else tuple(options.columns)
    captioned = open_captions(options.source, columns, bundle, options.exclude)
    overflow = options.overflow or "warn"
    evaluation = evaluate_pairs(
        bundle,
        captioned,
        fold=options.fold,
        folds=choose_folds(options),
        own_only=options.own_only,
        overflow="truncate" if overflow == "warn" else overflow,
        reading=make_reading(options),
    )
    numbers = evaluation.numbers | {"source": options.source}
    if numbers["cut"] and overflow == "warn":
        cut, total, context = numbers["cut"], numbers["captions"], get_tokenizer(bundle).context
        print(f"note: {cut} of {total} captions do not fit into {context} ids; their ends are cut off", file=sys.stderr)
    omissions = add_omissions(numbers, captioned.pictures)
    replace_report(folder, numbers, write_retrieval_files(evaluation.retrieval, bundle, captioned.pictures, folder))
    print(format_retrieval(numbers))
    return print_outcome(folder, True, omissions, numbers["pictures"])


def evaluate_language(bundle: Bundle, options: argparse.Namespace, folder: Path) -> int:
    if options.columns is not None:
        raise ValueError("columns must be left out for texts, which are read from a column called text")
    reading = make_reading(options)
    evaluation = evaluate_texts(bundle, options.source, fold=options.fold, folds=choose_folds(options), reading=reading)
    numbers, omissions = evaluation
    numbers |= {"unreadable": omissions.unreadable, **omissions.to_json()}
    replace_report(folder, numbers, write_text_files(numbers, folder))
    print(format_text_evaluation(numbers))
    print(f"{folder}/report.json has all numbers; {POSITIONS} beside it shows the loss by position in the context")
    return omissions.report(numbers["texts"] + len(omissions.unreadable), "texts", more=", and do not count")


class EvaluationKind(NamedTuple):
    """The evaluation for models of one class.

    Args:
        run: evaluates a model by the command's options, writes to a folder and returns the exit status.
        options: the options of this evaluation alone.
        models: the name of its models in an error.
    """

    run: Callable[[Bundle, argparse.Namespace, Path], int]
    options: tuple[str, ...]
    models: str


PROBE_OPTIONS = ("probe", "knn", "linear_probe", "no_probe", "probed")
CLASSIFIER = EvaluationKind(evaluate_labels, PROBE_OPTIONS, "a ViT, which is compared with labels")
AUTOENCODER = EvaluationKind(evaluate_reconstruction, (*PROBE_OPTIONS, "unlabelled"), "an MAE, which reads no captions")
DUAL_ENCODER = EvaluationKind(evaluate_captions, ("own_only", "overflow"), "a CLIP, which has no classes to probe")
DECODER = EvaluationKind(evaluate_language, (), "a TextDecoder, which is compared with texts")
EVALUATIONS: Mapping[type[nn.Module], EvaluationKind] = {
    ViT: CLASSIFIER,
    MAE: AUTOENCODER,
    CLIP: DUAL_ENCODER,
    TextDecoder: DECODER,
}


def choose_evaluation(bundle: Bundle) -> EvaluationKind:
    """Return the evaluation for a model. Raises: ValueError for a model of a class without one."""
    kind = type(bundle.model)
    if kind not in EVALUATIONS:
        classes = ", ".join(model.__name__ for model in EVALUATIONS)
        raise ValueError(f"model must be one of {classes} to be evaluated, got a {kind.__name__} in {bundle.source}")
    return EVALUATIONS[kind]


def refuse_options(evaluation: EvaluationKind, options: argparse.Namespace) -> None:
    """Refuse options of other evaluations. Raises: ValueError that lists them."""
    others = dict.fromkeys(name for kind in EVALUATIONS.values() for name in kind.options)
    if given := [name for name in others if name not in evaluation.options and getattr(options, name)]:
        names = " and ".join(name.replace("_", "-") for name in given)
        raise ValueError(f"{names} must be left out for {evaluation.models}")
