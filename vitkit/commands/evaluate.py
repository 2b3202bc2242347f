"""`vitkit evaluate`: how good a trained model is on labelled pictures, and where it is wrong."""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from torch import nn

from vitkit.bundle.bundle import Bundle, get_tokenizer
from vitkit.commands.options import (
    add_columns,
    add_fold,
    add_optional_out,
    add_reading,
    add_unlabelled,
    choose_report_folder,
    chosen_folds,
    chosen_reading,
)
from vitkit.convert.open import open_model
from vitkit.data.annotations.captions import TEXT_COLUMNS
from vitkit.data.annotations.labels import LABELS
from vitkit.data.annotations.no_annotation import UNLABELLED
from vitkit.data.order import split_folds
from vitkit.data.sources.open import open_source
from vitkit.data.sources.source import COLUMNS
from vitkit.data.tokenizer import POLICIES
from vitkit.evaluation.caption_retrieval import captions_in, evaluate_pairs, format_retrieval, write_retrieval_files
from vitkit.evaluation.classification import evaluate
from vitkit.evaluation.explained_variance import evaluate_hidden_patches
from vitkit.evaluation.probes import PROBED
from vitkit.evaluation.report import (
    Evaluation,
    add_omissions,
    check_evaluation_folder,
    finish_evaluation,
    print_outcome,
    replace,
    report,
)
from vitkit.models import CLIP, MAE, ViT


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "vitkit evaluate",
        description="Compare a model's answers with labels, and tell what can be read from its frozen features: by 20 "
        "nearest neighbours and by a linear probe, beside the same on pixels and, for a model without classes such as "
        "a pretrained MAE, on features of a random encoder. Of an MAE also tell how much of the variance of hidden "
        "patches it explains. Of a CLIP tell how well it finds captions by pictures and pictures by captions.",
    )
    parser.add_argument("model", help="a model folder, such as runs/classify_digits/model")
    parser.add_argument(
        "source",
        help="labelled pictures, named as for --data.train, with some of the model's classes or all; for a CLIP "
        "pictures with captions",
    )
    add_fold(parser)
    add_optional_out(parser, "(default: the folder evaluation beside the model, or here)")
    add_columns(parser, default=None, help="of a table; LABEL may be a caption")
    probe = parser.add_argument_group("classifiers and encoders")
    probe.add_argument(
        "--probe",
        metavar="SOURCE",
        help="what probes are fitted to (default: the other folds; without --fold cross-validated)",
    )
    probe.add_argument("--knn", action="store_true", help="of the probes only 20-NN (and others that are named)")
    probe.add_argument("--linear-probe", action="store_true", help="only the linear one (and others that are named)")
    probe.add_argument("--no-probe", action="store_true", help="neither")
    probe.add_argument("--probed", type=int, help=f"fit them to so many at most (default: {PROBED})")
    add_options(parser)
    add_reading(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parse_arguments(arguments)
    chosen_folds(options)
    if options.no_probe and (options.knn or options.linear_probe):
        raise ValueError("no-probe must not meet knn or linear-probe: leave out one or the other")
    folder = check_evaluation_folder(choose_report_folder(options, "evaluation"))
    bundle = open_model(options.model)
    evaluation = choose_evaluation(bundle)
    refuse_options(evaluation, options)
    return evaluation.run(bundle, options, folder)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_unlabelled(parser.add_argument_group("MAEs, on pictures without labels"))
    group = parser.add_argument_group("CLIPs, on pictures with captions")
    group.add_argument(
        "--own-only",
        action="store_true",
        help="equal captions of two pictures are two texts, as in published numbers (default: one, of both pictures)",
    )
    group.add_argument("--overflow", choices=POLICIES, help="of captions that do not fit (default: warn)")


def evaluate_labels(bundle: Bundle, options: argparse.Namespace, folder: Path) -> int:
    return finish_evaluation(evaluate_classes(bundle, options), folder)


def evaluate_classes(bundle: Bundle, options: argparse.Namespace) -> Evaluation:
    return evaluate(
        bundle,
        options.source,
        fold=options.fold,
        folds=chosen_folds(options),
        probe=options.probe,
        knn=not options.no_probe and (options.knn or not options.linear_probe),
        linear=not options.no_probe and (options.linear_probe or not options.knn),
        probed=PROBED if options.probed is None else options.probed,
        columns=COLUMNS if options.columns is None else tuple(options.columns),
        reading=chosen_reading(options),
    )


def evaluate_reconstruction(bundle: Bundle, options: argparse.Namespace, folder: Path) -> int:
    folds = chosen_folds(options)
    if options.unlabelled or options.no_probe:
        if options.probe or options.probed or options.knn or options.linear_probe:
            raise ValueError("probe, probed, knn and linear-probe must be left out with unlabelled or no-probe")
        source = open_source(options.source, UNLABELLED if options.unlabelled else LABELS, options.columns)
        numbers = {"model": bundle.source, "source": options.source, "fold": options.fold, "folds": folds}
    else:
        evaluation = evaluate_classes(bundle, options)
        source, numbers = evaluation.source, evaluation.numbers
    samples = range(len(source))
    if options.fold is not None:
        samples = split_folds(source.labels, source.class_names, folds, options.fold)[1]
    numbers |= evaluate_hidden_patches(bundle, source, samples, chosen_reading(options))
    omissions = add_omissions(numbers, source)
    replace(folder, numbers, ())
    print(report(numbers))
    return print_outcome(folder, False, omissions, numbers["pictures"])


def evaluate_captions(bundle: Bundle, options: argparse.Namespace, folder: Path) -> int:
    columns = TEXT_COLUMNS if options.columns is None else tuple(options.columns)
    captioned = captions_in(options.source, columns, bundle)
    overflow = options.overflow or "warn"
    evaluation = evaluate_pairs(
        bundle,
        captioned,
        fold=options.fold,
        folds=chosen_folds(options),
        own_only=options.own_only,
        overflow="truncate" if overflow == "warn" else overflow,
        reading=chosen_reading(options),
    )
    numbers = evaluation.numbers | {"source": options.source}
    if numbers["cut"] and overflow == "warn":
        cut, of, most = numbers["cut"], numbers["captions"], get_tokenizer(bundle).context
        print(f"note: {cut} of {of} captions do not fit into {most} ids; their ends are cut off", file=sys.stderr)
    omissions = add_omissions(numbers, captioned.pictures)
    replace(folder, numbers, write_retrieval_files(evaluation.retrieval, bundle, captioned.pictures, folder))
    print(format_retrieval(numbers))
    return print_outcome(folder, True, omissions, numbers["pictures"])


class EvaluationKind(NamedTuple):
    """The evaluation of models of a class.

    Args:
        run: evaluates a model by the command's options, writes to a folder and returns the exit status.
        options: those that are for this evaluation alone.
        models: the models that it is for, as errors call them.
    """

    run: Callable[[Bundle, argparse.Namespace, Path], int]
    options: tuple[str, ...]
    models: str


PROBE_OPTIONS = ("probe", "knn", "linear_probe", "no_probe", "probed")
LABELLED = EvaluationKind(evaluate_labels, PROBE_OPTIONS, "a ViT, which is compared with labels")
RECONSTRUCTED = EvaluationKind(
    evaluate_reconstruction, (*PROBE_OPTIONS, "unlabelled"), "an MAE, which reads no captions"
)
CAPTIONED = EvaluationKind(
    evaluate_captions, ("own_only", "overflow"), "a CLIP: it has no classes to compare probes with"
)
EVALUATIONS: Mapping[type[nn.Module], EvaluationKind] = {ViT: LABELLED, MAE: RECONSTRUCTED, CLIP: CAPTIONED}


def choose_evaluation(bundle: Bundle) -> EvaluationKind:
    """Raises: ValueError for a model of a class without an evaluation."""
    kind = type(bundle.model)
    if kind not in EVALUATIONS:
        known = ", ".join(model.__name__ for model in EVALUATIONS)
        raise ValueError(f"model must be one of {known} to be evaluated, got a {kind.__name__} in {bundle.source}")
    return EVALUATIONS[kind]


def refuse_options(evaluation: EvaluationKind, options: argparse.Namespace) -> None:
    """Raises: ValueError for options that only another evaluation takes."""
    others = dict.fromkeys(name for kind in EVALUATIONS.values() for name in kind.options)
    if given := [name for name in others if name not in evaluation.options and getattr(options, name)]:
        names = " and ".join(name.replace("_", "-") for name in given)
        raise ValueError(f"{names} must be left out for {evaluation.models}")
