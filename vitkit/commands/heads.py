"""`vitkit heads`: attention statistics and ablation of a model's heads over a data set."""

import argparse

from vitkit.commands.options import (
    add_columns,
    add_fold,
    add_optional_out,
    add_reading,
    add_unlabelled,
    add_words,
    choose_folds,
    choose_report_folder,
    describe_report_folder,
    make_reading,
)
from vitkit.data.sources.open import open_pictures
from vitkit.inference.prompts import parse_class_names
from vitkit.interpret.examine.head_report import finish_head_report
from vitkit.interpret.examine.head_survey import PICTURES, UNTRAINED, heads


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "vitkit heads",
        description="Measure every attention head of a model over pictures: attention distance, entropy, and shares by "
        "kind of token; ablate each head and measure the change of the output, beside random baselines. Prints a "
        "table; writes JSON, CSV and figures.",
        epilog="example: vitkit heads runs/classify_digits/model digits --fold 0",
    )
    parser.add_argument("model", help="a model folder, timm:NAME, openclip:NAME@PRETRAINED, hf:USER/NAME")
    parser.add_argument("source", help="pictures: named as for --data.train, or an image or any folder")
    add_unlabelled(parser)
    add_fold(parser)
    add_columns(parser)
    add_words(parser)
    parser.add_argument(
        "--pictures", type=int, default=PICTURES, help="the most to use, sampled evenly (default: %(default)s)"
    )
    parser.add_argument("--no-ablation", action="store_true", help="statistics only: ablation takes most of the time")
    parser.add_argument(
        "--how",
        choices=("zero", "mean"),
        default="zero",
        help="output of an ablated head: zeros, or its mean over the pictures (default: %(default)s)",
    )
    parser.add_argument(
        "--against",
        metavar="MODEL",
        help=f"compare with another model, or with this one before training: {UNTRAINED}",
    )
    add_optional_out(parser, f"(default: {describe_report_folder('heads')})")
    add_reading(parser)
    options = parser.parse_args(arguments)

    folds = choose_folds(options)
    folder = choose_report_folder(options, "heads")
    source = open_pictures(options.source, tuple(options.columns), options.exclude, options.unlabelled)
    report = heads(
        options.model,
        source,
        classes=() if options.classes is None else parse_class_names(options.classes),
        pictures=options.pictures,
        fold=options.fold,
        folds=folds,
        ablation=not options.no_ablation,
        mean=options.how == "mean",
        against=options.against,
        reading=make_reading(options),
    )
    report.facts["source"] = options.source
    return finish_head_report(report, folder, source.omissions)
