r"""A rule for the regular expressions in a tokenizer.json, which come from strangers.

The engine of `tokenizers` (Oniguruma) backtracks. It gives up after 10 million steps at one place, but a pattern such
as `(\w+)+;` may take nearly as many at every place of a text. So a pattern is accepted only if the steps that it takes
from one place are bounded by a small power of the text's length: every known tokenizer's pattern is a choice between
short sequences of letters and classes, each repeated by itself. Refused are what makes the steps exponential, a
repetition of a group and choices multiplied by each other, and what makes them hard to bound, references and recursion.
"""

import re

LONGEST = 4096  # the longest known pattern, of ranges of CJK characters, has 300 characters
REPEATS = 3  # without a bound in one sequence; known patterns have two
CHOICES = 64  # ways through one sequence, of optional and bounded parts; known patterns have 16
COUNTED = 16  # a bound from which a repetition counts as one without

# Escapes that name a character, a class or an end; \1, \k and \g refer to groups, \K, \X, \R and \O have rules of their
# own.
ESCAPE = r"\\(?:[pP]\{\^?[\w ]+\}|x\{[0-9a-fA-F]{1,6}\}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[aefnrtvwWsSdDhHAzZbB]|[^\w])"
ITEM = re.compile(rf"{ESCAPE}|[^\\\[\]()|*+?{{}}]|[\]}}]", re.DOTALL)
CLASS_PART = re.compile(rf"{ESCAPE}|\[:\^?\w+:\]|&&|[^\\\[\]]", re.DOTALL)
GROUP = re.compile(r"\((?:\?(?:[ims-]*:|[=!]|<[=!]))?(?![?*])")
FLAGS = re.compile(r"\(\?[im]+\)")
QUANTIFIER = re.compile(r"([*+?]|\{\d{1,5}\}|\{\d{0,5},\d{0,5}\})([?+])?(?![*+?])(?!\{\d*,?\d*\})")


def check_pattern(pattern: str) -> None:
    """Raises: ValueError for a pattern whose time might grow faster than a power of the text's length."""
    if len(pattern) > LONGEST:
        raise ValueError(f"pattern must have at most {LONGEST:,} characters, got {len(pattern):,}")
    try:
        end, *_ = _choice(pattern, 0, 0)
        if end < len(pattern):
            raise _Refusal("it must be a regular expression", end)
    except _Refusal as refusal:
        reason, place = refusal.args
        raise ValueError(
            f"pattern must be a choice of sequences without repeated groups: {reason}, got {pattern[place:]!r:.40} "
            f"in {pattern!r:.160}"
        ) from None


class _Refusal(Exception):
    """A rule, and the place in the pattern where it is broken."""


def _choice(pattern: str, place: int, depth: int) -> tuple[int, int, int]:
    """Return where the alternatives end, the most repetitions in one of them, and the ways through all of them."""
    if depth > 8:
        raise _Refusal("groups must be nested at most 8 deep", place)
    start = place
    place, repeats, ways = _sequence(pattern, place, depth)
    while pattern[place : place + 1] == "|":
        place, more, further = _sequence(pattern, place + 1, depth)
        repeats, ways = max(repeats, more), ways + further
    if depth and ways > CHOICES:
        raise _Refusal(f"a group must have at most {CHOICES} ways through it", start)
    return place, repeats, ways


def _sequence(pattern: str, place: int, depth: int) -> tuple[int, int, int]:
    start, repeats, ways = place, 0, 1
    while place < len(pattern) and pattern[place] not in "|)":
        before = place
        place, inner, choices = _part(pattern, place, depth)
        quantifier = QUANTIFIER.match(pattern, place)
        if quantifier is None and pattern[place : place + 1] in ("*", "+", "?"):
            raise _Refusal("a repetition must not be repeated", place)
        if quantifier:
            place = quantifier.end()
            most, span = _bounds(quantifier[1], quantifier[2], before)
            if most > 1 and (inner or choices > 1 or pattern[before] == "("):
                raise _Refusal("a group must not be repeated", before)
            repeats += most > COUNTED
            choices = choices + 1 if most == 1 else choices if most > COUNTED else span
        repeats, ways = repeats + inner, ways * choices
        if repeats > REPEATS or ways > CHOICES:
            raise _Refusal(f"a sequence must have at most {REPEATS} repetitions and {CHOICES} ways through it", start)
    return place, repeats, ways


def _part(pattern: str, place: int, depth: int) -> tuple[int, int, int]:
    """Return where a class, a group or a single character ends, and the repetitions and ways in it."""
    if pattern[place] == "[":
        return _class(pattern, place, 0), 0, 1
    if flags := FLAGS.match(pattern, place):
        return flags.end(), 0, 1
    if group := GROUP.match(pattern, place):
        end, repeats, ways = _choice(pattern, group.end(), depth + 1)
        if pattern[end : end + 1] != ")":
            raise _Refusal("a group must be closed", place)
        return end + 1, repeats, ways
    item = ITEM.match(pattern, place)
    if item is None:
        raise _Refusal("it must hold characters, classes and plain groups alone", place)
    return item.end(), 0, 1


def _class(pattern: str, place: int, depth: int) -> int:
    start, place = place, place + 1 + (pattern[place + 1 : place + 2] == "^")
    first = place
    while place < len(pattern) and (pattern[place] != "]" or place == first):
        if pattern[place] == "]":
            place += 1
        elif part := CLASS_PART.match(pattern, place):
            place = part.end()
        elif pattern[place] == "[" and depth < 4:
            place = _class(pattern, place, depth + 1)
        else:
            raise _Refusal("a class must hold characters and classes", place)
    if place >= len(pattern):
        raise _Refusal("a class must be closed", start)
    return place + 1


def _bounds(repeat: str, mode: str | None, place: int) -> tuple[int, int]:
    """Return the most repetitions, and the number of ways to choose how many."""
    if repeat in "*+?":
        return (1, 2) if repeat == "?" else (COUNTED + 1, 1)
    if mode == "+":
        raise _Refusal("a repetition must not be repeated", place)  # Oniguruma reads x{1,3}+ as (x{1,3})+
    low, _, high = repeat[1:-1].partition(",")
    if "," not in repeat:
        return max(int(low), 2) if int(low) <= COUNTED else COUNTED + 1, 1
    if not high or int(high) > COUNTED:
        return COUNTED + 1, 1
    return max(int(high), 2), max(int(high) - int(low or 0), 0) + 1
