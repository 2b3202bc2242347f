"""The `vitkit` command: a table of commands. A command's module is imported when the command is chosen."""

import difflib
import io
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import vitkit
from vitkit.support.errors import InputWarning, escape_controls

COMMANDS = {
    "fit": ("vitkit.fit.recipes", "train a model from a config"),
    "overfit": ("vitkit.fit.overfit", "overfit one batch, to check that a model can learn"),
    "describe": ("vitkit.commands.describe", "show a model's stages: shapes, parameters, FLOPs, activations"),
    "predict": ("vitkit.commands.predict", "classify pictures"),
    "evaluate": (
        "vitkit.commands.evaluate",
        "metrics and mistakes of a model on a data set: accuracy, recall of captions, explained variance",
    ),
    "complete": ("vitkit.commands.complete", "continue a text by a language model"),
    "zero-shot": ("vitkit.commands.zero_shot", "classify pictures by a CLIP and class names"),
    "features": ("vitkit.commands.features", "write features of pictures to Parquet, npz or safetensors"),
    "reconstruct": ("vitkit.commands.reconstruct", "draw the hidden patches of pictures as an MAE reconstructs them"),
    "attend": ("vitkit.commands.attend", "attention maps of pictures, as figures and JSON"),
    "heads": (
        "vitkit.commands.heads",
        "attention-head statistics over a data set, with the accuracy lost when each head is removed",
    ),
    "explain": ("vitkit.commands.explain", "make a page of a picture with the attention of each head"),
    "learn": ("vitkit.commands.learn", "make a page of interactive lessons on what a Transformer computes"),
    "import": ("vitkit.commands.import_model", "make a model folder from timm, open_clip, the hub, or a file"),
    "export": ("vitkit.commands.export", "write a model for ONNX, torch.export, timm, transformers and others"),
    "push": ("vitkit.commands.push", "upload a model folder to the hub of Hugging Face, with a card"),
    "unpack": ("vitkit.commands.unpack", "write the pictures and captions of a source as files"),
    "index": ("vitkit.commands.index", "embed the pictures of folders into a database, and keep it up to date"),
    "search": ("vitkit.commands.search", "search a database by a text or a picture"),
    "bench": ("vitkit.commands.bench", "compare the speed of models with other libraries"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status. An error of the user is one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # of names of files that are not UTF-8
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help"):
        print(format_usage())
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
        with print_notes():
            status = import_module(COMMANDS[name][0]).main(rest)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt as stop:
        hint = "; the same command resumes from the last checkpoint, if there is one" if name == "fit" else ""
        print(f"\nstopped{hint}", file=sys.stderr)
        return 128 + (stop.args[0] if stop.args else signal.SIGINT)  # as shells have it
    except BrokenPipeError:  # of `| head`; without this Python would fail again in its last flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # 128 + SIGPIPE
    except (ValueError, OSError) as error:
        print(escape_controls(f"error: {error}"), file=sys.stderr)
        return 1


@contextmanager
def print_notes() -> Iterator[None]:
    """Print each `InputWarning` once, as a note of one line; other warnings are printed as by Python."""
    show, notes = warnings.showwarning, set[str]()

    def print_note(message: Any, category: type[Warning], *place: Any) -> None:
        note = str(message)
        if not issubclass(category, InputWarning):
            show(message, category, *place)
        elif note not in notes:
            notes.add(note)
            print(escape_controls(f"note: {note}"), file=sys.stderr)

    with warnings.catch_warnings():
        warnings.filterwarnings("always", category=InputWarning)
        warnings.showwarning = print_note
        yield


def format_usage() -> str:
    lines = [f"  {name:<12}{purpose}" for name, (_, purpose) in COMMANDS.items()]
    return "\n".join(["usage: vitkit COMMAND ...", "", *lines, "", "vitkit COMMAND --help lists the options."])
