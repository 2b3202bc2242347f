"""`vitkit export`: write a model for ONNX runtimes, torch.export or another library, and compare the outputs.

B batch, C channels, h w the model's image size.
"""

import argparse
import os

from vitkit.commands.options import add_out
from vitkit.convert.programs import OPSETS, TOLERANCE, WRITERS, export
from vitkit.convert.write import LAYOUTS, export_to, format_export


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "vitkit export",
        description="Write model.onnx or model.pt2, for batches of any size, with preprocess.json and classes.json "
        "beside it; of a CLIP, image.onnx and text.onnx with its tokenizer and logits.json; of an MAE, its encoder. "
        "Or, with --to, write files that timm, transformers, open_clip or MAE's own code loads. "
        f"Nothing is kept unless the outputs equal the model's within {TOLERANCE}.",
        epilog=USE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="a model folder, such as runs/classify_digits/model")
    add_out(parser, "DIR", "a new or empty folder")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--format", nargs="+", choices=WRITERS, default=["onnx"], help="(default: onnx)")
    kinds.add_argument("--to", choices=LAYOUTS, help="the library to export to, which loads the files strictly")
    parser.add_argument(
        "--opset",
        type=int,
        metavar="N",
        help=f"version of ONNX's operators, {OPSETS[0]} to {OPSETS[-1]}, for a runtime that reads no other (default: "
        "torch.onnx's)",
    )
    parser.add_argument("--images", nargs="+", default=(), help="pictures to compare on (default: bundled photographs)")
    options = parser.parse_args(arguments)

    if options.to:
        if options.opset is not None:
            raise ValueError(f"opset must be left out with --to, got opset={options.opset}")
        print(
            format_export(options.out, export_to(options.model, options.out, options.to, overwrite=options.overwrite))
        )
        return 0
    files = export(
        options.model,
        options.out,
        options.format,
        options.images,
        opset=options.opset,
        overwrite=options.overwrite,
    )
    for file, differences in files:
        largest = ", ".join(f"{value:.1e} at batch {batch}" for batch, value in differences.items())
        size = os.path.getsize(options.out / file) / 1e6
        print(f"{options.out / file}  {size:,.1f} MB, largest difference {largest}")
    return 0


CLASSIFIER = """\
a classifier:
  import json, onnxruntime
  from pathlib import Path
  from vitkit.data.preprocess import Preprocess, read_image
  preprocess = Preprocess.from_dict(json.loads(Path("DIR/preprocess.json").read_text()))
  classes = json.loads(Path("DIR/classes.json").read_text())
  images = preprocess(read_image("picture.jpg"))[None]           # (B, C, h, w), float32
  session = onnxruntime.InferenceSession("DIR/model.onnx")
  logits = session.run(["logits"], {"images": images.numpy()})[0]
  print(classes[logits[0].argmax()])     # several labels an image: classes["several"], whose logit is above 0
  # or without onnxruntime; open only files that you trust
  import torch
  logits = torch.export.load("DIR/model.pt2").module()(images)
"""
MAE = """\
an MAE, whose encoder sees all patches:
  features = session.run(["features"], {"images": images.numpy()})[0]   # (B, T, D): CLS, then patches row by row
"""
CLIP = """\
a CLIP:
  from vitkit.data.tokenizer import Tokenizer
  ids = Tokenizer.from_folder(Path("DIR"))(["a cat", "a dog"])          # (texts, T), int64; each ends within T
  image, text = (onnxruntime.InferenceSession(f"DIR/{name}.onnx") for name in ("image", "text"))
  image = image.run(["embeddings"], {"images": images.numpy()})[0]      # (B, E), of length 1
  text = text.run(["embeddings"], {"ids": ids.numpy()})[0]
  logits = json.loads(Path("DIR/logits.json").read_text())
  print(logits["scale"] * image @ text.T + logits["bias"])
"""
USE = "\n".join([CLASSIFIER, MAE, CLIP])
