"""The page of `vitkit explain` in Chromium shows the numbers that Python computes."""

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
from vitkit.data.preprocess import Preprocess, read_image
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
# Returns the numbers that the page shows in each state [layer, head, query].
READ_STATES = """async (states) => {
  const read = (selector, name) => [...document.querySelectorAll(selector)].map((node) => Number(node.dataset[name]));
  const shown = [];
  for (const [layer, head, query] of states) {
    choose(layer, head);
    await chooseQuery(query, false);
    shown.push({
      cells: read("#grid [data-token]", "weight"),
      table: read("#numbers-table td", "number"),
      masses: read("#mass-list li", "value"),
      bar: read("#bar-high", "value"),
      tiles: read("#heads button", "largest"),
    });
  }
  return shown;
}"""


def build_model(size: tuple[int, int] = (24, 40), prefix: int = PREFIX) -> AttentionModel:
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
def explained(photo: Path, source: Path) -> Page:
    return explain(build_model(), photo, data=StatisticsSource(str(source)))


@pytest.fixture(scope="module")
def weights(photo: Path) -> list[torch.Tensor]:
    """(H, T, T) of each layer."""
    model = build_model()
    image = load_image(model, photo)
    with capture(model.model) as seen, torch.no_grad():
        model.model(image)
    return [layer.weights[0] for layer in seen.values()]


def load_image(model: AttentionModel, photo: Path) -> torch.Tensor:
    return model.preprocess(read_image(photo))[None]


def show_state(page: Any, layer: int, head: int, query: int) -> None:
    page.evaluate(f"choose({layer}, {head}); chooseQuery({query}, false)")
    page.wait_for_selector(f'#attention[data-shown="{layer} {head} {query}"]')


def read_values(page: Any, selector: str, attribute: str = "data-value") -> list[float]:
    values = page.eval_on_selector_all(selector, f"all => all.map(node => Number(node.getAttribute('{attribute}')))")
    assert values
    return values


def assert_near(actual: list[float], expected: Any) -> None:
    np.testing.assert_allclose(actual, np.asarray(expected).ravel(), rtol=0, atol=EXACT)


def test_weights_equal_captured_attention(open_page: Any, explained: Page, weights: list[torch.Tensor]) -> None:
    page = open_page(explained.html)
    page.wait_for_selector("#attention[data-shown]")
    page.click("#numbers > summary")
    states = list(itertools.product(range(LAYERS), range(-1, HEADS), range(PREFIX + ROWS * COLUMNS)))
    for (layer, head, query), shown in zip(states, page.evaluate(READ_STATES, states), strict=True):
        rows = weights[layer][:, query]
        row = rows.mean(0) if head < 0 else rows[head]
        assert_near(shown["cells"], row[PREFIX:])
        assert_near(shown["table"], row)
        assert_near(shown["masses"], [*row[:PREFIX], row[PREFIX:].sum()])
        assert_near(shown["bar"], row[PREFIX:].max())
        assert_near(shown["tiles"], rows[:, PREFIX:].amax(1))


def test_sentence_and_labels_state_the_weights(open_page: Any, explained: Page, weights: list[torch.Tensor]) -> None:
    page = open_page(explained.html)
    query = PREFIX + 2 * COLUMNS + 4
    show_state(page, 1, 0, query)
    row = weights[1][0, query]
    order = row[PREFIX:].argsort(descending=True)

    def percent(value: float) -> str:
        return f"{100 * value:.1f} %" if value >= 0.00995 else f"{100 * value:.2f} %"

    first, second = (
        f"{percent(row[PREFIX + place].item())}{words} to row {place // COLUMNS}, column {place % COLUMNS}"
        for place, words in zip(order[:2].tolist(), (" of its attention", ""), strict=True)
    )
    rest = "; ".join(
        f"{percent(row[place].item())} to {name}" for place, name in enumerate(("CLS", "register 0", "register 1"))
    )
    assert_equal_words(page.inner_text("#sentence"), f"Row 2, column 4 gives {first}; {second}; {rest}.")
    assert_equal_words(
        page.get_attribute(f'#grid [data-token="{query}"]', "aria-label"),
        f"row 2, column 4: {percent(row[query].item())}",
    )


def assert_equal_words(text: str, expected: str) -> None:
    """Compare words exactly, and numbers to 0.1 %, as a weight has one byte in the page."""
    for word, other in zip(text.split(), expected.split(), strict=True):
        try:
            assert float(word) == pytest.approx(float(other), abs=0.1)
        except ValueError:
            assert word == other


def test_outputs_equal_those_of_the_model_without_the_head(open_page: Any, explained: Page, photo: Path) -> None:
    model, page = build_model(), open_page(explained.html)
    image = load_image(model, photo)
    with torch.no_grad():
        now = model.model(image)[0]
        without = []
        for layer in model.layers:
            for head in range(HEADS):
                with edit(model.model, Head(layer, head)):
                    without.append(model.model(image)[0])
    best = now.argmax()
    effects = torch.stack([x.softmax(0)[best] - now.softmax(0)[best] for x in without])
    page.wait_for_selector("#attention[data-shown]")
    assert_near(read_values(page, "#effects button", "data-effect"), effects)
    top = now.argsort(descending=True)[:5].tolist()
    for place, then in enumerate(without):
        show_state(page, *divmod(place, HEADS), PREFIX)
        rows = top if then.argmax() in top else [*top, then.argmax().item()]
        columns = {
            "probability": now.softmax(0),
            "without": then.softmax(0),
            "change": then.softmax(0) - now.softmax(0),
            "logit": then - now,
        }
        for name, expected in columns.items():
            assert_near(read_values(page, f'.answers td[data-kind="{name}"]'), expected[rows])
        names = page.eval_on_selector_all(".answers th[scope=row]", "all => all.map(node => node.textContent)")
        assert names == [CLASSES[row] for row in rows]
        assert_near(read_values(page, ".verdict", "data-effect"), effects[place])
        assert_near(read_values(page, ".verdict", "data-mean"), effects.abs().mean())
        assert read_values(page, ".verdict", "data-rank") == [1 + (effects.abs() > effects[place].abs()).sum().item()]


def test_predicted_class_is_right_where_all_probabilities_round_to_zero(open_page: Any, photo: Path) -> None:
    model = build_model()
    model = model._replace(bundle=model.bundle._replace(multilabel=True))
    with torch.no_grad():
        image = load_image(model, photo)
        model.model.head.bias -= model.model(image)[0] + 40
        model.model.head.bias[3] += 0.1
        now, without = model.model(image)[0], []
        for layer in model.layers:
            for head in range(HEADS):
                with edit(model.model, Head(layer, head)):
                    without.append(model.model(image)[0])
    flips = [then.argmax() != now.argmax() for then in without]
    assert any(flips) and max(logits.max() for logits in (now, *without)) < -15
    page = open_page(explain(model, photo).html)
    for place, flip in enumerate(flips):
        show_state(page, *divmod(place, HEADS), PREFIX)
        assert ("The predicted class becomes" in page.inner_text(".verdict")) == flip
    assert page.inner_text(".answers th[scope=row]") == CLASSES[now.argmax()]


def test_statistics_equal_those_of_python(open_page: Any, explained: Page) -> None:
    page = open_page(explained.html)
    data = json.loads(page.eval_on_selector("#data", "node => node.textContent"))["statistics"]
    page.click("#tab-statistics")
    assert data["count"] == 6 and {"distance", "entropy", "cls", "registers", "patches"} <= set(data["measures"])
    for name, layers in data["measures"].items():
        page.select_option("#measure", name)
        for column in ("mean", "low", "high", "deviation"):
            shown = read_values(page, f'#measure-table td[data-kind="{column}"]')
            assert_near(shown, [layer[column] for layer in layers])
        assert len(page.query_selector_all("#chart circle")) == LAYERS * HEADS
    for layer, matrix in enumerate(data["similarity"]):
        page.select_option("#similarity-layer", str(layer))
        assert_near(read_values(page, "#similarity td.number"), matrix)


def test_first_query_is_the_readout_token(open_page: Any, explained: Page) -> None:
    page = open_page(explained.html)
    page.wait_for_selector('#attention[data-shown$=" 0"]')
    assert page.get_attribute('#prefix [data-query="0"]', "aria-pressed") == "true"


def test_small_effects_keep_digits_and_pale_colours(open_page: Any, explained: Page) -> None:
    page = open_page(explained.html)
    page.wait_for_selector("#attention[data-shown]")
    page.evaluate("data.answers.effects = [[0.0005, -0.00002], [0, 0.0001]]; buildEffects(choose); choose(0, 1)")
    assert page.eval_on_selector_all("#effects button", "all => all.map(node => node.textContent)") == [
        "+0.050",
        "−0.002",
        "0.000",
        "+0.010",
    ]
    assert "full colour at 1." in page.inner_text("#effects-hint")
    colours = page.eval_on_selector_all("#effects button", "all => all.map(node => node.style.background)")
    assert all(min(map(int, re.findall(r"\d+", colour))) > 230 for colour in colours)
    page.get_by_text(
        "changes by −0.0020 percentage points. On average a head changes it by 0.0155 percentage points"
    ).wait_for()


def test_unchanged_sentence_is_not_announced_again(open_page: Any, explained: Page) -> None:
    page = open_page(explained.html)
    page.wait_for_selector("#attention[data-shown]")
    page.evaluate(
        "window.heard = 0; const observer = new MutationObserver(() => { heard += 1; });"
        "observer.observe(getById('sentence'), { childList: true })"
    )
    assert page.evaluate("getById('strength').value = 20; show().then(() => heard)") == 0
    assert page.evaluate("chooseQuery(data.tokens - 1, false).then(() => heard)") == 1


def test_hostile_names_stay_text(open_page: Any, explained: Page, photo: Path) -> None:
    page = open_page(explained.html)
    page.wait_for_selector("#attention[data-shown]")
    assert page.inner_text("h1") == "Attention of a </script><b>model</b>"
    assert photo.name in page.inner_text("#subtitle")
    assert photo.name in page.get_attribute("#picture", "alt")
    assert page.title() == f"a </script><b>model</b>: {photo.name}"
    assert page.evaluate("document.querySelectorAll('img').length") == 1
    assert page.evaluate("document.querySelectorAll('script').length") == 2
    # A class called {head} stays so among values that are filled in.
    verdict = page.evaluate(
        "getText('verdict', { class: '{head}', head: 'x', layer: 0, change: 0, mean: 0, rank: 1, count: 1 })"
    )
    assert "“{head}”" in verdict


def test_page_works_by_keyboard(open_page: Any, explained: Page) -> None:
    page = open_page(explained.html)
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
    tab_to("#tab-image")
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
    page.focus("#tab-image")
    page.keyboard.press("ArrowRight")
    assert page.is_visible("#statistics") and not page.is_visible("#attention")
    tab_to("#measure")
    tab_to("#similarity-layer")


def test_click_chooses_the_query(open_page: Any, explained: Page) -> None:
    page = open_page(explained.html)
    page.wait_for_selector("#attention[data-shown]")
    token = PREFIX + COLUMNS + 1
    page.click(f'#grid [data-token="{token}"]')
    page.wait_for_selector(f'#attention[data-shown$=" {token}"]')
    page.click('#heads [data-head="0"]')
    page.click('#prefix [data-query="1"]')
    page.wait_for_selector('#attention[data-shown$=" 0 1"]')
    assert page.inner_text("#sentence").startswith("Register 0 gives ")


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1440, "light")])
def test_page_is_accessible_and_fits_its_width(
    open_page: Any, explained: Page, violations: Callable[[Any], list[str]], width: int, scheme: str
) -> None:
    page = open_page(explained.html, width=width, scheme=scheme)
    page.wait_for_selector("#attention[data-shown]")
    page.click("#numbers > summary")
    page.wait_for_selector("#numbers-table td")
    for tab in ("#tab-image", "#tab-statistics"):
        page.click(tab)
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize(("size", "prefix"), [((8, 56), 0), ((56, 8), 1)])
def test_grid_of_one_row_or_column(open_page: Any, photo: Path, size: tuple[int, int], prefix: int) -> None:
    page = open_page(explain(build_model(size, prefix), photo).html, width=360)
    page.wait_for_selector("#attention[data-shown]")
    assert page.eval_on_selector_all("#grid [role=row]", "all => all.length") == size[0] // 8
    box = page.query_selector("#grid").bounding_box()
    assert box["width"] / box["height"] == pytest.approx(size[1] / size[0], rel=0.05)
    page.click("#tab-statistics")
    assert "--data" in page.inner_text("#no-data-hint")
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_measure_that_is_zero_everywhere_is_drawn(open_page: Any, photo: Path, source: Path) -> None:
    """The attention distance of a single patch is 0."""
    page = open_page(explain(build_model((8, 8)), photo, data=StatisticsSource(str(source))).html)
    page.click("#tab-statistics")
    assert page.input_value("#measure") == "distance"
    heights = page.eval_on_selector_all("#chart circle", "all => all.map((node) => Number(node.getAttribute('cy')))")
    assert len(heights) == LAYERS * HEADS and {*heights} == {260}


def test_grid_matches_the_frame(open_page: Any, explained: Page, photo: Path) -> None:
    from vitkit.interpret.maps.geometry import Frame

    model, page = build_model(), open_page(explained.html)
    page.wait_for_selector("#attention[data-shown]")
    picture, cell = (page.query_selector(name).bounding_box() for name in ("#picture", "#grid [data-token='9']"))
    width, height = read_image(photo).size
    scale = picture["width"] / width
    assert scale == pytest.approx(picture["height"] / height, rel=0.02)
    left, top, right, bottom = Frame.from_preprocess(model.preprocess, (width, height), model.layout).get_patch_box(
        *divmod(9 - PREFIX, COLUMNS)
    )
    offsets = [cell["x"] - picture["x"], cell["y"] - picture["y"], cell["width"], cell["height"]]
    assert offsets == pytest.approx(
        [left * scale, top * scale, (right - left) * scale, (bottom - top) * scale], abs=1.5
    )
    page.check("#zoom")
    frame, around = (page.query_selector(name).bounding_box() for name in ("#frame", "#photo"))
    assert frame == pytest.approx(around, abs=1.5)


def test_notebook_shows_the_page_in_a_frame(open_page: Any, explained: Page) -> None:
    page = open_page(f"<!DOCTYPE html><html lang='en'><title>cell</title>{explained._repr_html_()}</html>")
    frame = page.frames[1]
    frame.wait_for_selector("#attention[data-shown]")
    assert frame.inner_text("h1") == "Attention of a </script><b>model</b>"
    assert frame.evaluate("window.origin") == "null"


def test_browser_without_decompression_shows_the_failure(open_page: Any, explained: Page) -> None:
    page = open_page("<!DOCTYPE html><title>first</title>")
    page.add_init_script("delete window.DecompressionStream")
    path = Path(page.url.removeprefix("file://"))
    path.write_text(explained.html, encoding="utf-8")
    page.goto(page.url)
    page.wait_for_selector("#failure:not([hidden])")
    assert "DecompressionStream" in page.inner_text("#failure")


@pytest.mark.parametrize("width", [360, 1440])
def test_chinese_page_has_no_english_text(
    open_page: Any, source: Path, find_untranslated: Any, violations: Callable[[Any], list[str]], width: int
) -> None:
    model = build_model()
    model = model._replace(bundle=model.bundle._replace(class_names=tuple("猫狗鸟鱼马牛羊"), source="模型"))
    photo = Image.effect_noise((160, 60), 50).convert("RGB")
    explained = explain(model, photo, data=StatisticsSource(str(source)), language="zh")
    page = open_page(explained.html, width=width)
    page.wait_for_selector("#attention[data-shown]")
    assert page.get_attribute("html", "lang") == "zh-CN" and page.title() == "模型：图片"
    page.click("#numbers > summary")
    names = r"CLS(（?[\s<\d.]+%）?)?|logit|(\d+：)?encoder\.blocks\.\d+\.attn\.f"
    for head, scale in ((-1, "map"), (0, "robust")):
        page.select_option("#scale", scale)
        show_state(page, 1, head, PREFIX)
        assert find_untranslated(page, names) == []
    page.click("#tab-statistics")
    page.click("#measure-numbers > summary")
    for measure in page.eval_on_selector_all("#measure option", "all => all.map(node => node.value)"):
        page.select_option("#measure", measure)
        assert find_untranslated(page, names) == []
    assert violations(page) == [] and page.evaluate("document.documentElement.scrollWidth") == width
    assert all(re.search(r"[\u4e00-\u9fff]", note) for note in explained.notes)
