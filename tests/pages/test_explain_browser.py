"""The page of `vitkit explain` in Chromium: what it shows is what Python finds."""

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitkit.bundle.bundle import Bundle
from vitkit.data.preprocess import Preprocess, read
from vitkit.interpret.examine.image_model import AttentionModel
from vitkit.interpret.see.capture import capture
from vitkit.interpret.see.edits import Head, edit
from vitkit.interpret.see.layers import find_attention_layers
from vitkit.models import ViT
from vitkit.nn import Encoder, First, Mean
from vitkit.pages.explain.explanation import StatisticsSource, explain
from vitkit.pages.page import Page

CLASSES = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "\"double\" & 'single'",
    "line\u2028separator",
    "{head}",
    "猫",
    "plain",
)
ROWS, COLUMNS, PREFIX = 3, 5, 3
LAYERS = HEADS = 2
EXACT = 1e-3
# What the page shows in each state [layer, head, query], in one call.
EVERYTHING = """async (states) => {
  const read = (selector, name) => [...document.querySelectorAll(selector)].map((one) => Number(one.dataset[name]));
  const found = [];
  for (const [layer, head, query] of states) {
    choose(layer, head);
    await ask(query, false);
    found.push({
      cells: read("#grid [data-token]", "weight"),
      table: read("#numbers-table td", "number"),
      masses: read("#mass-list li", "value"),
      bar: read("#bar-high", "value"),
      tiles: read("#heads button", "largest"),
    });
  }
  return found;
}"""


def examined(size: tuple[int, int] = (24, 40), prefix: int = PREFIX) -> AttentionModel:
    torch.manual_seed(1)
    pool = First if prefix else Mean
    model = ViT(Encoder(32, LAYERS, HEADS), size, (8, 8), len(CLASSES), prefix=prefix, pool=pool).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    preprocess = Preprocess(size, (0.5,) * 3, (0.5,) * 3, crop=0.9)
    bundle = Bundle(model, {}, preprocess, CLASSES, source="a </script><b>model</b>")
    return AttentionModel(bundle, model, tuple(find_attention_layers(model)))


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photo") / '"><img src=x onerror=alert(3)>.png'
    pixels = np.random.default_rng(0).integers(0, 255, (60, 160, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six pictures of two classes."""
    folder = tmp_path_factory.mktemp("pictures")
    random = np.random.default_rng(1)
    for place in range(6):
        path = folder / f"class{place % 2}" / f"{place}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(random.integers(0, 255, (24, 40, 3), dtype=np.uint8)).save(path)
    return folder


@pytest.fixture(scope="module")
def made(photo: Path, source: Path) -> Page:
    return explain(examined(), photo, data=StatisticsSource(str(source)))


@pytest.fixture(scope="module")
def weights(photo: Path) -> list[torch.Tensor]:
    """(H, T, T) of each layer."""
    one = examined()
    image = image_of(one, photo)
    with capture(one.model) as seen, torch.no_grad():
        one.model(image)
    return [layer.weights[0] for layer in seen.values()]


def image_of(one: AttentionModel, photo: Path) -> torch.Tensor:
    return one.preprocess(read(photo))[None]


def shown(page: Any, layer: int, head: int, query: int) -> None:
    page.evaluate(f"choose({layer}, {head}); ask({query}, false)")
    page.wait_for_selector(f'#attention[data-shown="{layer} {head} {query}"]')


def values(page: Any, selector: str, attribute: str = "data-value") -> list[float]:
    found = page.eval_on_selector_all(selector, f"all => all.map(one => Number(one.getAttribute('{attribute}')))")
    assert found
    return found


def close(found: list[float], expected: Any) -> None:
    np.testing.assert_allclose(found, np.asarray(expected).ravel(), rtol=0, atol=EXACT)


def test_every_weight_is_that_of_capture(open_page: Any, made: Page, weights: list[torch.Tensor]) -> None:
    page = open_page(made.html)
    page.wait_for_selector("#attention[data-shown]")
    page.click("#numbers > summary")
    states = list(itertools.product(range(LAYERS), range(-1, HEADS), range(PREFIX + ROWS * COLUMNS)))
    for (layer, head, query), found in zip(states, page.evaluate(EVERYTHING, states), strict=True):
        rows = weights[layer][:, query]
        row = rows.mean(0) if head < 0 else rows[head]
        close(found["cells"], row[PREFIX:])
        close(found["table"], row)
        close(found["masses"], [*row[:PREFIX], row[PREFIX:].sum()])
        close(found["bar"], row[PREFIX:].max())
        close(found["tiles"], rows[:, PREFIX:].amax(1))


def test_what_is_read_is_what_the_numbers_say(open_page: Any, made: Page, weights: list[torch.Tensor]) -> None:
    """The words of the sentence, of a cell and of the bar, not only their attributes."""
    page = open_page(made.html)
    query = PREFIX + 2 * COLUMNS + 4
    shown(page, 1, 0, query)
    row = weights[1][0, query]
    order = row[PREFIX:].argsort(descending=True)

    def percent(value: float) -> str:
        return f"{100 * value:.1f} %" if value >= 0.00995 else f"{100 * value:.2f} %"

    first, second = (
        f"{percent(row[PREFIX + place].item())} to row {place // COLUMNS}, column {place % COLUMNS}"
        for place in order[:2].tolist()
    )
    rest = "; ".join(
        f"{percent(row[place].item())} to {name}" for place, name in enumerate(("CLS", "register 0", "register 1"))
    )
    near(page.inner_text("#sentence"), f"Row 2, column 4 gives {first}; {second}; {rest}.")
    near(
        page.get_attribute(f'#grid [data-token="{query}"]', "aria-label"),
        f"row 2, column 4: {percent(row[query].item())}",
    )


def near(found: str, expected: str) -> None:
    """Equal words; numbers, of which a page has a byte each, to 0.1 %."""
    for one, other in zip(found.split(), expected.split(), strict=True):
        try:
            assert float(one) == pytest.approx(float(other), abs=0.1)
        except ValueError:
            assert one == other


def test_every_answer_is_that_of_the_model_without_the_head(open_page: Any, made: Page, photo: Path) -> None:
    one, page = examined(), open_page(made.html)
    image = image_of(one, photo)
    with torch.no_grad():
        now = one.model(image)[0]
        without = []
        for layer in one.layers:
            for head in range(HEADS):
                with edit(one.model, Head(layer, head)):
                    without.append(one.model(image)[0])
    best = now.argmax()
    effects = torch.stack([x.softmax(0)[best] - now.softmax(0)[best] for x in without])
    page.wait_for_selector("#attention[data-shown]")
    close(values(page, "#effects button", "data-effect"), effects)
    top = now.argsort(descending=True)[:5].tolist()
    for place, then in enumerate(without):
        shown(page, *divmod(place, HEADS), PREFIX)
        rows = top if then.argmax() in top else [*top, then.argmax().item()]
        columns = {
            "probability": now.softmax(0),
            "without": then.softmax(0),
            "change": then.softmax(0) - now.softmax(0),
            "logit": then - now,
        }
        for name, expected in columns.items():
            close(values(page, f'.answers td[data-kind="{name}"]'), expected[rows])
        names = page.eval_on_selector_all(".answers th[scope=row]", "all => all.map(one => one.textContent)")
        assert names == [CLASSES[row] for row in rows]
        close(values(page, ".verdict", "data-effect"), effects[place])
        close(values(page, ".verdict", "data-mean"), effects.abs().mean())
        assert values(page, ".verdict", "data-rank") == [1 + (effects.abs() > effects[place].abs()).sum().item()]


def test_which_class_comes_first_is_told_also_where_no_chance_has_a_digit(open_page: Any, photo: Path) -> None:
    one = examined()
    one = one._replace(bundle=one.bundle._replace(multilabel=True))
    with torch.no_grad():
        image = image_of(one, photo)
        one.model.head.bias -= one.model(image)[0] + 40
        one.model.head.bias[3] += 0.1
        now, without = one.model(image)[0], []
        for layer in one.layers:
            for head in range(HEADS):
                with edit(one.model, Head(layer, head)):
                    without.append(one.model(image)[0])
    flips = [then.argmax() != now.argmax() for then in without]
    assert any(flips) and max(logits.max() for logits in (now, *without)) < -15
    page = open_page(explain(one, photo).html)
    for place, flip in enumerate(flips):
        shown(page, *divmod(place, HEADS), PREFIX)
        assert ("The answer becomes" in page.inner_text(".verdict")) == flip
    assert page.inner_text(".answers th[scope=row]") == CLASSES[now.argmax()]


def test_statistics_are_those_of_python(open_page: Any, made: Page) -> None:
    page = open_page(made.html)
    told = json.loads(page.inner_text("#data") or page.eval_on_selector("#data", "one => one.textContent"))[
        "statistics"
    ]
    page.click("#tab-data")
    assert told["count"] == 6 and {"distance", "entropy", "cls", "registers", "patches"} <= set(told["measures"])
    for name, layers in told["measures"].items():
        page.select_option("#measure", name)
        for column in ("mean", "low", "high", "deviation"):
            found = values(page, f'#measure-table td[data-kind="{column}"]')
            close(found, [layer[column] for layer in layers])
        assert len(page.query_selector_all("#chart circle")) == LAYERS * HEADS
    for layer, matrix in enumerate(told["similarity"]):
        page.select_option("#similarity-layer", str(layer))
        close(values(page, "#similarity td.number"), matrix)


def test_the_token_that_is_read_is_asked_first(open_page: Any, made: Page) -> None:
    page = open_page(made.html)
    page.wait_for_selector('#attention[data-shown$=" 0"]')
    assert page.get_attribute('#prefix [data-query="0"]', "aria-pressed") == "true"


def test_small_effects_are_no_zeros_and_look_small(open_page: Any, made: Page) -> None:
    page = open_page(made.html)
    page.wait_for_selector("#attention[data-shown]")
    page.evaluate("data.answers.effects = [[0.0005, -0.00002], [0, 0.0001]]; buildEffects(choose); choose(0, 1)")
    assert page.eval_on_selector_all("#effects button", "all => all.map(one => one.textContent)") == [
        "+0.050",
        "−0.002",
        "0.000",
        "+0.010",
    ]
    assert "full colour at 1." in page.inner_text("#effects-hint")
    colours = page.eval_on_selector_all("#effects button", "all => all.map(one => one.style.background)")
    assert all(min(map(int, re.findall(r"\d+", colour))) > 230 for colour in colours)
    page.get_by_text("changes by −0.0020 points. A head changes it by 0.0155 points on average").wait_for()


def test_what_stays_the_same_is_not_read_out_again(open_page: Any, made: Page) -> None:
    page = open_page(made.html)
    page.wait_for_selector("#attention[data-shown]")
    page.evaluate(
        "window.heard = 0; new MutationObserver(() => { heard += 1; }).observe(byId('sentence'), { childList: true })"
    )
    assert page.evaluate("byId('strength').value = 20; show().then(() => heard)") == 0
    assert page.evaluate("ask(data.tokens - 1, false).then(() => heard)") == 1


def test_hostile_names_are_text(open_page: Any, made: Page, photo: Path) -> None:
    page = open_page(made.html)
    page.wait_for_selector("#attention[data-shown]")
    assert page.inner_text("h1") == "Where a </script><b>model</b> looks"
    assert photo.name in page.inner_text("#subtitle")
    assert photo.name in page.get_attribute("#picture", "alt")
    assert page.title() == f"a </script><b>model</b>: {photo.name}"
    assert page.evaluate("document.querySelectorAll('img').length") == 1
    assert page.evaluate("document.querySelectorAll('script').length") == 2
    # A class called {head} stays so among values that are filled in.
    told = page.evaluate(
        "say('verdict', { class: '{head}', head: 'x', layer: 0, change: 0, mean: 0, rank: 1, count: 1 })"
    )
    assert "“{head}”" in told


def test_all_can_be_done_by_keys(open_page: Any, made: Page) -> None:
    page = open_page(made.html)
    page.wait_for_selector("#attention[data-shown]")
    first, last = PREFIX, PREFIX + ROWS * COLUMNS - 1

    def query() -> int:
        return int(page.get_attribute("#attention", "data-shown").split()[2])

    def tab_to(selector: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate(f"document.activeElement.matches('{selector}')"):
                return
        pytest.fail(f"Tab does not reach {selector}")

    tab_to(".skip")
    tab_to("#tab-picture")
    tab_to("#layer")
    page.keyboard.press("Home")
    page.wait_for_selector('#attention[data-shown^="0 "]')
    assert page.inner_text("#layer-name").startswith("0: ")
    tab_to("#head")
    page.keyboard.press("Home")
    page.wait_for_selector('#attention[data-shown^="0 -1 "]')
    tab_to("#scale")
    tab_to("#strength")
    tab_to("#prefix button")
    page.keyboard.press("Enter")
    page.wait_for_selector('#attention[data-shown="0 -1 0"]')
    tab_to("#grid [data-token]")
    for key, token in (
        ("Enter", first),
        ("ArrowRight", first + 1),
        ("ArrowDown", first + 1 + COLUMNS),
        ("End", first + 2 * COLUMNS - 1),
        ("ArrowRight", first + 2 * COLUMNS - 1),
        ("PageDown", last),
        ("ArrowDown", last),
        ("Home", last - COLUMNS + 1),
        ("ArrowUp", first + COLUMNS),
        ("PageUp", first),
        ("ArrowLeft", first),
        ("Control+End", last),
        ("Control+Home", first),
        ("ArrowDown", first + COLUMNS),
    ):
        page.keyboard.press(key)
        page.wait_for_selector(f'#attention[data-shown="0 -1 {token}"]')
        assert page.evaluate("Number(document.activeElement.dataset.token)") == token
        assert page.get_attribute(f'[data-token="{token}"]', "aria-selected") == "true"
    assert page.eval_on_selector_all('#grid [tabindex="0"]', "all => all.length") == 1
    tab_to('#heads button[data-head="1"]')
    page.keyboard.press("Space")
    page.wait_for_selector('#attention[data-shown^="0 1 "]')
    tab_to('#effects button[data-layer="1"][data-head="0"]')
    page.keyboard.press("Enter")
    page.wait_for_selector('#attention[data-shown^="1 0 "]')
    tab_to("#numbers summary")
    page.keyboard.press("Enter")
    page.wait_for_selector("#numbers-table td")
    assert query() == first + COLUMNS
    page.focus("#tab-picture")
    page.keyboard.press("ArrowRight")
    assert page.is_visible("#over-data") and not page.is_visible("#attention")
    tab_to("#measure")
    tab_to("#similarity-layer")


def test_clicks_and_taps_ask(open_page: Any, made: Page) -> None:
    page = open_page(made.html)
    page.wait_for_selector("#attention[data-shown]")
    token = PREFIX + COLUMNS + 1
    page.click(f'#grid [data-token="{token}"]')
    page.wait_for_selector(f'#attention[data-shown$=" {token}"]')
    page.click('#heads [data-head="0"]')
    page.click('#prefix [data-query="1"]')
    page.wait_for_selector('#attention[data-shown$=" 0 1"]')
    assert page.inner_text("#sentence").startswith("Register 0 gives ")


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1440, "light")])
def test_axe_finds_nothing_serious_and_nothing_is_cut(
    open_page: Any, made: Page, violations: Callable[[Any], list[str]], width: int, scheme: str
) -> None:
    page = open_page(made.html, width=width, scheme=scheme)
    page.wait_for_selector("#attention[data-shown]")
    page.click("#numbers > summary")
    page.wait_for_selector("#numbers-table td")
    for tab in ("#tab-picture", "#tab-data"):
        page.click(tab)
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize(("size", "prefix"), [((8, 56), 0), ((56, 8), 1)])
def test_a_grid_of_one_row_or_column(open_page: Any, photo: Path, size: tuple[int, int], prefix: int) -> None:
    page = open_page(explain(examined(size, prefix), photo).html, width=360)
    page.wait_for_selector("#attention[data-shown]")
    assert page.eval_on_selector_all("#grid [role=row]", "all => all.length") == size[0] // 8
    box = page.query_selector("#grid").bounding_box()
    assert box["width"] / box["height"] == pytest.approx(size[1] / size[0], rel=0.05)
    page.click("#tab-data")
    assert "--data" in page.inner_text("#no-data-hint")
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_a_measure_that_is_0_everywhere_is_drawn(open_page: Any, photo: Path, source: Path) -> None:
    """From the only patch to the only patch it is not far."""
    page = open_page(explain(examined((8, 8)), photo, data=StatisticsSource(str(source))).html)
    page.click("#tab-data")
    assert page.input_value("#measure") == "distance"
    heights = page.eval_on_selector_all("#chart circle", "all => all.map((one) => Number(one.getAttribute('cy')))")
    assert len(heights) == LAYERS * HEADS and {*heights} == {260}


def test_the_grid_lies_where_the_frame_says(open_page: Any, made: Page, photo: Path) -> None:
    from vitkit.interpret.maps.geometry import Frame

    one, page = examined(), open_page(made.html)
    page.wait_for_selector("#attention[data-shown]")
    picture, cell = (page.query_selector(name).bounding_box() for name in ("#picture", "#grid [data-token='9']"))
    width, height = read(photo).size
    scale = picture["width"] / width
    assert scale == pytest.approx(picture["height"] / height, rel=0.02)
    left, top, right, bottom = Frame.from_preprocess(one.preprocess, (width, height), one.layout).get_patch_box(
        *divmod(9 - PREFIX, COLUMNS)
    )
    found = [cell["x"] - picture["x"], cell["y"] - picture["y"], cell["width"], cell["height"]]
    assert found == pytest.approx([left * scale, top * scale, (right - left) * scale, (bottom - top) * scale], abs=1.5)
    page.check("#zoom")
    frame, around = (page.query_selector(name).bounding_box() for name in ("#frame", "#photo"))
    assert frame == pytest.approx(around, abs=1.5)


def test_a_notebook_shows_it_in_a_frame(open_page: Any, made: Page) -> None:
    page = open_page(f"<!DOCTYPE html><html lang='en'><title>cell</title>{made._repr_html_()}</html>")
    frame = page.frames[1]
    frame.wait_for_selector("#attention[data-shown]")
    assert frame.inner_text("h1") == "Where a </script><b>model</b> looks"
    assert frame.evaluate("window.origin") == "null"


def test_a_browser_that_cannot_unpack_says_so(open_page: Any, made: Page) -> None:
    page = open_page("<!DOCTYPE html><title>first</title>")
    page.add_init_script("delete window.DecompressionStream")
    path = Path(page.url.removeprefix("file://"))
    path.write_text(made.html, encoding="utf-8")
    page.goto(page.url)
    page.wait_for_selector("#failure:not([hidden])")
    assert "DecompressionStream" in page.inner_text("#failure")
