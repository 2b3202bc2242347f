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
from vitkit.pages.assemble import assemble_page
from vitkit.pages.explain import answers, data_statistics
from vitkit.pages.explain.content import PACKAGE
from vitkit.pages.explain.packing import dequantize, pack_attention, quantize
from vitkit.pages.explain.photo import render_photo
from vitkit.pages.explain.removal import BATCH, remove_heads
from vitkit.pages.page import Page
from vitkit.support.texts import Sentence, list_languages, read_texts

HOSTILE = "</script><script>alert(1)</script> <!-- \u2028 \" ' & 猫 \udcff"


def draw_rows(sharpness: float, tokens: int = 50) -> torch.Tensor:
    return (torch.randn(3, tokens, tokens) * sharpness).softmax(-1)


@pytest.mark.parametrize("sharpness", [0, 0.1, 1, 3, 10, 100])
def test_packed_weights_are_off_by_less_than_a_thousandth(sharpness: float) -> None:
    weights = draw_rows(sharpness)
    rows = quantize(weights, prefix=2)
    error = (dequantize(rows) - weights).abs()
    assert error.max() < 1e-3
    assert (error <= rows.second[..., None] / 508 + 1e-7).all()
    assert pack_attention(weights, 2).error == error.max().item()
    assert error[..., :2].max() == 0
    assert error.gather(-1, weights.argmax(-1, keepdim=True)).max() == 0


def test_uniform_and_empty_rows_are_exact() -> None:
    weights = torch.eye(4)[None].repeat(2, 1, 1)
    weights[1] = 0.25
    weights[0, 1] = 0
    assert torch.equal(dequantize(quantize(weights, 0)), weights)


def test_packed_bytes_have_the_documented_layout() -> None:
    weights = draw_rows(2, tokens=7)
    packed = pack_attention(weights, prefix=2)
    stream = zlib.decompress(base64.b64decode(packed.content))
    count = 3 * 7
    numbers = np.frombuffer(stream[: 4 * count * 4], "<f4")
    np.testing.assert_array_equal(numbers[:count], weights.amax(-1).flatten())
    np.testing.assert_array_equal(numbers[count : 2 * count], weights.topk(2).values[..., 1].flatten())
    np.testing.assert_array_equal(numbers[2 * count :], weights[..., :2].flatten())
    levels = np.frombuffer(stream[4 * count * 4 :], np.uint8).reshape(3, 7, 7)
    assert packed.heads == 3 and (levels.argmax(-1) == weights.argmax(-1).numpy()).all() and levels.max() == 255


@pytest.fixture
def model() -> ViT:
    vit = ViT(Encoder(32, 2, 4), (16, 24), (8, 8), 5).eval()
    with torch.no_grad():
        for parameter in vit.parameters():
            parameter.normal_(std=0.3)
    return vit


def test_head_ablation_equals_zeroed_columns_of_the_projection(model: ViT) -> None:
    image = torch.randn(1, 3, 16, 24)
    for layer in find_attention_layers(model):
        outputs = remove_heads(model, model, image, layer, 4)
        for head in range(4):
            columns = model.get_submodule(layer).out.weight[:, 8 * head : 8 * head + 8]
            weights = columns.detach().clone()
            with torch.no_grad():
                columns.zero_()
                torch.testing.assert_close(outputs[head : head + 1], model(image))
                columns.copy_(weights)
            with torch.no_grad(), edit(model, Head(layer, head)):
                torch.testing.assert_close(outputs[head], model(image)[0])


def test_ablation_of_more_heads_than_a_batch_holds() -> None:
    heads = BATCH + 2
    model = ViT(Encoder(2 * heads, 1, heads), (8, 8), (8, 8), 3).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    (layer,), image = find_attention_layers(model), torch.randn(1, 3, 8, 8)
    outputs = remove_heads(model, model, image, layer, heads)
    with torch.no_grad(), edit(model, Head(layer, heads - 1)):
        torch.testing.assert_close(outputs[-1], model(image)[0])
    assert outputs.shape == (heads, 3)


def test_kept_classes_are_the_top_ones_and_each_new_first() -> None:
    logits = torch.arange(40.0) / 4
    without = logits.repeat(2, 1)
    without[1, 3] = 20
    names = [f"class {place}" for place in range(40)]
    comparison = answers.compare_classes(logits, [without], names, multilabel=False)
    assert comparison["classes"] == ["class 39", "class 38", "class 37", "class 36", "class 35", "class 3"]
    before, after = logits.softmax(0), without[1].softmax(0)
    assert comparison["now"]["probabilities"] == pytest.approx(before[[39, 38, 37, 36, 35, 3]].tolist(), abs=1e-6)
    assert comparison["without"][0]["logits"][1] == [9.75, 9.5, 9.25, 9.0, 8.75, 20]
    assert comparison["effects"][0] == pytest.approx([0, (after[39] - before[39]).item()], abs=1e-6)


def test_multilabel_probabilities_are_sigmoids() -> None:
    comparison = answers.compare_classes(
        torch.tensor([0.0, 2.0]), [torch.tensor([[1.0, 0.0]])], ["a", "b"], multilabel=True
    )
    assert comparison["now"]["probabilities"] == pytest.approx([torch.tensor(2.0).sigmoid().item(), 0.5], abs=1e-6)
    assert comparison["effects"] == [[pytest.approx(0.5 - torch.tensor(2.0).sigmoid().item(), abs=1e-6)]]


def test_effect_on_an_embedding_is_the_cosine_distance() -> None:
    comparison = answers.compare_embeddings(
        torch.tensor([1.0, 0.0]), [torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 1.0]])]
    )
    assert comparison["effects"] == [[0, 1, pytest.approx(1 - 0.5**0.5, abs=1e-6)]]


def test_data_cannot_end_its_element() -> None:
    page = assemble_page(HOSTILE, "", "<main></main>", "const one = 1;", {"texts": {}, "name": HOSTILE})
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data and json.loads(data[1]) == {"texts": {}, "name": HOSTILE}
    assert page.count("<script") == 2 and page.count("</script") == 2
    assert "\u2028" not in data[1] and "<" not in data[1]
    page.encode()  # bytes of a name that are no UTF-8 are replaced


def test_policy_allows_only_this_script() -> None:
    page = assemble_page("title", "", "", "const one = 1;", {"texts": {}})
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', page)
    assert script and policy
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert html.unescape(policy[1]) == (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'"
    )
    assert not re.search(r"(src|href)=[\"']?(https?:)?//|@import|url\(", page)


def test_every_text_is_used_and_every_used_text_exists() -> None:
    folder, measure = (Path(str(files(package))) for package in (PACKAGE, flags.PACKAGE))
    texts, sentences = (json.loads((place / "texts_en.json").read_text("utf-8")) for place in (folder, measure))
    assert not texts.keys() & sentences.keys()
    texts |= sentences
    python = [folder / "content.py", folder / "explanation.py", measure / "flags.py"]
    assets = [*folder.glob("*.js"), folder / "explain.html", *python]
    source = "\n".join(path.read_text("utf-8") for path in assets)
    asked = set(
        re.findall(r"""(?:getText\(|createNote\(|texts\[|Sentence\(|data-text=|data-label=)["'](\w+)["']""", source)
    )
    assert asked <= set(texts)
    words = set(re.findall(r"""["'](\w+)["']""", source))
    prefix = {"cls", "dist"}
    names = {name.removesuffix("Head") if name.startswith("flag") else name for name in texts}
    assert [name for name in names if name not in words | prefix and not name.startswith("measure_")] == []


@pytest.mark.parametrize(("style", "script"), [("</STYLE>", ""), ("", "'</script>'")])
def test_asset_that_would_end_its_element_is_refused(style: str, script: str) -> None:
    with pytest.raises(ValueError, match="must not end its own element"):
        assemble_page("title", style, "", script, {})


def test_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        assemble_page("title", "", "", "", {"number": float("nan")})


def test_photo_is_shrunk_and_loses_its_metadata() -> None:
    preprocess, layout = Preprocess((32, 32), (0.5,) * 3, (0.5,) * 3, crop=0.5), Layout(("cls",), (4, 4), (8, 8))
    notes = PngImagePlugin.PngInfo()
    notes.add_text("Comment", "where I live")
    stream = BytesIO()
    Image.new("CMYK", (3000, 1500), (0, 255, 255, 0)).convert("RGB").save(stream, "PNG", pnginfo=notes)
    rendered = render_photo(Image.open(stream), preprocess, layout)
    assert (rendered["width"], rendered["height"], rendered["sharp"]) == (3000, 1500, False)
    assert rendered["box"] == pytest.approx([0.375, 0.25, 0.625, 0.75])
    content = base64.b64decode(rendered["source"].removeprefix("data:image/jpeg;base64,"))
    image = Image.open(BytesIO(content))
    assert image.size == (1000, 500) and image.getpixel((500, 250))[0] > 240 and b"where I live" not in content


def test_tiny_photo_keeps_every_pixel() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (8, 12), dtype=np.uint8)
    rendered = render_photo(Image.fromarray(pixels), Preprocess((8, 12), (0.5,), (0.5,)), Layout((), (2, 3), (4, 4)))
    content = base64.b64decode(rendered["source"].removeprefix("data:image/png;base64,"))
    np.testing.assert_array_equal(np.asarray(Image.open(BytesIO(content))), pixels)
    assert rendered["sharp"] and rendered["box"] == [0, 0, 1, 1]


def test_uniform_measures_equal_the_statistics_of_uniform_attention(model: ViT) -> None:
    """Queries and keys of 0 give uniform attention."""
    with torch.no_grad():
        for layer in find_attention_layers(model):
            for name, parameter in model.get_submodule(layer).named_parameters():
                if name.startswith("qkv"):
                    parameter[: 2 * 32] = 0
    layout = layout_of(model, (16, 24))
    measured = statistics(model, model, [torch.randn(3, 3, 16, 24)], [*find_attention_layers(model)], layout)
    texts = {"flagAlike": "{layer} 猫 {mean:.1f}"}
    flag = Sentence("flagAlike", {"layer": "x{y}", "mean": 0.98}, flags.PACKAGE)
    description = data_statistics.describe_statistics(
        measured, [flag], "here", ["another", *find_attention_layers(model)], texts
    )
    assert description["places"] == [1, 2] and description["count"] == 3 and description["flags"] == ["x{y} 猫 1.0"]
    assert set(description["uniform"]) == set(description["measures"])
    for name, value in description["uniform"].items():
        assert description["measures"][name][0]["mean"] == pytest.approx([value] * 4, rel=1e-5)


def test_page_is_saved_to_a_new_file_only(tmp_path: Path) -> None:
    page, path = Page("<p>猫</p>"), tmp_path / "page.html"
    page.save(path)
    assert path.read_bytes() == "<p>猫</p>".encode()
    for wrong in (path, tmp_path / "missing" / "page.html"):
        with pytest.raises(ValueError, match="out must be a "):
            page.save(wrong)
    assert [*tmp_path.iterdir()] == [path]


def test_notebook_frame_is_sandboxed() -> None:
    frame = Page('<p title="a">&amp;</p>')._repr_html_()
    match = re.fullmatch(r'<iframe title="vitkit" sandbox="([^"<]*)" style="[^"<]*" srcdoc="([^"<]*)"></iframe>', frame)
    assert match and "allow-same-origin" not in match[1] and "top-navigation" not in match[1]
    assert html.unescape(match[2]) == '<p title="a">&amp;</p>'


def test_unknown_language_is_refused_with_a_list() -> None:
    assert [list_languages(package) for package in (PACKAGE, "vitkit.pages.learn", flags.PACKAGE)] == [["en", "zh"]] * 3
    with pytest.raises(ValueError, match="language must be one of en, zh, got language=../texts_en"):
        read_texts("../texts_en", PACKAGE)
