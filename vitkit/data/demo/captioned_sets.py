"""Images with captions that Python packages ship, by name."""

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from vitkit.data.annotations.captions import normalise_caption
from vitkit.data.demo import built_in, emoji
from vitkit.data.sources import arrays
from vitkit.data.sources.sample_list import Listing, SourceListing
from vitkit.data.sources.source import Source


def openmoji() -> Listing:
    """1,896 emoji of 80x80 pixels in colour, by OpenMoji (CC BY-SA 4.0), with their English names and bynames.

    Kept together are the women, men and persons of one activity, and pictures that look alike, such as some flags.
    """
    drawn, names = list(emoji.draw_emoji()), emoji.captions()
    captions = [names[symbol.symbol] for symbol in drawn]
    looks = emoji.group_similar([symbol.pixels for symbol in drawn])
    groups = [
        (("stem", emoji.stem(texts[0])), ("look", look), *map(normalise_caption, texts))
        for texts, look in zip(captions, looks, strict=True)
    ]
    pictures = arrays.Arrays("openmoji", np.stack([symbol.pixels for symbol in drawn]), (), [-1] * len(drawn))
    return list_captions("openmoji", pictures, captions, groups)


NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def numbers(title: str, pictures: Source) -> Listing:
    """Digits, whose captions are their names."""
    captions = [(NUMBERS[label],) for label in pictures.labels if isinstance(label, int)]
    # The names are known to both sides: it is pictures that are held out.
    return list_captions(title, pictures, captions, [(row,) for row in range(len(captions))])


def list_captions(
    title: str, pictures: Source, captions: Sequence[tuple[str, ...]], groups: Sequence[tuple[Hashable, ...]]
) -> Listing:
    places = [f"{title}[{row}]" for row in range(len(captions))]
    return SourceListing(title=title, places=places, annotations=[*captions], groups=groups, source=pictures)


DIGITS: Mapping[str, Callable[[], Listing]] = {  # whose pictures are those of the labelled sets of these names
    "digits": lambda: numbers("digits", built_in.digits()),
    "mnist5k": lambda: numbers("mnist5k", built_in.mnist5k()),
}


BUILT_IN: Mapping[str, Callable[[], Listing]] = {"openmoji": openmoji, **DIGITS}
