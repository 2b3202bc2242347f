"""Tables of names: theirs beside ours, read in either direction.

A template is a name in which {i} stands for a number and {x} for the rest, such as "blocks.{i}.norm1.{x}".
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from torch import Tensor


class Rule(NamedTuple):
    theirs: str
    ours: str


def inverse(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    return tuple(Rule(ours, theirs) for theirs, ours in rules)


def rename(state: Mapping[str, Tensor], rules: Iterable[Rule]) -> dict[str, Tensor]:
    """A name without a rule stays as it is, so that the strict `vitkit.weights.load` lists it."""
    compiled = [(pattern(theirs), ours) for theirs, ours in rules]
    return {renamed(name, compiled): tensor for name, tensor in state.items()}


def renamed(name: str, rules: Iterable[tuple[re.Pattern[str], str]]) -> str:
    for theirs, ours in rules:
        if found := theirs.fullmatch(name):
            return ours.format(**found.groupdict())
    return name


def pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.escape(template).replace(r"\{i\}", r"(?P<i>\d+)").replace(r"\{x\}", r"(?P<x>.+)"))
