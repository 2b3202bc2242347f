"""A config or a command line that is wrong, told in one line."""

import re
import sys
from typing import NoReturn

from lightning.pytorch.cli import LightningArgumentParser

from vitkit.configs import names, near

UNKNOWN = r"(?:Group '(.+)' does not accept option|Option|unrecognized arguments:) '?(?:--)?([^' =]+)"
HEADER = r"""Parser key "[^"]+":|Problem with given class_path '[^']+':|callable class:"""
FRAME = r"Does not validate|Subtypes:|Errors:|Expected a <class|Given value"
CLASSES = ("vitkit.tasks.classify.Classify", "vitkit.data.images.Images")


class Parser(LightningArgumentParser):
    """jsonargparse prints its usage, every alternative that it tried and every value: the cause is one line of them."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if unknown := re.match(UNKNOWN, message):
            name = ".".join(part for part in unknown.groups() if part)
            message = f"there is no option {name}{near(name, [action.dest for action in self._actions])}"
        if not self.exit_on_error:  # the parser of one class among several: the outermost will speak
            super().error(message, ex)
        print(f"error: {explain(message)}", file=sys.stderr)
        sys.exit(2)


def explain(message: str) -> str:
    """Where, as the command line would spell it, and the innermost cause."""
    where = ".".join(re.findall(r'Parser key "([^"]+)"', message))
    inner = re.split(HEADER, message)[-1]
    lines = [line.strip(" -") for line in inner.splitlines()]
    cause = " ".join(line for line in lines if line and not re.match(FRAME, line))
    if not cause:  # nothing but the types that it is not
        kinds = dict.fromkeys(re.findall(r"Expected a <class '([\w.]+)'>", inner)[: None if "Errors:" in inner else 1])
        value = re.findall(r"(?:Got|Given) value: (.*)", inner)[0]
        cause = f"must be {' or '.join(kinds)}, got {value}"
    if (path := re.findall(r"class_path '([^']+)'", message)) and re.search("No module|no attribute", cause):
        cause += near(path[-1], [*CLASSES, *names()])
    return ": ".join(part for part in (where, re.sub(r"\. Got value: .*", "", cause)) if part)
