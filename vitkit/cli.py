"""The `vitkit` command: a table of commands. A command's module is imported when the command is chosen."""

import difflib
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import vitkit

COMMANDS = {
    "fit": ("vitkit.fit.command", "train a model as a config says"),
    "overfit": ("vitkit.fit.overfit", "drive one batch to zero loss, to see whether a model can learn at all"),
    "describe": ("vitkit.commands.describe", "show a model's stages: shapes, parameters, FLOPs, activations"),
    "predict": ("vitkit.commands.predict", "name what pictures show"),
    "evaluate": (
        "vitkit.commands.evaluate",
        "tell how good a model is on labelled pictures, or a CLIP on captions, and where it is wrong",
    ),
    "zero-shot": ("vitkit.commands.zero_shot", "classify pictures by a CLIP that is told the classes in words"),
    "features": ("vitkit.commands.features", "write what a model makes of pictures, to Parquet, npz or safetensors"),
    "reconstruct": ("vitkit.commands.reconstruct", "draw what a masked autoencoder takes hidden patches for"),
    "attend": ("vitkit.commands.attend", "attention maps of pictures, as figures and JSON"),
    "heads": (
        "vitkit.commands.heads",
        "attention-head statistics over a data set, and the effect of ablating each head",
    ),
    "explain": ("vitkit.commands.explain", "make a page of a picture: see where each head looks, and remove it"),
    "learn": ("vitkit.commands.learn", "make a page of lessons to play with, on what a Transformer computes"),
    "import": ("vitkit.commands.import_model", "make a model folder of a model of timm, open_clip, the hub, or a file"),
    "export": ("vitkit.commands.export", "write a model for ONNX, torch.export, timm, transformers and others"),
    "push": ("vitkit.commands.push", "upload a model folder to the hub of Hugging Face, with a card"),
    "unpack": ("vitkit.commands.unpack", "write the pictures and captions of a source as files"),
    "index": ("vitkit.commands.index", "embed pictures below folders into a database, and keep that up to date"),
    "search": ("vitkit.commands.search", "find in such a database what is like a text or a picture"),
    "bench": ("vitkit.commands.bench", "time models against their peers"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; what the user did wrong is one line on stderr."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help"):
        print(usage())
        return 0
    if name == "--version":
        print(f"vitkit {vitkit.__version__}")
        return 0
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it is one of {', '.join(COMMANDS)}"
        print(f"error: there is no command {name}; {hint}", file=sys.stderr)
        return 2
    try:
        status = import_module(COMMANDS[name][0]).main(rest)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        hint = "; the same command resumes from the last checkpoint, if there is one" if name == "fit" else ""
        print(f"\nstopped{hint}", file=sys.stderr)
        return 130  # 128 + SIGINT, as shells have it
    except BrokenPipeError:  # `| head` has read enough; Python would fail again when it flushes at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # 128 + SIGPIPE
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def usage() -> str:
    lines = [f"  {name:<12}{purpose}" for name, (_, purpose) in COMMANDS.items()]
    return "\n".join(["usage: vitkit COMMAND ...", "", *lines, "", "vitkit COMMAND --help says more."])
