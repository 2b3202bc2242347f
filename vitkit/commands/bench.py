"""`vitkit bench`: compare the speed of vitkit with its peers: models, epochs, loading, attention weights."""

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vitkit.bench import attention_capture, clip_training, image_loading, mae_training, text_decoding, vit_steps
from vitkit.bench.peers import DTYPES, Row, Settings, print_rows
from vitkit.bench.timing import get_processor_name
from vitkit.commands.options import add_overwrite
from vitkit.models import SIZES
from vitkit.nn.cores import has_fast_bfloat16
from vitkit.support.devices import get_device
from vitkit.support.files import require_new

DESCRIPTION = """
Compare the speed of Vision Transformers with timm's. Both have the same weights and run in turn, in one process: a
forward pass and a training step, in each dtype, on one thread and on all. One of the options below compares something
else instead.
"""
EPILOG = """
The speed-up is the median over the pairs of timings, printed with the first and third quartile. A note at the end says
if other processes used the processor meanwhile. Progress is printed to stderr.
"""
STEPS = frozenset({"dtype", "threads", "batch", "pairs", "device", "compile"})
KINDS = {  # comparisons other than steps of ViTs, and the options that apply to each, besides --json
    "epoch": STEPS | {"models", "workers", "pictures"},
    "pretraining": STEPS,
    "contrast": STEPS,
    "decoder": STEPS,
    "attention": {"threads"},
    "loading": {"pairs", "workers", "pictures", "size", "reduce"},
}


class Kind(NamedTuple):
    """A table of comparisons with peers.

    Args:
        compare: yields the rows for a name.
        dtypes: default where bfloat16 is fast.
        batch: default on a CPU, and elsewhere.
        check: raises ValueError for a batch that cannot be timed.
    """

    header: str
    compare: Callable[[str, Settings], Iterator[Row]]
    names: Sequence[str]
    dtypes: Sequence[str]
    batch: tuple[int, int] = (8, 256)
    check: Callable[[int], object] = lambda batch: None


def choose_kind(options: argparse.Namespace) -> Kind:
    if options.pretraining:
        return Kind(mae_training.HEADER, mae_training.compare, options.pretraining, DTYPES)
    if options.contrast:
        return Kind(clip_training.HEADER, clip_training.compare, options.contrast, ("float32", "bf16-mixed"))
    if options.decoder:
        return Kind(text_decoding.HEADER, text_decoding.compare, options.decoder, DTYPES)
    if options.epoch:
        from vitkit.bench import fit_epochs  # imports Lightning, which the others do not need

        def compare(name: str, settings: Settings) -> Iterator[Row]:
            reading = {"pictures": options.pictures, "workers": options.workers}
            return fit_epochs.compare(name, settings, folder=options.epoch, **reading)

        names = options.models or vit_steps.MODELS[:1]
        check = partial(fit_epochs.choose_batches, options.epoch, options.pictures)
        return Kind(fit_epochs.HEADER, compare, names, ("bf16-mixed",), (32, 256), check)
    return Kind(vit_steps.HEADER, vit_steps.compare, options.models or vit_steps.MODELS, DTYPES)


def time_peers(options: argparse.Namespace, device: torch.device, threads: Sequence[int]) -> int:
    kind, fast = choose_kind(options), has_fast_bfloat16(device.type)
    batch = kind.batch[device.type != "cpu"] if options.batch is None else options.batch
    kind.check(batch)
    dtypes = options.dtype or (kind.dtypes if fast else ("float32",))
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's banners
    torch.manual_seed(0)
    machine = {"torch": version("torch"), "timm": version("timm"), "processor": get_processor_name(device)}
    machine |= {"pairs": options.pairs, "batch": batch, "compiled": options.compile}
    if options.epoch:
        machine["workers"] = options.workers
    print(*(f"{name} {value}" for name, value in machine.items()), sep=", ")
    if not options.dtype and not fast:
        print("float32 alone: this processor has no fast bfloat16; --dtype selects others")
    if "bfloat16" in dtypes:
        print("bfloat16: weights and images cast by .to(torch.bfloat16), no autocast")
    if "bf16-mixed" in dtypes:
        print("bf16-mixed: float32 weights under torch.autocast in bfloat16, as `vitkit fit` trains")
    if {*dtypes} - {"float32"} and not fast:
        print("bfloat16 is emulated by this processor: its figures say nothing about others")

    def compare_all() -> Iterator[Row]:
        for name in kind.names:
            for count in threads:
                torch.set_num_threads(count)
                for dtype in dtypes:
                    yield from kind.compare(name, Settings(dtype, device, count, batch, options.pairs, options.compile))

    before = torch.get_num_threads()
    try:
        return print_rows(kind.header, compare_all(), machine, options.json)
    finally:
        torch.set_num_threads(before)


def time_loading(options: argparse.Namespace) -> int:
    image_loading.choose_images(options.loading, options.pictures)  # refuses an invalid folder before the output starts
    settings = {name: getattr(options, name) for name in ("size", "workers", "reduce", "pictures")}
    machine = {**image_loading.get_versions(), "processor": get_processor_name(torch.device("cpu")), **settings}
    print(*(f"{name} {value}" for name, value in machine.items()), sep=", ")
    rows = image_loading.compare(options.loading, rounds=options.pairs, **settings)
    return print_rows(image_loading.HEADER, rows, machine, options.json)


def time_attention(options: argparse.Namespace, threads: Sequence[int]) -> int:
    machine: dict[str, Any] = {"processor": get_processor_name(torch.device("cpu"))}
    rows = (row for count in threads for row in attention_capture.compare(options.attention, count))
    return print_rows(attention_capture.HEADER, rows, machine, options.json)


def parse_options(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line. Raises: ValueError for options that do not apply to the comparison."""
    parser = argparse.ArgumentParser("vitkit bench", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument(
        "--models",
        nargs="+",
        metavar="SIZE/PATCH@PIXELS",
        help=f"models to time (default: {' '.join(vit_steps.MODELS)}; with --epoch {vit_steps.MODELS[0]})",
    )
    parser.add_argument(
        "--dtype",
        nargs="+",
        choices=DTYPES,
        help="bfloat16: weights too; bf16-mixed: float32 weights under autocast, as `vitkit fit` trains (default: all "
        "three where the hardware has bfloat16, without bfloat16 for --contrast, bf16-mixed for --epoch; else float32)",
    )
    parser.add_argument(
        "--threads",
        nargs="+",
        type=int,
        metavar="N",
        help="numbers of processor threads, timed in turn (default: 1 and all; on a GPU all)",
    )
    parser.add_argument(
        "--batch", type=int, metavar="N", help="samples in a step (default: 8 on a CPU, 32 with --epoch; on a GPU 256)"
    )
    parser.add_argument(
        "--pairs", type=int, default=9, metavar="N", help="number of timings of each side (default: %(default)s)"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda or cuda:1 (default: the fastest one available)")
    parser.add_argument("--compile", action="store_true", help="compile both models with torch.compile")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file, those of pairs too")
    add_overwrite(parser, "replace the file of --json")
    group = parser.add_argument_group("other comparisons").add_mutually_exclusive_group()
    group.add_argument(
        "--epoch",
        metavar="FOLDER",
        help="whole epochs of `vitkit fit` and of timm's training loop, with loading and augmentation, on the images "
        "in class folders; each side trains 1 + --pairs epochs for each number of threads",
    )
    group.add_argument(
        "--pretraining",
        nargs="+",
        choices=SIZES,
        metavar="SIZE",
        help=f"training steps of MAE and those of transformers and lightly; sizes: {', '.join(SIZES)}",
    )
    group.add_argument(
        "--contrast",
        nargs="+",
        choices=clip_training.TOWERS,
        metavar="SIZE",
        help="text encoding and training steps of CLIP and those of open_clip; sizes: "
        f"{', '.join(clip_training.TOWERS)}",
    )
    group.add_argument(
        "--decoder",
        nargs="+",
        choices=SIZES,
        metavar="SIZE",
        help="text generation, with and without a cache, training steps and the loss of a GPT-2, and those of "
        f"transformers; sizes: {', '.join(SIZES)}",
    )
    group.add_argument(
        "--attention",
        type=int,
        nargs="?",
        const=attention_capture.PIXELS,
        metavar="PIXELS",
        help="time and memory to get the attention weights of one square image, here and in transformers, on the CPU "
        f"(default: {attention_capture.PIXELS} pixels a side)",
    )
    group.add_argument(
        "--loading",
        metavar="FOLDER",
        help="loading of the images in class folders, here and with torchvision's ImageFolder",
    )
    images = parser.add_argument_group("for --epoch and --loading")
    images.add_argument(
        "--workers", type=int, default=2, metavar="N", help="processes that load images (default: %(default)s)"
    )
    images.add_argument(
        "--pictures", type=int, metavar="N", help="take N images of the folder, drawn at random (default: all)"
    )
    images = parser.add_argument_group("for --loading")
    images.add_argument(
        "--size", type=int, default=224, metavar="PIXELS", help="side of the loaded images (default: %(default)s)"
    )
    images.add_argument(
        "--reduce",
        type=float,
        default=2.0,
        metavar="FACTOR",
        help="decode JPEGs at 1/2, 1/4 or 1/8 while both sides stay this many times SIZE (default: %(default)g)",
    )
    options = parser.parse_args(arguments)
    check_applicable(options, {name: parser.get_default(name) for name in vars(options)})
    return options


def check_applicable(options: argparse.Namespace, defaults: Mapping[str, object]) -> None:
    """Raise a ValueError if an option was given that does not apply to the comparison."""
    values = vars(options)
    kind = next((name for name in KINDS if values[name] is not None), None)
    used = {*KINDS, "json", "overwrite"} | (STEPS | {"models"} if kind is None else KINDS[kind])
    if unused := [name for name in values if name not in used and values[name] != defaults[name]]:
        where = "without --epoch or --loading" if kind is None else f"with --{kind}"
        given = ", ".join(f"{name}={values[name]}" for name in unused)
        raise ValueError(f"{', '.join(unused)} must be left out {where}, where it has no effect, got {given}")


def check_numbers(options: argparse.Namespace, threads: Sequence[int]) -> None:
    """Raise a ValueError for numbers that are too small."""
    values = {name: getattr(options, name) for name in ("pairs", "batch", "pictures", "size", "reduce", "workers")}
    values["threads"] = min(threads)
    minimum = {name: 0 if name == "workers" else 1 for name in values}
    low = [name for name, value in values.items() if value is not None and value < minimum[name]]
    if low:
        raise ValueError(
            "; ".join(f"{name} must be at least {minimum[name]}, got {name}={values[name]}" for name in low)
        )


def main(arguments: list[str]) -> int:
    options = parse_options(arguments)
    for name in options.models or ():
        vit_steps.parse_shape(name)  # before minutes of timing
    if options.json:
        require_new(options.json, options.overwrite, option="json")
    device = get_device(options.device)
    all_threads = torch.get_num_threads()
    threads = options.threads or (sorted({1, all_threads}) if device.type == "cpu" else [all_threads])
    check_numbers(options, threads)
    if options.loading:
        return time_loading(options)
    if options.attention is not None:
        return time_attention(options, threads)
    return time_peers(options, device, threads)
