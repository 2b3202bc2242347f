import base64
import hashlib
import html
import json
import re
import zlib
from importlib.resources import files
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, PngImagePlugin

from vitkit.data.preprocess import Preprocess
from vitkit.interpret.maps.layout import Layout, layout_of
from vitkit.interpret.measure import flags
from vitkit.interpret.measure.statistics import statistics
from vitkit.interpret.see.edits import Head, edit
from vitkit.interpret.see.layers import find_attention_layers
from vitkit.models import ViT
from vitkit.nn import Encoder
from vitkit.pages.assemble import assembled
from vitkit.pages.explain import answers, over_data
from vitkit.pages.explain.content import PACKAGE
from vitkit.pages.explain.packing import pack_attention, rounded, unpacked
from vitkit.pages.explain.photo import render_photo
from vitkit.pages.explain.removal import AT_ONCE, without_each_head
from vitkit.pages.page import Page
from vitkit.support.texts import Sentence, list_languages, read_texts

HOSTILE = "</script><script>alert(1)</script> <!-- \u2028 \" ' & 猫 \udcff"


def rows(sharpness: float, tokens: int = 50) -> torch.Tensor:
    return (torch.randn(3, tokens, tokens) * sharpness).softmax(-1)


@pytest.mark.parametrize("sharpness", [0, 0.1, 1, 3, 10, 100])
def test_no_weight_of_a_page_is_off_by_a_thousandth(sharpness: float) -> None:
    weights = rows(sharpness)
    held = rounded(weights, prefix=2)
    error = (unpacked(held) - weights).abs()
    assert error.max() < 1e-3
    assert (error <= held.second[..., None] / 508 + 1e-7).all()
    assert pack_attention(weights, 2).error == error.max().item()
    assert error[..., :2].max() == 0
    assert error.gather(-1, weights.argmax(-1, keepdim=True)).max() == 0


def test_rows_that_are_alike_or_empty_are_exact() -> None:
    weights = torch.eye(4)[None].repeat(2, 1, 1)
    weights[1] = 0.25
    weights[0, 1] = 0
    assert torch.equal(unpacked(rounded(weights, 0)), weights)


def test_the_bytes_lie_as_the_page_reads_them() -> None:
    weights = rows(2, tokens=7)
    one = pack_attention(weights, prefix=2)
    stream = zlib.decompress(base64.b64decode(one.content))
    count = 3 * 7
    numbers = np.frombuffer(stream[: 4 * count * 4], "<f4")
    np.testing.assert_array_equal(numbers[:count], weights.amax(-1).flatten())
    np.testing.assert_array_equal(numbers[count : 2 * count], weights.topk(2).values[..., 1].flatten())
    np.testing.assert_array_equal(numbers[2 * count :], weights[..., :2].flatten())
    levels = np.frombuffer(stream[4 * count * 4 :], np.uint8).reshape(3, 7, 7)
    assert one.heads == 3 and (levels.argmax(-1) == weights.argmax(-1).numpy()).all() and levels.max() == 255


@pytest.fixture
def model() -> ViT:
    made = ViT(Encoder(32, 2, 4), (16, 24), (8, 8), 5).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(std=0.3)
    return made


def test_a_head_is_removed_as_if_its_columns_of_the_projection_were_zero(model: ViT) -> None:
    image = torch.randn(1, 3, 16, 24)
    for layer in find_attention_layers(model):
        found = without_each_head(model, model, image, layer, 4)
        for head in range(4):
            columns = model.get_submodule(layer).out.weight[:, 8 * head : 8 * head + 8]
            kept = columns.detach().clone()
            with torch.no_grad():
                columns.zero_()
                torch.testing.assert_close(found[head : head + 1], model(image))
                columns.copy_(kept)
            with torch.no_grad(), edit(model, Head(layer, head)):
                torch.testing.assert_close(found[head], model(image)[0])


def test_more_heads_than_a_batch_holds_are_removed_in_turn() -> None:
    heads = AT_ONCE + 2
    model = ViT(Encoder(2 * heads, 1, heads), (8, 8), (8, 8), 3).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    (layer,), image = find_attention_layers(model), torch.randn(1, 3, 8, 8)
    found = without_each_head(model, model, image, layer, heads)
    with torch.no_grad(), edit(model, Head(layer, heads - 1)):
        torch.testing.assert_close(found[-1], model(image)[0])
    assert found.shape == (heads, 3)


def test_classes_that_become_the_first_are_kept_with_the_likeliest() -> None:
    logits = torch.arange(40.0) / 4
    without = logits.repeat(2, 1)
    without[1, 3] = 20
    names = [f"class {place}" for place in range(40)]
    told = answers.of_classes(logits, [without], names, several=False)
    assert told["classes"] == ["class 39", "class 38", "class 37", "class 36", "class 35", "class 3"]
    chances, changed = logits.softmax(0), without[1].softmax(0)
    assert told["now"]["chances"] == pytest.approx(chances[[39, 38, 37, 36, 35, 3]].tolist(), abs=1e-6)
    assert told["without"][0]["logits"][1] == [9.75, 9.5, 9.25, 9.0, 8.75, 20]
    assert told["effects"][0] == pytest.approx([0, (changed[39] - chances[39]).item()], abs=1e-6)


def test_classes_that_may_be_several_have_a_sigmoid_each() -> None:
    told = answers.of_classes(torch.tensor([0.0, 2.0]), [torch.tensor([[1.0, 0.0]])], ["a", "b"], several=True)
    assert told["now"]["chances"] == pytest.approx([torch.tensor(2.0).sigmoid().item(), 0.5], abs=1e-6)
    assert told["effects"] == [[pytest.approx(0.5 - torch.tensor(2.0).sigmoid().item(), abs=1e-6)]]


def test_a_vector_turns_by_one_minus_its_cosine() -> None:
    told = answers.of_vectors(torch.tensor([1.0, 0.0]), [torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 1.0]])])
    assert told["effects"] == [[0, 1, pytest.approx(1 - 0.5**0.5, abs=1e-6)]]


def test_text_cannot_leave_the_data_of_a_page() -> None:
    made = assembled(HOSTILE, "", "<main></main>", "const one = 1;", {"texts": {}, "name": HOSTILE})
    inside = re.search(r'<script type="application/json" id="data">(.*?)</script>', made, re.DOTALL)
    assert inside and json.loads(inside[1]) == {"texts": {}, "name": HOSTILE}
    assert made.count("<script") == 2 and made.count("</script") == 2
    assert "\u2028" not in inside[1] and "<" not in inside[1]
    made.encode()  # what is no UTF-8 in a name is replaced


def test_the_policy_allows_this_script_and_nothing_else() -> None:
    made = assembled("title", "", "", "const one = 1;", {"texts": {}})
    script = re.search(r"<script>(.*?)</script>", made, re.DOTALL)
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', made)
    assert script and policy
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert html.unescape(policy[1]) == (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'"
    )
    assert not re.search(r"(src|href)=[\"']?(https?:)?//|@import|url\(", made)


def test_every_text_is_shown_and_every_text_shown_is_there() -> None:
    folder, measure = (Path(str(files(package))) for package in (PACKAGE, flags.PACKAGE))
    texts, sentences = (json.loads((place / "texts_en.json").read_text("utf-8")) for place in (folder, measure))
    assert not texts.keys() & sentences.keys()
    texts |= sentences
    python = [folder / "content.py", folder / "explanation.py", measure / "flags.py"]
    assets = [*folder.glob("*.js"), folder / "explain.html", *python]
    source = "\n".join(path.read_text("utf-8") for path in assets)
    asked = set(re.findall(r"""(?:say\(|note\(|Sentence\(|data-text=|data-label=)["'](\w+)["']""", source))
    assert asked <= set(texts)
    words = set(re.findall(r"""["'](\w+)["']""", source))
    prefix = {"cls", "dist"}
    named = {name.removesuffix("Head") if name.startswith("flag") else name for name in texts}
    assert [name for name in named if name not in words | prefix and not name.startswith("measure_")] == []


@pytest.mark.parametrize(("style", "script"), [("</STYLE>", ""), ("", "'</script>'")])
def test_an_asset_that_would_end_its_element_is_refused(style: str, script: str) -> None:
    with pytest.raises(ValueError, match="must not end its own element"):
        assembled("title", style, "", script, {})


def test_a_number_that_json_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        assembled("title", "", "", "", {"number": float("nan")})


def test_a_photo_is_shown_small_upright_and_without_what_else_its_file_says() -> None:
    preprocess, layout = Preprocess((32, 32), (0.5,) * 3, (0.5,) * 3, crop=0.5), Layout(("cls",), (4, 4), (8, 8))
    notes = PngImagePlugin.PngInfo()
    notes.add_text("Comment", "where I live")
    stream = BytesIO()
    Image.new("CMYK", (3000, 1500), (0, 255, 255, 0)).convert("RGB").save(stream, "PNG", pnginfo=notes)
    told = render_photo(Image.open(stream), preprocess, layout)
    assert (told["width"], told["height"], told["sharp"]) == (3000, 1500, False)
    assert told["box"] == pytest.approx([0.375, 0.25, 0.625, 0.75])
    content = base64.b64decode(told["source"].removeprefix("data:image/jpeg;base64,"))
    picture = Image.open(BytesIO(content))
    assert picture.size == (1000, 500) and picture.getpixel((500, 250))[0] > 240 and b"where I live" not in content


def test_a_tiny_photo_keeps_every_pixel() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (8, 12), dtype=np.uint8)
    told = render_photo(Image.fromarray(pixels), Preprocess((8, 12), (0.5,), (0.5,)), Layout((), (2, 3), (4, 4)))
    content = base64.b64decode(told["source"].removeprefix("data:image/png;base64,"))
    np.testing.assert_array_equal(np.asarray(Image.open(BytesIO(content))), pixels)
    assert told["sharp"] and told["box"] == [0, 0, 1, 1]


def test_what_a_uniform_head_would_give_is_what_statistics_find_of_one(model: ViT) -> None:
    """Queries and keys of 0 look at all tokens alike."""
    with torch.no_grad():
        for layer in find_attention_layers(model):
            for name, parameter in model.get_submodule(layer).named_parameters():
                if name.startswith("qkv"):
                    parameter[: 2 * 32] = 0
    layout = layout_of(model, (16, 24))
    found = statistics(model, model, [torch.randn(3, 3, 16, 24)], [*find_attention_layers(model)], layout)
    texts = {"flagAlike": "{layer} 猫 {mean:.1f}"}
    odd = Sentence("flagAlike", {"layer": "x{y}", "mean": 0.98}, flags.PACKAGE)
    told = over_data.describe_statistics(found, [odd], "here", ["another", *find_attention_layers(model)], texts)
    assert told["places"] == [1, 2] and told["count"] == 3 and told["flags"] == ["x{y} 猫 1.0"]
    assert set(told["even"]) == set(told["measures"])
    for name, value in told["even"].items():
        assert told["measures"][name][0]["mean"] == pytest.approx([value] * 4, rel=1e-5)


def test_a_page_is_written_once(tmp_path: Path) -> None:
    page, path = Page("<p>猫</p>"), tmp_path / "page.html"
    page.save(path)
    assert path.read_bytes() == "<p>猫</p>".encode()
    for wrong in (path, tmp_path / "missing" / "page.html"):
        with pytest.raises(ValueError, match="out must be a new file"):
            page.save(wrong)
    assert [*tmp_path.iterdir()] == [path]


def test_a_notebook_gets_a_frame_without_rights() -> None:
    frame = Page('<p title="a">&amp;</p>')._repr_html_()
    inside = re.fullmatch(
        r'<iframe title="vitkit" sandbox="([^"<]*)" style="[^"<]*" srcdoc="([^"<]*)"></iframe>', frame
    )
    assert inside and "allow-same-origin" not in inside[1] and "top-navigation" not in inside[1]
    assert html.unescape(inside[2]) == '<p title="a">&amp;</p>'


def test_a_language_without_texts_is_refused_with_those_there_are() -> None:
    assert [list_languages(package) for package in (PACKAGE, "vitkit.pages.learn", flags.PACKAGE)] == [["en"]] * 3
    with pytest.raises(ValueError, match="language must be one of en, got language=../texts_en"):
        read_texts("../texts_en", PACKAGE)
