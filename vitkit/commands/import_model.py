"""`vitkit import`: models of timm, open_clip and transformers, and MAE's and AugReg's files, as a model folder."""

import argparse
from pathlib import Path

from torch import nn

from vitkit.commands.options import add_out, add_size
from vitkit.convert.importer import import_model
from vitkit.convert.open import open_model
from vitkit.convert.overrides import Conversion, Overrides, get_grid, get_image_config
from vitkit.data.preprocess import RESAMPLING
from vitkit.data.tokenizer import CLIP
from vitkit.support import errors


def report(found: Conversion, model: nn.Module) -> str:
    """What a model is, in a few lines."""
    image = get_image_config(found.config)["init_args"]
    text = found.config["init_args"].get("text", {"init_args": {}})["init_args"]
    held = {"encoder": image.get("encoder"), "decoder": image.get("decoder"), "text encoder": text.get("encoder")}
    trunk = " + ".join(
        f"{name} of {part['init_args']['depth']} blocks, {part['init_args']['dim']} wide, "
        f"{part['init_args']['heads']} heads"
        for name, part in held.items()
        if part
    )
    classes = found.class_names
    names = f"{classes[0]}, {classes[1]}, ..." if len(classes) > 1 else "".join(classes)
    lines = {
        "architecture": f"{type(model).__name__}: {trunk}",
        "parameters": f"{sum(parameter.numel() for parameter in model.parameters()):,}",
    }
    if (preprocess := found.preprocess) is not None:
        (rows, columns), (height, width) = get_grid(found.config), preprocess.size
        lines["grid (h, w)"] = f"{rows} x {columns} patches of {' x '.join(map(str, image['patch_size']))} pixels"
        lines["pictures"] = (
            f"{height} x {width}, {preprocess.interpolation}, crop {preprocess.crop:g}, "
            f"mean {listed(preprocess.mean)}, std {listed(preprocess.std)}"
        )
    lines["classes"] = f"{len(classes):,} ({names})" if classes else "none"
    if (tokenizer := found.tokenizer) is not None:
        own = "CLIP's" if tokenizer.name == CLIP else "its own"
        lines["texts"] = f"up to {tokenizer.context} ids, {own} vocabulary of {tokenizer.vocabulary.size:,}"
    return "\n".join([*(f"{name:<14}{text}" for name, text in lines.items()), *(f"note: {x}" for x in found.notes)])


def listed(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:g}" for value in values)


def class_names(path: Path) -> tuple[str, ...]:
    with errors.prefix_errors(path):
        return tuple(name.strip() for name in path.read_text("utf-8").split("\n") if name.strip())


def told_by(options: argparse.Namespace) -> Overrides:
    names = class_names(options.classes) if options.classes else ()
    size, mean, std = (values and tuple(values) for values in (options.size, options.mean, options.std))
    return Overrides(
        options.like,
        options.heads,
        options.decoder_heads,
        size,
        options.norm_pix,
        mean,
        std,
        options.interpolation,
        options.crop,
        names or None,
        options.tower,
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "vitkit import",
        description="Write a model of another library, or a file of weights, as a model folder: weights, architecture, "
        "preprocessing and class names. Nothing that comes from a file is run; every tensor must have its place.",
        epilog=USE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", help="timm:NAME, openclip:NAME@PRETRAINED, hf:NAME, a folder or a file (see below)")
    add_out(parser, "DIR", "a new folder")
    parser.add_argument("--classes", type=Path, metavar="FILE", help="names of the classes, one a line, in their order")
    parser.add_argument("--tower", choices=("image",), help="of a CLIP only this, as a ViT (default: both towers)")
    pictures = parser.add_argument_group("preprocessing, where the source says none or is to be overruled")
    pictures.add_argument("--mean", type=float, nargs="+", help="one number a channel, of pixels from 0 to 1")
    pictures.add_argument("--std", type=float, nargs="+", help="one number a channel")
    pictures.add_argument("--interpolation", choices=RESAMPLING)
    pictures.add_argument("--crop", type=float, help="how much of the shorter side is kept, such as 0.875")
    bare = parser.add_argument_group("architecture, for a file that holds nothing but tensors")
    bare.add_argument("--like", metavar="MODEL", help="a model that is the same: timm:NAME, openclip:NAME, or a folder")
    bare.add_argument("--heads", type=int, help="of attention")
    bare.add_argument("--decoder-heads", type=int, help="of attention in the decoder of a masked autoencoder")
    add_size(bare)
    bare.add_argument(
        "--norm-pix", action=argparse.BooleanOptionalAction, help="whether the decoder speaks of normalised patches"
    )
    options = parser.parse_args(arguments)

    found = import_model(options.source, options.out, told_by(options))
    print(report(found, open_model(options.out).model), f"written to {options.out}", sep="\n")
    return 0


USE = """\
sources:
  timm:NAME                 ViT, DeiT, DINOv2, CLIP, SigLIP and others, as in timm.list_models("vit_*", pretrained=True)
  openclip:NAME@PRETRAINED  CLIP and SigLIP, both towers, as in open_clip.list_pretrained()
  hf:NAME[@REVISION]        a repository of ViT, DeiT, ViTMAE, DINOv2, CLIP, SigLIP, of timm, of open_clip, or of vitkit
  FOLDER                    in the format of transformers, timm or open_clip
  FILE                      .safetensors, .pth, .pt, .bin or .npz: timm's names, MAE's own files, AugReg's arrays

examples:
  vitkit import timm:vit_small_patch14_dinov2.lvd142m --out models/dinov2
  vitkit import hf:facebook/vit-mae-base --out models/mae
  vitkit import openclip:ViT-B-32@openai --out models/clip
  vitkit import hf:google/siglip-base-patch16-224 --out models/siglip_image --tower image
  vitkit import mae_visualize_vit_base.pth --out models/mae --no-norm-pix
  vitkit import checkpoint.pth --out models/mine --like timm:vit_base_patch16_224
  vitkit import checkpoint.pth --out models/mine --heads 6 --size 96 160 \\
    --mean 0.5 0.5 0.5 --std 0.25 0.25 0.25 --interpolation bicubic --crop 1

Without --out: vitkit predict, evaluate, features and Python's vitkit.open_model take timm:, openclip: and hf: names.
"""
