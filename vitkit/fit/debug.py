"""`vitkit fit --debug`: make any config small enough to run in seconds, by the names of its arguments."""

import math
import re
from collections.abc import Iterator
from typing import Any

from jsonargparse import Namespace

from vitkit.bundle.model_config import find_class
from vitkit.nn import Encoder

BATCH, HEADS = 8, 2
TRAINER = {
    "max_epochs": 1,
    "max_steps": -1,
    "min_epochs": None,
    "min_steps": None,
    "check_val_every_n_epoch": 1,
    "limit_train_batches": 3,
    "limit_val_batches": 2,
    "val_check_interval": None,
}
# Arguments of tasks and schedules that take long, or need more steps than a debug run has.
SHORT = {"probe_every": 0, "varied": 0, "warmup": 0, "cooldown": 0}
BLOCK = re.compile(r"\bblocks\.(\d|\?|\[[^]]*\])+")  # in a pattern of parameters


def shorten_run(config: Namespace) -> None:
    """Set three training batches of at most BATCH samples and two of validation; no warm-up, probes and baselines."""
    config.trainer.update(Namespace(TRAINER))
    config.report.baselines = False
    data = config.data.init_args
    for name, most in (("batch", BATCH), ("workers", 1)):
        if name in data:
            data[name] = min(data[name], most)
    for arguments in iterate_arguments(config.model):
        for name in SHORT.keys() & vars(arguments).keys():
            arguments[name] = SHORT[name]


def shrink_model(config: Namespace) -> None:
    """Set every Encoder to one block of two heads of their old width, and adapt the arguments that repeat its width.

    Equal widths stay equal, and a common divisor with 8 is kept: tables and pools may rely on both.
    """
    encoders = [value.init_args for value in iterate_classes(config.model) if find_class(value.class_path) is Encoder]
    widths: dict[int, int] = {}
    for encoder in encoders:
        widths[encoder.dim] = math.lcm(widths.get(encoder.dim, 1), choose_width(encoder.dim, encoder.heads))
    for encoder in encoders:
        for arguments in iterate_arguments(encoder):  # of its attention; an invalid number stays invalid
            if arguments.get("kv_heads") and encoder.heads % arguments.kv_heads == 0:
                arguments.kv_heads = 1
        head_dim, remainder = divmod(encoder.dim, encoder.heads)
        encoder.depth = 1
        encoder.heads = min(encoder.heads, HEADS) if remainder else widths[encoder.dim] // head_dim
    for arguments in iterate_arguments(config.model):
        for name in {"dim", "memory_dim"} & vars(arguments).keys():
            arguments[name] = widths.get(arguments[name], arguments[name])
        if "heads" in arguments and not any(arguments is encoder for encoder in encoders):  # of a pool
            arguments.heads = math.gcd(arguments.heads, HEADS)
    if "freeze" in config.model.init_args:
        frozen = [BLOCK.sub("blocks.0", pattern) for pattern in config.model.init_args.freeze]
        config.model.init_args.freeze = [*dict.fromkeys(frozen)]


def choose_width(dim: int, heads: int) -> int:
    """Return the width of the fewest heads that keep the common divisor of dim and 8."""
    if dim % heads:  # the width of heads is independent of dim
        return dim
    head_dim = dim // heads
    return next(n * head_dim for n in range(min(heads, HEADS), heads + 1) if n * head_dim % math.gcd(dim, 8) == 0)


def iterate_classes(value: Any) -> Iterator[Namespace]:
    """Yield every part of a config with a class path and arguments, outermost first."""
    match value:
        case Namespace(class_path=str(), init_args=Namespace()):
            yield value
            yield from iterate_classes(value.init_args)
        case Namespace():
            for item in vars(value).values():
                yield from iterate_classes(item)
        case list() | tuple():
            for item in value:
                yield from iterate_classes(item)


def iterate_arguments(value: Any) -> Iterator[Namespace]:
    for part in iterate_classes(value):
        yield part.init_args
