r"""A rule for the regular expressions in a tokenizer.json, which are not trusted.

The engine of `tokenizers` (Oniguruma) backtracks. It gives up after 10 million steps at one place, but a pattern such
as `(\w+)+;` may take nearly as many at every place of a text. So a pattern is accepted only if its time grows in
proportion to the text: every known tokenizer's pattern is a choice between short sequences of letters and classes, each
repeated by itself. Refused are a repetition of a group, choices multiplied by each other, references, recursion, and
what gives back more than it takes: of `\w*;` at every letter of a long word all letters behind it. A sequence may give
back one repetition, if the next choice takes all of it (`\s*\n|\s+`), or if it starts once in each run (`(?<! ) +\z`).
"""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

LONGEST = 4096  # the longest known pattern, of ranges of CJK characters, has 300 characters
CHOICES = 64  # ways through one sequence, of optional and bounded parts; known patterns have 16
COUNTED = 16  # a bound from which a repetition counts as one without

# Escapes that name a character, a class or an end; \1, \k and \g refer to groups, \K, \X, \R and \O have rules of their
# own.
ESCAPE = r"\\(?:[pP]\{\^?[\w ]+\}|x\{[0-9a-fA-F]{1,6}\}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[aefnrtvwWsSdDhHAzZbB]|[^\w])"
ITEM = re.compile(rf"{ESCAPE}|[^\\\[\]()|*+?{{}}]|[\]}}]", re.DOTALL)
CLASS_PART = re.compile(rf"{ESCAPE}|\[:\^?\w+:\]|&&|[^\\\[\]]", re.DOTALL)
GROUP = re.compile(r"\((?:\?(?:[ims-]*:|[=!]|<[=!]))?(?![?*])")
LOOK = re.compile(r"\(\?<?[=!]")
FLAGS = re.compile(r"\(\?[im]+\)")
QUANTIFIER = re.compile(r"([*+?]|\{\d{1,5}\}|\{\d{0,5},\d{0,5}\})([?+])?(?![*+?])(?!\{\d*,?\d*\})")


# Patterns that converters of SentencePiece models write, and equivalent ones that start once in each run of spaces.
EQUAL = {r"\A +| +\z": r"\A +|(?<! ) +\z", r" +▁": r"(?<! ) +▁"}


def check_pattern(pattern: str) -> None:
    """Check that the time of a pattern grows at most in proportion to the text. Raises: ValueError."""
    if len(pattern) > LONGEST:
        raise ValueError(f"pattern must have at most {LONGEST:,} characters, got {len(pattern):,}")
    try:
        end, *_ = _parse_choice(pattern, 0, 0)
        if end < len(pattern):
            raise _Refusal("it must be a regular expression", end)
    except _Refusal as refusal:
        reason, place = refusal.args
        raise ValueError(
            f"pattern must be a choice of sequences without repeated groups: {reason}, got {pattern[place:]!r:.40} "
            f"in {pattern!r:.160}"
        ) from None


class _Refusal(Exception):
    """A rule, and the place in the pattern that breaks it."""


class _Part(NamedTuple):
    """A character, class or group and its repetition. Args: most: COUNTED + 1 without a bound."""

    text: str
    repeats: int  # repetitions without a bound, of itself or in a group
    ways: int
    least: int = 1
    most: int = 1


class _Sequence(NamedTuple):
    """One choice. Args: takes: the part that it repeats to its end. gives: the part whose repetition may give back."""

    start: int
    repeats: int
    ways: int
    takes: str | None
    gives: str | None


def _parse_choice(pattern: str, place: int, depth: int) -> tuple[int, int, int]:
    """Return the end of the alternatives, the most repetitions in one of them, and the ways through all of them."""
    if depth > 8:
        raise _Refusal("groups must be nested at most 8 deep", place)
    start = place
    place, first = _parse_sequence(pattern, place, depth)
    sequences = [first]
    while pattern[place : place + 1] == "|":
        place, further = _parse_sequence(pattern, place + 1, depth)
        sequences.append(further)
    ways = sum(sequence.ways for sequence in sequences)
    if depth and ways > CHOICES:
        raise _Refusal(f"a group must have at most {CHOICES} ways through it", start)
    for at, sequence in enumerate(sequences):
        behind = next((other for other in sequences[at:] if other.gives != sequence.gives), None)
        if sequence.gives and (behind is None or behind.takes != sequence.gives):
            rule = f"a choice that gives {sequence.gives!r:.40} back must stand before one that takes all of it"
            raise _Refusal(rule, sequence.start)
    return place, max(sequence.repeats for sequence in sequences), ways


def _parse_sequence(pattern: str, place: int, depth: int) -> tuple[int, _Sequence]:
    start, parts = place, list[_Part]()
    while place < len(pattern) and pattern[place] not in "|)":
        place, part = _parse_repetition(pattern, place, depth)
        parts.append(part)
    repeats, ways = sum(part.repeats for part in parts), math.prod(part.ways for part in parts)
    if ways > CHOICES:
        raise _Refusal(f"a sequence must have at most {CHOICES} ways through it", start)
    # Parts behind the last required one cannot fail, so nothing in front of them is given back.
    last = max((at for at, part in enumerate(parts) if part.least), default=0)
    given = [part for part in parts[:last] if part.repeats]
    if len(given) > 1 or any(part.text[0] == "(" for part in given):
        raise _Refusal("a sequence must have at most 1 repetition, of no group, in front of a required part", start)
    takes = parts[last].text if parts and parts[last].most > COUNTED and parts[last].least == 1 else None
    takes = takes if all(part.least == 0 for part in parts[:last]) else None
    gives = given[0].text if given and not _starts_once(parts, given[0].text) else None
    return place, _Sequence(start, repeats, ways, takes, gives)


def _starts_once(parts: Sequence[_Part], repeated: str) -> bool:
    """Return whether a sequence tries each run of a part once, from its start. A class may hold the end of a line."""
    first, second = parts[0].text, parts[1].text
    anchored = first == "^" and len(repeated) == 1 and repeated != "."
    return first == r"\A" or (second == repeated and (anchored or first == f"(?<!{repeated})"))


def _parse_repetition(pattern: str, place: int, depth: int) -> tuple[int, _Part]:
    start = place
    place, repeats, ways = _parse_part(pattern, place, depth)
    text = pattern[start:place]
    if repeats and LOOK.match(text):
        raise _Refusal("what is looked for without being taken must not be repeated", start)
    quantifier = QUANTIFIER.match(pattern, place)
    if quantifier is None and pattern[place : place + 1] in ("*", "+", "?"):
        raise _Refusal("a repetition must not be repeated", place)
    if quantifier is None:
        return place, _Part(text, repeats, ways, least=0 if FLAGS.fullmatch(text) else 1)
    least, most, span = _parse_bounds(quantifier[1], quantifier[2], start)
    if most > 1 and (repeats or ways > 1 or text[0] == "("):
        raise _Refusal("a group must not be repeated", start)
    if quantifier[2] == "?" and most > COUNTED:
        raise _Refusal("a repetition must take as much as it can", start)
    if least > COUNTED:
        raise _Refusal(f"a repetition must demand at most {COUNTED}", start)
    ways = ways + 1 if most == 1 else ways if most > COUNTED else span
    return quantifier.end(), _Part(text, repeats + (most > COUNTED), ways, least, most)


def _parse_part(pattern: str, place: int, depth: int) -> tuple[int, int, int]:
    """Return the end of a class, a group or a character, and the repetitions and ways in it."""
    if pattern[place] == "[":
        return _parse_class(pattern, place, 0), 0, 1
    if flags := FLAGS.match(pattern, place):
        return flags.end(), 0, 1
    if group := GROUP.match(pattern, place):
        end, repeats, ways = _parse_choice(pattern, group.end(), depth + 1)
        if pattern[end : end + 1] != ")":
            raise _Refusal("a group must be closed", place)
        return end + 1, repeats, ways
    item = ITEM.match(pattern, place)
    if item is None:
        raise _Refusal("it must hold characters, classes and plain groups alone", place)
    return item.end(), 0, 1


def _parse_class(pattern: str, place: int, depth: int) -> int:
    start, place = place, place + 1 + (pattern[place + 1 : place + 2] == "^")
    first = place
    while place < len(pattern) and (pattern[place] != "]" or place == first):
        if pattern[place] == "]":
            place += 1
        elif part := CLASS_PART.match(pattern, place):
            place = part.end()
        elif pattern[place] == "[" and depth < 4:
            place = _parse_class(pattern, place, depth + 1)
        else:
            raise _Refusal("a class must hold characters and classes", place)
    if place >= len(pattern):
        raise _Refusal("a class must be closed", start)
    return place + 1


def _parse_bounds(repeat: str, mode: str | None, place: int) -> tuple[int, int, int]:
    """Return the fewest and the most repetitions, and the number of ways to choose how many."""
    if repeat in "*+?":
        return int(repeat == "+"), 1 if repeat == "?" else COUNTED + 1, 2 if repeat == "?" else 1
    if mode == "+":
        raise _Refusal("a repetition must not be repeated", place)  # Oniguruma reads x{1,3}+ as (x{1,3})+
    low, comma, high = repeat[1:-1].partition(",")
    least = int(low or 0)
    if not comma:
        return least, max(least, 2), 1
    if not high or int(high) > COUNTED:
        return least, COUNTED + 1, 1
    return least, max(int(high), 2), max(int(high) - least, 0) + 1
