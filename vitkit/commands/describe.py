"""`vitkit describe`: every stage of a network, with what it costs and what it does to one real image.

D width, L depth.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from vitkit.commands.subject import named, open_subject
from vitkit.data.preprocess import read
from vitkit.inference.stages import closed_form, describe, notes, report


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("vitkit describe", description="Show a network's stages, for one real image.")
    parser.add_argument("what", help="a model folder, a config of vitkit fit, or a size such as b/16")
    parser.add_argument("--image", type=Path, help="a picture file (default: the first of the config's data)")
    parser.add_argument("--size", type=int, nargs=2, metavar=("H", "W"), help="of the image, in pixels")
    parser.add_argument("--text", default="a photo of a flower.", help="for a CLIP (default: %(default)s)")
    options, overrides = parser.parse_known_args(arguments)

    torch.manual_seed(0)
    model, preprocess, picture, title, tokenizer = open_subject(options.what, overrides)
    if options.image:
        picture, title = read(options.image), options.image
    if options.size:
        preprocess = replace(preprocess, size=tuple(options.size))
    inputs = [preprocess(picture)[None]]
    if tokenizer is not None:
        inputs.append(tokenizer(options.text))
        title = f"{title}, and told {options.text!r} ({inputs[1].shape[1]} ids)"
    stages = describe(model.eval(), *inputs)
    print(f"{options.what}: {type(model).__name__} in evaluation mode, shown {title}", "", report(stages), "", sep="\n")
    print("FLOPs are multiply-adds times 2, in matrix products and convolutions. Variance is over all of an output.")
    if name := named(options.what):
        print(f"closed formula: {closed_form(*name):,} parameters")
    for note in notes(stages):
        print(f"note: {note}")
    return 0
