import base64
import re
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from vitkit.retrieval.gallery import STYLE, make_thumbnail, write_html, write_png
from vitkit.retrieval.query import Match, MatchGroup

NASTY = "<script>alert(1)</script>\" onload='x' &amp; \N{GRINNING FACE}"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def groups(tmp_path: Path) -> list[MatchGroup]:
    Image.new("RGBA", (400, 300), (255, 0, 0, 128)).save(tmp_path / "red.png")
    Image.new("CMYK", (10, 20)).save(tmp_path / "white.jpg")
    red = Match(0.5, tmp_path / "red.png", str(tmp_path), NASTY, NASTY, 400, 300)
    white = Match(0.25, tmp_path / "white.jpg", str(tmp_path), "white.jpg", "", 10, 20, also=(red, red))
    gone = white._replace(file=tmp_path / "gone \udcff.png", also=())
    return [MatchGroup([red, white], "near-duplicates"), MatchGroup([gone])]


def test_page_embeds_its_pictures_and_escapes_captions(groups: list[MatchGroup], tmp_path: Path) -> None:
    write_html(NASTY, groups, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    parsed = Tags()
    parsed.feed(page)
    kinds = [tag for tag, _ in parsed.tags]
    assert "script" not in kinds and kinds.count("section") == 2 and kinds.count("figure") == 3
    assert not [names for _, names in parsed.tags if any(name.startswith("on") for name in names)]
    assert parsed.text.count(NASTY) == 4  # title, heading, path, caption
    urls = [names["src"] for tag, names in parsed.tags if tag == "img"]
    sizes = [Image.open(BytesIO(base64.b64decode(str(url).partition(",")[2]))).size for url in urls]
    assert sizes == [(192, 144), (10, 20)]
    assert "can no longer be read" in parsed.text and "0.250 +2 10 x 20" in parsed.text
    assert not re.search(r"""(src|href)=["'](https?:|//)""", page)
    assert "default-src 'none'" in page
    assert "@media (prefers-color-scheme: dark)" in page and "#" not in STYLE.partition("\nbody")[2]  # no fixed colours
    assert page.count("<h2>") == 1 and "2 near-duplicates, lowest similarity 0.2500" in parsed.text


@pytest.mark.parametrize("mode", ["I;16", "RGBA"])
def test_thumbnails_show_deep_and_white_images(mode: str, tmp_path: Path) -> None:
    image = Image.new(mode, (20, 10), {"I;16": 0, "RGBA": (255, 255, 255, 0)}[mode])
    image.paste({"I;16": 4095, "RGBA": (255, 255, 255, 255)}[mode], (0, 0, 10, 10))
    image.save(tmp_path / "image.png")
    thumbnail = make_thumbnail(Match(0.5, tmp_path / "image.png", str(tmp_path), "image.png", "", 20, 10))
    assert thumbnail is not None and thumbnail.convert("L").getextrema() == (0, 255)


def test_contact_sheet_has_a_tile_for_a_missing_file(groups: list[MatchGroup], tmp_path: Path) -> None:
    write_png(groups, tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 3 * 128
        red = sheet.convert("RGB").getpixel((8 + 64, 8 + 64))
    assert isinstance(red, tuple) and red[0] > 250 and 100 < red[1] < 150
    assert sorted(path.name for path in tmp_path.iterdir()) == ["red.png", "sheet.png", "white.jpg"]


def test_no_matches_give_a_page_and_a_sheet(tmp_path: Path) -> None:
    write_html("nothing", [MatchGroup([])], tmp_path / "page.html")
    write_png([MatchGroup([])], tmp_path / "sheet.png")
    assert (tmp_path / "sheet.png").stat().st_size and "<section>" in (tmp_path / "page.html").read_text("utf-8")


def test_long_caption_scrolls() -> None:
    assert re.search(r"figcaption \{[^}]*max-height: [^}]*overflow: auto", STYLE)
