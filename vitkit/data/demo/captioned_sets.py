"""Images with captions that Python packages ship, by name."""

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from vitkit.data.annotations.captions import normalise_caption
from vitkit.data.demo import built_in, emoji
from vitkit.data.sources import arrays
from vitkit.data.sources.sample_list import Listing, SourceListing
from vitkit.data.sources.source import Source


def list_openmoji() -> Listing:
    """List 1,896 emoji of 80x80 pixels in colour, by OpenMoji (CC BY-SA 4.0), with their English names and aliases.

    The women, men and persons of one activity are a group, and so are similar images, such as some flags.
    """
    drawings, names = list(emoji.draw_emoji()), emoji.read_emoji_captions()
    captions = [names[drawing.symbol] for drawing in drawings]
    looks = emoji.group_similar([drawing.pixels for drawing in drawings])
    groups = [
        (("stem", emoji.remove_people(texts[0])), ("look", look), *map(normalise_caption, texts))
        for texts, look in zip(captions, looks, strict=True)
    ]
    pictures = arrays.Arrays("openmoji", np.stack([drawing.pixels for drawing in drawings]), (), [-1] * len(drawings))
    return list_captions("openmoji", pictures, captions, groups)


NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def list_digit_names(title: str, pictures: Source) -> Listing:
    """List digits with their names as captions."""
    captions = [(NUMBERS[label],) for label in pictures.labels if isinstance(label, int)]
    # Training and validation share the names: it is images that are held out.
    return list_captions(title, pictures, captions, [(row,) for row in range(len(captions))])


def list_captions(
    title: str, pictures: Source, captions: Sequence[tuple[str, ...]], groups: Sequence[tuple[Hashable, ...]]
) -> Listing:
    places = [f"{title}[{row}]" for row in range(len(captions))]
    return SourceListing(title=title, places=places, annotations=[*captions], groups=groups, source=pictures)


DIGITS: Mapping[str, Callable[[], Listing]] = {  # of the same images as the labelled sets of these names
    "digits": lambda: list_digit_names("digits", built_in.load_digits()),
    "mnist5k": lambda: list_digit_names("mnist5k", built_in.load_mnist5k()),
}


BUILT_IN: Mapping[str, Callable[[], Listing]] = {"openmoji": list_openmoji, **DIGITS}
