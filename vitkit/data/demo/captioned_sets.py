"""Images with captions that Python packages ship, by name."""

from collections.abc import Callable

import numpy as np

from vitkit.data.annotations.captions import Captioned, attach_captions, joined, unlabelled
from vitkit.data.demo import built_in, emoji
from vitkit.data.sources import arrays
from vitkit.data.sources.source import Source


def openmoji() -> Captioned:
    """1,896 emoji of 80x80 pixels in colour, by OpenMoji (CC BY-SA 4.0), with their English names and bynames.

    Kin are the women, men and persons of one activity, and pictures that look alike, such as some flags.
    """
    found, names = list(emoji.draw_emoji()), emoji.captions()
    captions = [names[one.symbol] for one in found]
    stems = [emoji.stem(one[0]) for one in captions]
    alike = emoji.group_similar([one.pixels for one in found])
    kin = [(("stem", stem), ("look", look)) for stem, look in zip(stems, alike, strict=True)]
    pictures = arrays.Arrays("openmoji", np.stack([one.pixels for one in found]), (), [-1] * len(found))
    return attach_captions(pictures, captions, kin)


NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def numbers(open_digits: Callable[[], Source]) -> Captioned:
    """Digits, whose captions are their names."""
    pictures = open_digits()
    captions = [(NUMBERS[label],) for label in pictures.labels if isinstance(label, int)]
    # The names are known to both sides: it is pictures that are held out.
    return Captioned(unlabelled(pictures), captions, joined(captions), list(range(len(captions))))


DIGITS: dict[str, Callable[[], Captioned]] = {  # whose pictures are those of the labelled sets of these names
    "digits": lambda: numbers(built_in.digits),
    "mnist5k": lambda: numbers(built_in.mnist5k),
}


BUILT_IN = {"openmoji": openmoji, **DIGITS}
