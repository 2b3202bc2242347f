"""The parser of configs: YAML read with present names, and what is wrong with a config told in one line."""

import re
import sys
from functools import cache
from typing import Any, NamedTuple, NoReturn

import yaml
from jsonargparse import Namespace, get_loader, set_loader
from jsonargparse._actions import ActionConfigFile  # jsonargparse exports it without declaring that
from lightning.pytorch.cli import LightningArgumentParser

from vitkit.bundle.model_config import explain_error
from vitkit.bundle.old_names import update_names
from vitkit.support.errors import suggest
from vitkit.tasks.task import say

UNKNOWN = r"(?:Group '(.+)' does not accept option|Option|unrecognized arguments:) '?(?:--)?([^' =]+)"
CLASSES = (
    *("vitkit.tasks.classify.Classify", "vitkit.tasks.reconstruction.Reconstruct", "vitkit.tasks.contrast.Contrast"),
    *("vitkit.data.images.Images", "vitkit.data.pairs.Pairs", "vitkit.losses.softmax", "vitkit.losses.sigmoid"),
)

SUBCLASSES = ("model", "data")  # which a class path describes
MODE, PREVIEW_MODE = "yaml of vitkit", "previewed yaml of vitkit"


def load_yaml(text: str) -> Any:
    """Load YAML as jsonargparse does, with present names, before anything that it names is imported."""
    return update_names(get_loader("yaml")(text), note_old_name)


@cache
def note_old_name(old: str, new: str) -> None:
    """Say once that an argument has a new name, under which it is read."""
    say(f"note: {old} is now {new}; the old name is read until the next release")


set_loader(MODE, load_yaml, (yaml.YAMLError,))


def load_preview(text: str) -> Any:
    """Load YAML with the class path of each of SUBCLASSES under its name, which a config may give alone."""
    content = load_yaml(text)
    if not isinstance(content, dict):
        return content
    paths = {name: path for name in SUBCLASSES if isinstance(path := content.get(name), str)}
    return content | {name: {"class_path": path} for name, path in paths.items()}


set_loader(PREVIEW_MODE, load_preview, (yaml.YAMLError,))


class ClosingConfig(NamedTuple):
    """A config, as text, that is read behind so many others."""

    configs: int
    content: str


class Parser(LightningArgumentParser):
    """jsonargparse prints its usage, every alternative that it tried and every value: the cause is one line of them."""

    closing: ClosingConfig | None = None

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if unknown := re.match(UNKNOWN, message):
            name = ".".join(part for part in unknown.groups() if part)
            message = f"there is no option {name}{suggest(name, [action.dest for action in self._actions])}"
        if not self.exit_on_error:  # the parser of one class among several: the outermost will speak
            super().error(message, ex)
        print(f"error: {explain_error(message, CLASSES)}", file=sys.stderr)
        sys.exit(2)


class ConfigFile(ActionConfigFile):
    """Read a config, and behind the last of them the parser's own."""

    def __call__(self, parser: Parser, cfg: Namespace, values: str, option_string: str | None = None) -> None:
        super().__call__(parser, cfg, values, option_string)
        if parser.closing is not None and len(cfg[self.dest]) == parser.closing.configs:
            self.apply_config(parser, cfg, self.dest, parser.closing.content)


class PreviewParser(Parser):
    """The parser of a few options, which leaves all else that a config may say to the whole parser."""

    def validate(self, *args: Any, **kwargs: Any) -> None:
        pass
