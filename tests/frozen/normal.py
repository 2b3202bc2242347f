"""Compare what two versions of vitkit write: class paths by their last part, numbers within a tolerance.

This is the one place that says how a class, a function or an argument was called before. A reorganisation that moves
a class changes nothing here; one that renames a class adds a line.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

CLASSES: dict[str, str] = {}  # the last part of a class path before -> now
ARGUMENTS: dict[str, str] = {}  # an argument of a constructor in config.yaml before -> now

PATH = re.compile(r"\bvitkit(?:\.[A-Za-z_]\w*)+\b(?!/)")
# A whole number is written 8 or 8.0 by whether a process met int | float or float | int first.
WHOLE = re.compile(r"(: -?\d+)\.0$", re.MULTILINE)
KEY = re.compile(r"^(\s*(?:- )?)([A-Za-z_]\w*):", re.MULTILINE)


def normalise(text: str) -> str:
    """Return a text with each class path of vitkit reduced to its last part, and old names by their present ones."""

    def last(match: re.Match[str]) -> str:
        name = match[0].rpartition(".")[2]
        return CLASSES.get(name, name)

    text = WHOLE.sub(r"\1", PATH.sub(last, text))
    return KEY.sub(lambda match: f"{match[1]}{ARGUMENTS.get(match[2], match[2])}:", text)


# Accuracies of probes, which differ by a few of 1,000 pictures from one CPU to another.
PROBES = ("val/linear", "val/knn")


def differences(before: Any, now: Any, tolerance: float = 0.0, more: bool = False, place: str = "") -> Iterator[str]:
    """Yield a line for each value of two JSON values that differs; with `more`, new keys are none.

    Two floats differ if they are further apart than the tolerance, absolute and relative; all else unless it is equal.
    """
    if place.endswith(PROBES):
        tolerance = max(tolerance, 0.01)
    match before, now:
        case Mapping(), Mapping():
            if [*before] != [*now] and {*before} == {*now} and not more:
                yield f"{place}: keys in the order {[*before]}, now {[*now]}"
            for key in before if more else {**before, **now}:
                if key not in now:
                    yield f"{place}.{key}: gone, was {before[key]!r:.120}"
                elif key not in before:
                    yield f"{place}.{key}: new, {now[key]!r:.120}"
                else:
                    yield from differences(before[key], now[key], tolerance, more, f"{place}.{key}")
        case list(), list():
            if len(before) != len(now):
                yield f"{place}: {len(before)} items, now {len(now)}"
            for index, (old, new) in enumerate(zip(before, now, strict=False)):
                yield from differences(old, new, tolerance, more, f"{place}[{index}]")
        case str(), str():
            if normalise(before) != normalise(now):
                yield f"{place}: was {before!r:.200}, now {now!r:.200}"
        case float(), float():
            near = abs(before - now) <= tolerance * max(1.0, abs(before))
            if not (near or before == now or (math.isnan(before) and math.isnan(now))):
                yield f"{place}: was {before!r}, now {now!r}"
        case _:
            if type(before) is not type(now) or before != now:
                yield f"{place}: was {before!r:.200}, now {now!r:.200}"
