"""`vitkit import`: convert a model of timm, open_clip or transformers, or a file of weights, to a model folder."""

import argparse
from pathlib import Path

from torch import nn

from vitkit.commands.options import add_out, add_size
from vitkit.convert.importer import import_model
from vitkit.convert.open import open_model
from vitkit.convert.overrides import Conversion, Overrides, get_grid, get_image_config
from vitkit.data.preprocess import BACKGROUNDS, RESAMPLING
from vitkit.data.tokenizer import CLIP
from vitkit.support.names import read_class_list
from vitkit.support.output import open_output


def format_conversion(conversion: Conversion, model: nn.Module) -> str:
    """Return the architecture, the preprocessing, the classes and the notes of an imported model, a line each."""
    image = get_image_config(conversion.config)["init_args"]
    text = conversion.config["init_args"].get("text", {"init_args": {}})["init_args"]
    stacks = {"encoder": image.get("encoder"), "decoder": image.get("decoder"), "text encoder": text.get("encoder")}
    trunk = " + ".join(
        f"{name} of {stack['init_args']['depth']} blocks, {stack['init_args']['dim']} wide, "
        f"{stack['init_args']['heads']} heads"
        for name, stack in stacks.items()
        if stack
    )
    classes = conversion.class_names
    names = f"{classes[0]}, {classes[1]}, ..." if len(classes) > 1 else "".join(classes)
    lines = {
        "architecture": f"{type(model).__name__}: {trunk}",
        "parameters": f"{sum(parameter.numel() for parameter in model.parameters()):,}",
    }
    if (preprocess := conversion.preprocess) is not None:
        (rows, columns), (height, width) = get_grid(conversion.config), preprocess.size
        lines["grid (h, w)"] = f"{rows} x {columns} patches of {' x '.join(map(str, image['patch_size']))} pixels"
        lines["pictures"] = (
            f"{height} x {width}, {preprocess.interpolation}, crop {preprocess.crop:g}, "
            f"mean {format_channels(preprocess.mean)}, std {format_channels(preprocess.std)}"
        )
    several = ", of which a picture may have several" if conversion.multilabel else ""
    lines["classes"] = f"{len(classes):,} ({names}){several}" if classes else "none"
    if (tokenizer := conversion.tokenizer) is not None:
        owner = "CLIP's" if tokenizer.name == CLIP else "its own"
        lines["texts"] = f"up to {tokenizer.context} ids, {owner} vocabulary of {tokenizer.vocabulary.size:,}"
    notes = [f"note: {note}" for note in conversion.notes]
    return "\n".join([*(f"{name:<14}{value}" for name, value in lines.items()), *notes])


def format_channels(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:g}" for value in values)


def build_overrides(options: argparse.Namespace) -> Overrides:
    class_names = tuple(read_class_list(options.classes)) if options.classes else ()
    size, mean, std = (values and tuple(values) for values in (options.size, options.mean, options.std))
    return Overrides(
        like=options.like,
        heads=options.heads,
        decoder_heads=options.decoder_heads,
        size=size,
        norm_pix=options.norm_pix,
        mean=mean,
        std=std,
        interpolation=options.interpolation,
        crop=options.crop,
        classes=class_names or None,
        tower=options.tower,
        window=options.window and tuple(options.window),
        background=options.background,
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "vitkit import",
        description="Convert a model of another library, or a file of weights, to a model folder: weights, "
        "architecture, preprocessing and class names. No code in a file is run; every tensor must match the model.",
        epilog=USE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", help="timm:NAME, openclip:NAME@PRETRAINED, hf:NAME, a folder or a file (see below)")
    add_out(parser, "DIR", "a new or empty folder")
    parser.add_argument("--classes", type=Path, metavar="FILE", help="class names in the order of outputs, one a line")
    parser.add_argument("--tower", choices=("image",), help="keep one tower of a CLIP, as a ViT (default: both)")
    pictures = parser.add_argument_group("preprocessing, if the source has none, or to override it")
    add_size(pictures)
    pictures.add_argument("--mean", type=float, nargs="+", help="one number for each channel, of pixels from 0 to 1")
    pictures.add_argument("--std", type=float, nargs="+", help="one number for each channel")
    pictures.add_argument("--interpolation", choices=RESAMPLING)
    pictures.add_argument("--crop", type=float, help="fraction of the shorter side that is kept, such as 0.875")
    pictures.add_argument(
        "--window",
        type=int,
        nargs=2,
        metavar=("LOW", "HIGH"),
        help="values of 16-bit grey that become black and white (default: 0 65535)",
    )
    pictures.add_argument(
        "--background",
        choices=BACKGROUNDS,
        help="laid under transparent pictures; contrast is black under those that white would hide (default: white)",
    )
    bare = parser.add_argument_group("architecture, for a file that holds only tensors")
    bare.add_argument(
        "--like", metavar="MODEL", help="a model of that architecture: timm:NAME, openclip:NAME, a folder"
    )
    bare.add_argument("--heads", type=int, help="number of attention heads")
    bare.add_argument("--decoder-heads", type=int, help="attention heads in the decoder of a masked autoencoder")
    bare.add_argument(
        "--norm-pix", action=argparse.BooleanOptionalAction, help="whether an MAE's decoder predicts normalised patches"
    )
    options = parser.parse_args(arguments)

    conversion = import_model(options.source, options.out, build_overrides(options), overwrite=options.overwrite)
    with open_output(None) as terminal:
        lines = format_conversion(conversion, open_model(options.out).model), f"written to {options.out}"
        print(*lines, sep="\n", file=terminal)
    return 0


USE = """\
sources:
  timm:NAME                 ViT, DeiT, DINOv2, CLIP, SigLIP and others, as in timm.list_models("vit_*", pretrained=True)
  openclip:NAME@PRETRAINED  CLIP and SigLIP, both towers, as in open_clip.list_pretrained()
  hf:NAME[@REVISION]        a repository of ViT, DeiT, ViTMAE, DINOv2, CLIP, SigLIP, of timm, of open_clip, or of vitkit
  FOLDER                    in the format of transformers, timm or open_clip
  FILE                      of safetensors, PyTorch (also Lightning's .ckpt) or NumPy, with any suffix: timm's names,
                            MAE's own files, AugReg's arrays; a prefix of names, such as model., is taken off

examples:
  vitkit import timm:vit_small_patch14_dinov2.lvd142m --out models/dinov2
  vitkit import hf:facebook/vit-mae-base --out models/mae
  vitkit import openclip:ViT-B-32@openai --out models/clip
  vitkit import hf:google/siglip-base-patch16-224 --out models/siglip_image --tower image
  vitkit import mae_visualize_vit_base.pth --out models/mae --no-norm-pix
  vitkit import checkpoint.pth --out models/mine --like timm:vit_base_patch16_224
  vitkit import checkpoint.pth --out models/mine --heads 6 --size 96 160 \\
    --mean 0.5 0.5 0.5 --std 0.25 0.25 0.25 --interpolation bicubic --crop 1

vitkit predict, evaluate, features, fit --pretrained and vitkit.open_model also take timm:, openclip: and hf: names,
without an import.
"""
