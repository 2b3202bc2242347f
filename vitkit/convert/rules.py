"""Tables of names: theirs beside ours, read in either direction.

A template is a name in which {i} and {j} stand for numbers and {x} for the rest, such as "blocks.{i}.norm1.{x}".
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from torch import Tensor


class Rule(NamedTuple):
    theirs: str
    ours: str


def invert_rules(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    return tuple(Rule(ours, theirs) for theirs, ours in rules)


def rename(state: Mapping[str, Tensor], rules: Iterable[Rule]) -> dict[str, Tensor]:
    """A name without a rule stays as it is, so that whoever loads strictly lists it.

    Raises: ValueError where two names would become one.
    """
    found = map_names(state, rules)
    first = {target: name for name, target in reversed(found.items())}
    if twice := [f"{first[target]} and {name}" for name, target in found.items() if first[target] != name]:
        raise ValueError(f"names must be of one layout, got two for one tensor: {', '.join(twice)}")
    return {target: state[name] for name, target in found.items()}


def map_names(found: Iterable[str], rules: Iterable[Rule]) -> dict[str, str]:
    """What each name becomes."""
    compiled = [(compile_template(theirs), ours) for theirs, ours in rules]
    return {name: translate_name(name, compiled) for name in found}


def translate_name(name: str, rules: Iterable[tuple[re.Pattern[str], str]]) -> str:
    for theirs, ours in rules:
        if found := theirs.fullmatch(name):
            return ours.format(**found.groupdict())
    return name


def compile_template(template: str) -> re.Pattern[str]:
    numbers = re.sub(r"\\\{([ij])\\\}", r"(?P<\1>\\d+)", re.escape(template))
    return re.compile(numbers.replace(r"\{x\}", r"(?P<x>.+)"))
