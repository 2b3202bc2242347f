"""`vitkit complete`: continue a text by a language model."""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import torch

from vitkit.commands.options import STDIN, add_device
from vitkit.convert.open import open_text_decoder
from vitkit.generation import Sampler, Sampling, greedy
from vitkit.inference.completion import STEPS, Completion, complete, stream_completion
from vitkit.support.devices import get_device
from vitkit.support.errors import escape_controls


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "vitkit complete", description="Continue a text by a language model, on the screen as it is written."
    )
    parser.add_argument("model", help="a model folder of a TextDecoder, or hf:NAME of a GPT-2 or Llama")
    parser.add_argument(
        "prompt", help="a text, a file with one, or - for standard input; its last line end is left out"
    )
    parser.add_argument("--steps", type=int, help=f"the most new ids (default: {STEPS}, or the rest of the context)")
    parser.add_argument(
        "--temperature", type=float, help="divides the logits before ids are drawn (default: 0, greedy)"
    )
    parser.add_argument("--top-k", type=int, metavar="K", help="draw among the K most probable ids")
    parser.add_argument("--top-p", type=float, metavar="P", help="draw among the most probable ids that sum to P")
    parser.add_argument("--min-p", type=float, metavar="P", help="draw among ids of at least P times the largest")
    parser.add_argument("--samples", type=int, default=1, metavar="N", help="number of completions")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default: %(default)s)")
    parser.add_argument("--beams", type=int, default=1, metavar="N", help="search the best text with N beams")
    parser.add_argument(
        "--alpha", type=float, default=1.0, help="beams are ranked by log-probability / length^alpha (default: 1)"
    )
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end here too; may be repeated")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each completion")
    add_device(parser)
    options = parser.parse_args(arguments)

    prompt, sample = read_prompt(options.prompt), choose_sampler(options)
    bundle = open_text_decoder(options.model)
    if options.samples == options.beams == 1 and not options.json:
        pieces = stream_completion(
            bundle, prompt, options.steps, sample=sample, stop=options.stop, device=options.device
        )
        print_pieces(prompt, pieces)
        return 0
    (completions,) = complete(
        bundle,
        prompt,
        options.steps,
        sample=sample,
        stop=options.stop,
        samples=options.samples,
        beams=options.beams,
        alpha=options.alpha,
        device=options.device,
    )
    for number, completion in enumerate(completions, 1):
        print(format_json(prompt, completion) if options.json else format_text(prompt, number, completion))
    return 0


def read_prompt(text: str) -> str:
    """Return the text of a prompt, of a file, or of standard input. Raises: ValueError for bytes that are no UTF-8."""
    if text != STDIN and not os.path.isfile(text):
        return text
    content = sys.stdin.buffer.read() if text == STDIN else Path(text).read_bytes()
    try:
        return content.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise ValueError(f"a prompt must be text in UTF-8, got {text}: {error}") from None


def choose_sampler(options: argparse.Namespace) -> Sampler:
    """Return the sampler of the options: greedy without any."""
    limits = {name: getattr(options, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    limits = {name: value for name, value in limits.items() if value is not None}
    if not limits and options.samples > 1:
        raise ValueError(
            f"samples must be 1 without --temperature, as all would be equal, got samples={options.samples}"
        )
    if not limits:
        return greedy
    return Sampling(**limits, generator=torch.Generator(get_device(options.device)).manual_seed(options.seed))


def print_pieces(prompt: str, pieces: Iterator[str]) -> None:
    """Print the prompt and the pieces as they come; nothing if the first one raises an error."""
    first = next(pieces, "")
    for piece in chain((prompt, first), pieces):
        print(escape_controls(piece), end="", flush=True)
    print()


def format_text(prompt: str, number: int, completion: Completion) -> str:
    return escape_controls(f"{number}. log-probability {completion.score:.2f}\n{prompt}{completion.text}\n")


def format_json(prompt: str, completion: Completion) -> str:
    return json.dumps({"prompt": prompt, **completion._asdict()}, ensure_ascii=False)
