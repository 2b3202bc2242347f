"""The page of lessons in headless Chromium: its numbers equal Python's, and every control can be reached."""

import json
import math
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.models import ViT
from vitkit.nn import Encoder, Rotary, Sinusoidal
from vitkit.pages.learn.lessons import LESSONS, ROTARY, learn
from vitkit.pages.learn.position_table import PACKAGE, load_digit_table
from vitkit.support.texts import read_texts

Open = Callable[..., Any]
TEXTS = json.loads((Path(__file__).parents[2] / "vitkit/pages/learn/texts_en.json").read_text("utf-8"))
close = pytest.approx


@pytest.fixture(scope="module")
def html() -> str:
    return learn().html


@pytest.fixture
def page(open_page: Open, html: str) -> Any:
    return open_page(html)


def find(page: Any, name: str) -> Any:
    """Find the element of this id, which may contain dots."""
    return page.locator(f'[id="{name}"]')


def read_numbers(page: Any, name: str) -> dict[str, float]:
    """Read the numbers of a readout."""
    return {key: float(value) for key, value in find(page, name).evaluate("node => ({...node.dataset})").items()}


def read_shares(page: Any, name: str) -> list[float]:
    return find(page, name).evaluate("node => [...node.children].map((row) => Number(row.dataset.share))")


def read_table(page: Any, name: str) -> Tensor:
    """Open a table of numbers and read it."""
    box = find(page, f"{name}.numbers")
    if box.get_attribute("open") is None:
        box.locator("summary").click()
    box.locator("td").first.wait_for()
    row = "(row) => [...row.cells].slice(1).map((cell) => Number(cell.dataset.value))"
    rows = box.evaluate(f"node => [...node.querySelectorAll('tbody tr')].map({row})")
    return torch.tensor(rows, dtype=torch.float64)


def test_dot_product_of_two_arrows(page: Any) -> None:
    vectors = {"a": [3, 1], "b": [1, 2.5]}
    for a, b in (([3, 1], [-1, 3]), ([3, 1], [-3, -1]), ([2.5, -1.5], [-0.5, 3.5])):
        for name, vector in (("a", a), ("b", b)):
            find(page, f"vectors.{name}").focus()
            for axis, keys in enumerate((("ArrowLeft", "ArrowRight"), ("ArrowDown", "ArrowUp"))):
                steps = round((vector[axis] - vectors[name][axis]) / 0.5)
                for _ in range(abs(steps)):
                    page.keyboard.press(keys[steps > 0])
            vectors[name] = vector
        x, y = torch.tensor(a).double(), torch.tensor(b).double()
        shown, cosine = read_numbers(page, "vectors.read"), F.cosine_similarity(x, y, dim=0).item()
        assert shown["dot"] == close((x @ y).item(), abs=1e-6) and shown["cosine"] == close(cosine, abs=1e-6)
        assert [shown["lengthA"], shown["lengthB"]] == close([x.norm().item(), y.norm().item()], abs=1e-6)
        assert shown["angle"] == close(math.degrees(math.acos(max(cosine, -1))), abs=1e-4)
        assert shown["projection"] == close((x @ y / x.norm()).item(), abs=1e-6)


def test_dragged_arrow_stays_on_the_plane(page: Any) -> None:
    grip, plane = find(page, "vectors.b"), page.locator("svg.plane")
    grip.scroll_into_view_if_needed()
    box, whole = grip.bounding_box(), plane.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    unit, middle = whole["width"] * 50 / 440, (whole["x"] + whole["width"] / 2, whole["y"] + whole["height"] / 2)
    page.mouse.move(middle[0] - 2 * unit, middle[1] + 1 * unit, steps=4)
    assert read_numbers(page, "vectors.read")["dot"] == close(3 * -2 + 1 * -1, abs=0.3)
    page.mouse.move(middle[0] + 30 * unit, middle[1], steps=4)
    page.mouse.up()
    assert grip.get_attribute("aria-valuenow") == "4" and grip.get_attribute("aria-valuemax") == "4"


def test_zero_vector_has_no_angle(page: Any) -> None:
    find(page, "vectors.zero").click()
    assert math.isnan(read_numbers(page, "vectors.read")["cosine"])
    assert "undefined" in find(page, "vectors.read").inner_text() and "NaN" not in page.inner_text("body")


def test_weights_equal_softmax(page: Any) -> None:
    scores = [1.5, -6, 6, 0.3, 5.9]
    for place, score in enumerate(scores):
        find(page, f"softmax.score{place + 1}").fill(str(score))
    for temperature in (0.1, 1, 7.5):
        find(page, "softmax.temperature").fill(str(temperature))
        expected = (torch.tensor(scores).double() / temperature).softmax(0)
        assert read_shares(page, "softmax.shares") == close(expected.tolist(), abs=1e-6)
        shown = read_numbers(page, "softmax.read")
        assert shown["entropy"] == close(torch.distributions.Categorical(expected).entropy().item(), abs=1e-6)
        assert shown["largest"] == close(expected.max().item(), abs=1e-6) and shown["most"] == close(math.log(5))


def create_random(seed: int) -> Callable[[], float]:
    """Reimplement mulberry32."""
    state = seed

    def draw() -> float:
        nonlocal state
        state = (state + 0x6D2B79F5) % 2**32
        mixed = (state ^ state >> 15) * (state | 1) % 2**32
        mixed ^= (mixed + (mixed ^ mixed >> 7) * (mixed | 61)) % 2**32
        return (mixed ^ mixed >> 14) / 2**32

    return draw


def test_variance_of_random_dot_products(page: Any) -> None:
    for power in (0, 4, 6):
        dim = 2**power
        find(page, "softmax.dim").fill(str(power))
        draw = create_random(dim)
        drawn = torch.tensor([draw() for _ in range(2 * 2 * dim * 1000)], dtype=torch.float64).view(1000, 2, dim, 2)
        vectors = (-2 * (1 - drawn[..., 0]).log()).sqrt() * (2 * math.pi * drawn[..., 1]).cos()
        products = vectors.prod(1).sum(-1)
        shown = read_numbers(page, "softmax.dims")
        assert shown["plain"] == close(products.var(correction=0).item(), rel=1e-6)
        assert shown["plain"] == close(dim, rel=0.2) and shown["scaled"] == close(shown["plain"] / dim)
        largest = [(products / scale).view(100, 10).softmax(-1).amax(-1).mean().item() for scale in (1, dim**0.5)]
        assert [shown["largestPlain"], shown["largestScaled"]] == close(largest, abs=1e-6)


def test_sentence_attention_equals_torch(page: Any) -> None:
    for head, causal in product(("meaning", "neighbour"), (False, True)):
        words = TEXTS["sentence"]["words"]
        if head == "meaning":
            q, k = (torch.tensor(TEXTS["sentence"][name]).double() for name in ("queries", "keys"))
        else:
            angles = torch.arange(-1, len(words)).double()[:, None] * torch.tensor([0.9, 0.35]).double()
            places = 3 * torch.stack([angles.cos(), angles.sin()], -1).flatten(1)
            q, k = places[:-1], places[1:]
        mask = torch.ones(9, 9).tril().bool() if causal else torch.ones(9, 9).bool()
        expected = F.scaled_dot_product_attention(q, k, torch.eye(9).double(), mask)
        find(page, f"sentence.{head}").click()
        find(page, "sentence.causal").set_checked(causal)
        shown = read_table(page, "sentence.map")
        torch.testing.assert_close(shown, expected, atol=1e-6, rtol=0)
        torch.testing.assert_close(shown.sum(1), torch.ones(9).double())
        assert (shown[~mask] == 0).all()
        for place in (0, 6, 8):
            find(page, f"sentence.word{place}").click()
            assert read_shares(page, "sentence.shares") == close(shown[place].tolist(), abs=1e-9)
            best = words[shown[place].argmax()]
            page.get_by_text(f"“{words[place]}” (word {place + 1}) attends most to “{best}”").wait_for()


def test_sinusoidal_positions_equal_vitkit(page: Any) -> None:
    places = torch.arange(32).view(1, 32, 1).double()
    expected = Sinusoidal(32, (32,))(places, (32,))[0]
    torch.testing.assert_close(read_table(page, "positions.sinusoidals.values"), expected, atol=1e-6, rtol=0)
    for first, second in ((0, 31), (4, 4), (20, 7)):
        find(page, "positions.sinusoidals.first").fill(str(first))
        find(page, "positions.sinusoidals.second").fill(str(second))
        cosine = F.cosine_similarity(expected[first], expected[second], dim=0).item()
        assert read_numbers(page, "positions.sinusoidals.read")["cosine"] == close(cosine, abs=1e-6)


def test_learned_positions_equal_the_model(open_page: Open, html: str) -> None:
    model = ViT(Encoder(72, 1, 2), (8, 12), (4, 4), 3).eval()
    line = ViT(Encoder(16, 1, 2), (4, 20), (4, 4), 3).eval()
    tables = [load_digit_table(), *(vit.embed.table.weight.detach() for vit in (model, line))]
    for text, weights in zip((html, learn(model).html, learn(line).html), tables, strict=True):
        page = open_page(text)
        find(page, "positions.learned").click()
        rows = weights.flatten(0, 1).double()
        torch.testing.assert_close(read_table(page, "positions.learneds.values"), rows[:, :64], atol=1e-4, rtol=0)
        for first, second in ((0, len(rows) - 1), (2, 3)):
            find(page, "positions.learneds.first").fill(str(first))
            find(page, "positions.learneds.second").fill(str(second))
            cosine = F.cosine_similarity(rows[first], rows[second], dim=0).item()
            assert read_numbers(page, "positions.learneds.read")["cosine"] == close(cosine, abs=1e-3)


def test_rotary_scores_equal_vitkit(page: Any) -> None:
    query, key = (torch.tensor(ROTARY[name]).double().view(1, 1, 1, 8).expand(1, 1, 24, 8) for name in ROTARY)
    turn = Rotary(1, 8).rotation(torch.arange(24).view(1, 24, 1).double())
    expected = (turn(query) @ turn(key).mT)[0, 0] / 8**0.5
    find(page, "positions.rotary").click()
    torch.testing.assert_close(read_table(page, "positions.scores"), expected, atol=1e-6, rtol=0)
    find(page, "positions.query").fill("3")
    find(page, "positions.key").fill("9")
    scores = []
    for _ in range(6):
        shown = read_numbers(page, "positions.rotaries.read")
        assert shown["difference"] == -6 and shown["alone"] == close(shown["score"], abs=1e-9)
        scores.append((int(find(page, "positions.query").input_value()), shown["score"]))
        find(page, "positions.forth").click()
    assert [place for place, _ in scores] == [3, 4, 5, 6, 7, 8]
    assert [score for _, score in scores] == close([expected[3, 9].item()] * 6, abs=1e-6)
    find(page, "positions.key").fill("23")
    find(page, "positions.forth").click()
    assert read_numbers(page, "positions.rotaries.read")["difference"] == 9 - 23  # the positions stay in the table


def test_layer_is_shown_step_by_step(open_page: Open) -> None:
    model = ViT(Encoder(16, 2, 4), (8, 12), (4, 4), 3).eval()
    html = learn(model, layer=1).html
    page, steps = open_page(html), json.loads(html.split('id="data">')[1].split("</script>")[0])["layer"]["steps"]
    assert find(page, "layer.back").is_disabled()
    for place, step in enumerate(steps):
        card = find(page, "layer.card")
        assert card.get_attribute("data-step") == step["step"]
        shown = read_numbers(page, "layer.read")
        assert [shown[name] for name in ("mean", "variance", "low", "high")] == close(
            [step[name] for name in ("mean", "variance", "low", "high")], abs=1e-9
        )
        assert " × ".join(map(str, step["shape"])) in card.inner_text()
        assert page.locator("[aria-current=step]").inner_text().startswith(TEXTS[f"layer.{step['step']}.title"])
        if place < len(steps) - 1:
            find(page, "layer.forth").click()
    assert find(page, "layer.forth").is_disabled()


def test_kept_words_equal_transformers(page: Any) -> None:
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    choices = [(1, 10, 1), (0.5, 4, 1), (1.7, 10, 0.8), (2.5, 5, 0.65), (0.1, 1, 0.05)]
    for temperature, k, p in choices:
        logits = torch.tensor(TEXTS["sampling"]["logits"]).double()[None]
        warm = TemperatureLogitsWarper(float(temperature))(None, logits)
        cut = TopPLogitsWarper(float(p))(None, TopKLogitsWarper(k)(None, warm))
        for name, value in (("temperature", temperature), ("k", k), ("p", p)):
            find(page, f"sampling.{name}").fill(str(value))
        expected = cut.softmax(-1)[0]
        assert read_shares(page, "sampling.shares") == close(expected.tolist(), abs=1e-6)
        shown = read_numbers(page, "sampling.read")
        assert shown["kept"] == (expected > 0).sum()
        assert shown["mass"] == close(warm.softmax(-1)[0][expected > 0].sum().item(), abs=1e-6)
        assert shown["entropy"] == close(torch.distributions.Categorical(expected).entropy().item(), abs=1e-6)


def test_samples_follow_the_probabilities_and_repeat(page: Any) -> None:
    draw, total = create_random(0), torch.tensor(TEXTS["sampling"]["logits"]).double().softmax(0).cumsum(0)
    places = [int(torch.searchsorted(total, draw(), right=True)) for _ in range(101)]
    for button in ("sampling.draw1", "sampling.draw100"):
        find(page, button).click()
    words = TEXTS["sampling"]["words"]
    page.get_by_text(f"The last of 101 samples: “{words[places[-1]]}”.").wait_for()
    notes = find(page, "sampling.shares").locator(".note").all_inner_texts()
    assert [int(note.split(",")[1].split()[0]) for note in notes] == [places.count(place) for place in range(10)]
    find(page, "sampling.k").fill("1")
    find(page, "sampling.draw100").click()
    assert "100 ×" in find(page, "sampling.shares").locator(".note").first.inner_text()


def test_parameter_count_is_exact(page: Any) -> None:
    for values in ((12, 192, 3, 16, 224, 1000), (12, 768, 12, 16, 224, 1000), (7, 60, 5, 7, 98, 13)):
        sizes = dict(zip(("depth", "dim", "heads", "patch", "image", "classes"), values, strict=True))
        with torch.device("meta"):
            encoder = Encoder(sizes["dim"], sizes["depth"], sizes["heads"])
            model = ViT(encoder, (sizes["image"],) * 2, (sizes["patch"],) * 2, sizes["classes"])
        for name, size in sizes.items():
            find(page, f"counter.{name}").fill(str(size))
        exact = sum(parameter.numel() for parameter in model.parameters())
        assert int(find(page, "counter.exact").get_attribute("data-value")) == exact
        assert find(page, "counter.exact").inner_text() == f"{exact:,}"
        rows = 3 * sizes["patch"] ** 2 + (sizes["image"] // sizes["patch"]) ** 2 + 1 + sizes["classes"]
        estimate = 12 * sizes["depth"] * sizes["dim"] ** 2 + rows * sizes["dim"]
        assert int(find(page, "counter.estimate").get_attribute("data-value")) == estimate
        find(page, "counter.heads").fill("1")
        assert int(find(page, "counter.exact").get_attribute("data-value")) == exact


def test_presets_have_known_parameter_counts(page: Any) -> None:
    find(page, "counter.patch").fill("7")
    assert int(find(page, "counter.image").input_value()) % 7 == 0
    for name, exact in (("base", 86_566_888), ("large", 304_325_608), ("small", 22_050_280), ("tiny", 5_717_224)):
        find(page, f"counter.{name}").click()  # timm's numbers, less d: no position for CLS
        assert int(find(page, "counter.exact").get_attribute("data-value")) == exact
    find(page, "counter.heads").fill("5")
    assert "does not divide" in find(page, "counter.headed").inner_text()


def test_page_works_by_keyboard(page: Any) -> None:
    focusable = "a[href], button:not(:disabled), input, summary, [tabindex='0']"
    visible = "all => all.filter((node) => node.checkVisibility() && node.tabIndex >= 0).length"
    count = page.locator(focusable).evaluate_all(visible)
    sections: set[str] = set()
    for _ in range(count):
        page.keyboard.press("Tab")
        sections.add(page.evaluate("document.activeElement.closest('section')?.id ?? 'header'"))
        assert page.evaluate("document.activeElement.matches(':focus-visible')")
        if page.evaluate("document.activeElement.type === 'range' && document.activeElement.step === '1'"):
            before = page.evaluate("document.activeElement.value")
            page.keyboard.press("ArrowLeft")
            moved = page.evaluate("document.activeElement.value !== document.activeElement.min")
            assert page.evaluate("document.activeElement.value") != before or not moved
    assert sections == {"header", *LESSONS}
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement === document.body")  # no control traps the focus


def test_links_work_in_a_notebook(open_page: Open) -> None:
    frame = open_page(learn()._repr_html_()).frame_locator("iframe")
    frame.locator("nav a").last.click()
    section = frame.locator("#counter")
    assert section.evaluate("node => document.activeElement === node")
    assert abs(section.evaluate("node => node.getBoundingClientRect().top")) < 100
    assert section.evaluate("() => location.href") == "about:srcdoc"


def test_arrow_keys_move_along_the_sentence(page: Any) -> None:
    find(page, "sentence.word6").focus()
    for key, place in (("ArrowRight", 7), ("End", 8), ("ArrowRight", 8), ("Home", 0), ("ArrowLeft", 0)):
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.id") == f"sentence.word{place}"
        assert page.locator(".word[tabindex='0']").count() == 1


@pytest.mark.parametrize(("scheme", "width"), [("light", 360), ("dark", 1440)])
def test_page_is_accessible_and_fits_its_width(
    open_page: Open, html: str, violations: Any, scheme: str, width: int
) -> None:
    page = open_page(html, width=width, scheme=scheme)
    find(page, "sampling.p").fill("0.5")  # removed words must stay readable
    find(page, "sentence.map.numbers").locator("summary").click()
    page.evaluate("document.querySelectorAll('[hidden]').forEach((node) => { node.hidden = false; })")  # all at once
    assert not violations(page)
    for summary in page.locator("summary").all()[1:]:
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [360, 1440])
def test_chinese_page_has_no_english_text(open_page: Open, find_untranslated: Any, width: int) -> None:
    page = open_page(learn(language="zh").html, width=width)
    assert page.get_attribute("html", "lang") == "zh-CN"
    page.evaluate("document.querySelectorAll('[hidden]').forEach((node) => { node.hidden = false; })")
    for summary in page.locator("summary").all():
        summary.click()
    find(page, "sampling.draw100").click()
    operators = r"softmax|attention|norm|mlp|cos|top|MLP|ViT-\w+/16|arXiv:[\d.]+"
    symbols = r"-?[\d.]+e[-+]\d+|[A-Za-z](?:[²hF]|\b)|\d+ L d² \+ V d|a · b|m − n|[BHKTDFh2 ×=\d]+"
    formulas = "|".join(re.escape(text) for key, text in read_texts("zh", PACKAGE).items() if key.endswith(".formula"))
    steps = find(page, "layer.forth")
    while True:
        assert find_untranslated(page, f"{operators}|{symbols}|{formulas}") == []
        if steps.is_disabled():
            break
        steps.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
