"""The parser of configs, which updates old names in YAML and reports an error in one line."""

import re
import sys
from functools import cache
from typing import Any, NamedTuple, NoReturn

import yaml
from jsonargparse import Namespace, get_loader, set_loader
from jsonargparse._actions import ActionConfigFile  # jsonargparse exports it without declaring that
from lightning.pytorch.cli import LightningArgumentParser

from vitkit.bundle.model_config import explain_error
from vitkit.bundle.nested_parser import NestedParser
from vitkit.bundle.old_names import update_names
from vitkit.fit.run_options import suggest_option
from vitkit.tasks.task import say

UNKNOWN = r"(?:Group '(.+)' does not accept option|Option|unrecognized arguments:) '?(?:--)?([^' =]+)"
CLASSES = (
    *("vitkit.tasks.classify.Classify", "vitkit.tasks.reconstruction.Reconstruct", "vitkit.tasks.contrast.Contrast"),
    *("vitkit.data.images.Images", "vitkit.data.pairs.Pairs", "vitkit.losses.softmax", "vitkit.losses.sigmoid"),
)

SUBCLASSES = ("model", "data")  # given by class paths
MODE, PREVIEW_MODE = "yaml of vitkit", "previewed yaml of vitkit"


def load_yaml(text: str) -> Any:
    """Load YAML as jsonargparse does, and update old names before any class is imported."""
    return update_names(get_loader("yaml")(text), note_old_name)


@cache
def note_old_name(old: str, new: str) -> None:
    """Print once that an argument has a new name."""
    say(f"note: {old} is now {new}; the old name is read until the next release")


set_loader(MODE, load_yaml, (yaml.YAMLError,))


def load_preview(text: str) -> Any:
    """Load YAML, and expand a bare class path of SUBCLASSES to a mapping."""
    content = load_yaml(text)
    if not isinstance(content, dict):
        return content
    paths = {name: path for name in SUBCLASSES if isinstance(path := content.get(name), str)}
    return content | {name: {"class_path": path} for name, path in paths.items()}


set_loader(PREVIEW_MODE, load_preview, (yaml.YAMLError,))


class ClosingConfig(NamedTuple):
    """A config, as text, that is read after so many others."""

    configs: int
    content: str


class Parser(NestedParser, LightningArgumentParser):
    """Reports the cause of an error in one line, where jsonargparse prints its usage and every alternative."""

    closing: ClosingConfig | None = None

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if unknown := re.match(UNKNOWN, message):
            name = ".".join(part for part in unknown.groups() if part)
            message = f"there is no option {name}{suggest_option(name, [action.dest for action in self._actions])}"
        if not self.exit_on_error:  # the parser of a nested class: the outermost reports
            super().error(message, ex)
        print(f"error: {explain_error(message, CLASSES)}", file=sys.stderr)
        sys.exit(2)


class ConfigFile(ActionConfigFile):
    """Reads a config, and after the last one the parser's closing config."""

    def __call__(self, parser: Parser, cfg: Namespace, values: str, option_string: str | None = None) -> None:
        super().__call__(parser, cfg, values, option_string)
        if parser.closing is not None and len(cfg[self.dest]) == parser.closing.configs:
            self.apply_config(parser, cfg, self.dest, parser.closing.content)


class PreviewParser(Parser):
    """A parser of a few options that ignores all others, which the whole parser checks."""

    def validate(self, *args: Any, **kwargs: Any) -> None:
        pass
