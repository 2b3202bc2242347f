"""Rules that map the tensor names of another library to vitkit's, read in either direction.

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
    """Rename tensors. A name without a rule stays as it is, so that strict loading lists it.

    Raises: ValueError where two names would become one.
    """
    targets = map_names(state, rules)
    first = {target: name for name, target in reversed(targets.items())}
    if pairs := [f"{first[target]} and {name}" for name, target in targets.items() if first[target] != name]:
        raise ValueError(f"names must be of one layout, got two for one tensor: {', '.join(pairs)}")
    return {target: state[name] for name, target in targets.items()}


def map_names(names: Iterable[str], rules: Iterable[Rule]) -> dict[str, str]:
    """Return the new name of each name."""
    patterns = [(compile_template(theirs), ours) for theirs, ours in rules]
    return {name: translate_name(name, patterns) for name in names}


def translate_name(name: str, patterns: Iterable[tuple[re.Pattern[str], str]]) -> str:
    for pattern, ours in patterns:
        if match := pattern.fullmatch(name):
            return ours.format(**match.groupdict())
    return name


def compile_template(template: str) -> re.Pattern[str]:
    numbers = re.sub(r"\\\{([ij])\\\}", r"(?P<\1>\\d+)", re.escape(template))
    return re.compile(numbers.replace(r"\{x\}", r"(?P<x>.+)"))
