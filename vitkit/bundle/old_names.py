"""Class paths and arguments under which earlier versions knew what has moved: the one table, and where it is applied.

Applied to the config of a model folder, to the configs and options of `vitkit fit`, and where a run that goes on is
compared with its beginning. Nothing here is imported, so that a config of a stranger may be read.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

CLASS_PATHS: Mapping[str, str] = {
    "vitkit.tasks.reconstruct.Reconstruct": "vitkit.tasks.reconstruction.Reconstruct",
    "vitkit.losses.labels.binary_cross_entropy": "vitkit.losses.per_sample.binary_cross_entropy",
    "vitkit.losses.labels.cross_entropy": "vitkit.losses.per_sample.cross_entropy",
    "vitkit.losses.labels.squared_error": "vitkit.losses.per_sample.squared_error",
    "vitkit.nn.attention.ExplicitCore": "vitkit.nn.cores.ExplicitCore",
    "vitkit.nn.attention.FusedCore": "vitkit.nn.cores.FusedCore",
    "vitkit.nn.attention.MeasuredCore": "vitkit.nn.cores.MeasuredCore",
    # in trainer.callbacks
    "vitkit.tasks.averaging.EMA": "vitkit.fit.ema.EMA",
    "vitkit.tasks.checkpoint.Checkpoint": "vitkit.fit.checkpoint.Checkpoint",
    "vitkit.tasks.patience.Patience": "vitkit.fit.early_stopping.Patience",
    "vitkit.tasks.recomputation.BlockCheckpointing": "vitkit.fit.recomputation.BlockCheckpointing",
    "vitkit.tasks.report.Report": "vitkit.fit.run_report.Report",
}
# Of a class, under each of its present paths: {old argument: new argument}.
ARGUMENTS: Mapping[str, Mapping[str, str]] = {}

PATH = re.compile(r"(?<![\w./-])vitkit(?:\.\w+)+(?![\w./-])")


def update_names(config: Any) -> Any:
    """Return a config, plain data, with present class paths and arguments in place of old ones."""
    match config:
        case str():
            return CLASS_PATHS.get(config, config)
        case list() | tuple():
            return [update_names(item) for item in config]
        case Mapping():
            updated = {key: update_names(item) for key, item in config.items()}
            match updated:
                case {"class_path": str(path), "init_args": dict(arguments)} if path in ARGUMENTS:
                    names = ARGUMENTS[path]
                    updated["init_args"] = {names.get(name, name): value for name, value in arguments.items()}
            return updated
    return config


def update_options(options: Sequence[str]) -> list[str]:
    """Return a command line with present class paths in place of old ones, inside of JSON too."""
    return [PATH.sub(lambda match: CLASS_PATHS.get(match[0], match[0]), option) for option in options]
