import json
import re
from collections.abc import Callable
from functools import partial
from importlib.resources import files

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.models import MAE, ViT
from vitkit.nn import (
    MLP,
    Attention,
    Encoder,
    Learned,
    LinearCore,
    Mean,
    Message,
    PostNorm,
    PreNorm,
    Sinusoidal,
    SwiGLU,
    init,
)
from vitkit.pages.learn.lessons import LESSONS, learn, untrained, waves
from vitkit.pages.learn.position_table import MOST, PACKAGE, built_in, pack_table
from vitkit.pages.learn.steps import layer_steps
from vitkit.support.texts import list_languages

ASSETS = files(PACKAGE)
Randomise = Callable[[nn.Module], nn.Module]


def vit(**parts: object) -> ViT:
    return ViT(Encoder(16, 2, 2, **parts), (8, 12), (4, 4), 3)


def data_of(html: str) -> dict[str, object]:
    held = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert held
    return json.loads(held[1])


def by_hand(model: ViT, images: Tensor, layer: int) -> dict[str, Tensor]:
    """Each step of a pre-norm layer with an MLP, by plain functions."""
    x, _ = model.embed(images)
    for block in model.encoder.blocks[:layer]:
        x = block(x)
    attn, mlp = model.encoder.blocks[layer].attn, model.encoder.blocks[layer].mlp
    steps = {"input": x, "norm": F.layer_norm(x, (16,), attn.norm.weight, attn.norm.bias, 1e-6)}
    qkv = steps["norm"] @ attn.f.qkv.weight.T + attn.f.qkv.bias
    q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in qkv.chunk(3, -1))
    steps |= {"q": q, "k": k, "v": v, "products": torch.einsum("bhtd,bhsd->bhts", q, k)}
    steps["scores"] = steps["products"] / 8**0.5
    steps["weights"] = steps["scores"].exp() / steps["scores"].exp().sum(-1, keepdim=True)
    steps["heads"] = torch.einsum("bhts,bhsd->bhtd", steps["weights"], v)
    steps["out"] = steps["heads"].transpose(1, 2).flatten(2) @ attn.f.out.weight.T + attn.f.out.bias
    steps["sum"] = x + steps["out"]
    steps["mlp_norm"] = F.layer_norm(steps["sum"], (16,), mlp.norm.weight, mlp.norm.bias, 1e-6)
    steps["up"] = steps["mlp_norm"] @ mlp.f.up.weight.T + mlp.f.up.bias
    steps["act"] = F.gelu(steps["up"])
    steps["down"] = steps["act"] @ mlp.f.down.weight.T + mlp.f.down.bias
    return steps | {"mlp_sum": steps["sum"] + steps["down"]}


@pytest.mark.parametrize("layer", [0, 1])
def test_each_step_of_a_layer_equals_the_same_by_hand(randomise: Randomise, layer: int) -> None:
    model, images = randomise(vit()), torch.randn(1, 3, 8, 12).double()
    reference = by_hand(model, images, layer)
    found = layer_steps(model, images, layer - 2)
    assert [step.step for step in found] == [*reference]
    for step in found:
        numbers = reference[step.step]
        assert step.shape == tuple(numbers.shape) and len(step.letters) == numbers.ndim
        expected = [numbers.mean(), numbers.var(correction=0), numbers.min(), numbers.max()]
        torch.testing.assert_close(
            torch.tensor(step[3:7], dtype=torch.float64), torch.stack(expected).detach().double(), atol=1e-6, rtol=1e-6
        )
        assert sum(step.bins) == numbers.numel()


def test_of_a_forward_pass_nothing_stays_behind(randomise: Randomise) -> None:
    model, images = randomise(vit()), torch.randn(1, 3, 8, 12).double()
    before = model(images)
    layer_steps(model, images)
    assert torch.equal(model(images), before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_layer_of_another_kind_has_other_steps(randomise: Randomise) -> None:
    def names(**parts: object) -> list[str]:
        return [step.step for step in layer_steps(randomise(vit(**parts)), torch.randn(1, 3, 8, 12).double())]

    attention = ["q", "k", "v", "products", "scores", "weights", "heads", "out"]
    post = names(residual=PostNorm)
    assert post == ["input", *attention, "sum", "post_norm", "up", "act", "down", "mlp_sum", "mlp_post_norm"]
    gated = names(mlp=SwiGLU)
    assert gated[gated.index("mlp_norm") :] == ["mlp_norm", "gate_up", "gated", "down", "mlp_sum"]
    scaled = names(residual=partial(PreNorm, scale=0.1))
    assert scaled[9:12] == ["out", "scale", "sum"] and scaled[-3:] == ["down", "mlp_scale", "mlp_sum"]
    other = names(mlp=lambda dim: nn.Sequential(MLP(dim)))
    assert other[-3:] == ["mlp_norm", "branch", "mlp_sum"]


def test_shared_keys_are_shown_as_few(randomise: Randomise) -> None:
    model = randomise(vit(attention=partial(Attention, kv_heads=1)))
    steps = {step.step: step for step in layer_steps(model, torch.randn(1, 3, 8, 12).double())}
    assert steps["k"].letters == ("B", "K", "T", "Dh") and steps["k"].shape == (1, 1, 7, 8)
    assert steps["weights"].shape == (1, 2, 7, 7)


def test_what_cannot_be_shown_is_refused(randomise: Randomise) -> None:
    model, images = randomise(vit()), torch.randn(1, 3, 8, 12).double()
    with pytest.raises(ValueError, match="layer must be from -2 to 1, got layer=2"):
        layer_steps(model, images, 2)
    with pytest.raises(ValueError, match=r"call model\.eval"):
        layer_steps(model.train(), images)
    with pytest.raises(ValueError, match="finite"):
        layer_steps(model.eval(), images * torch.inf)
    fused = partial(Message, fuse=lambda dim: nn.Linear(2 * dim, dim))
    with pytest.raises(ValueError, match="PreNorm or PostNorm residuals, got Message"):
        layer_steps(randomise(ViT(Encoder(16, 2, 2, residual=fused), (8, 12), (4, 4), 3, init=init.mae)), images)
    with pytest.raises(ValueError, match="its core LinearCore has no softmax"):
        layer_steps(randomise(vit(attention=partial(Attention, core=LinearCore))), images)
    with pytest.raises(ValueError, match="language must be one of en, got language=zh"):
        learn(language="zh")


@pytest.mark.parametrize("shape", [(8, 8, 32), (1, 5, 4), (40, 30, 768)])
def test_a_table_of_positions_fits_and_keeps_its_numbers(shape: tuple[int, int, int]) -> None:
    import base64

    table = torch.randn(shape)
    held = pack_table(table)
    numbers = torch.frombuffer(bytearray(base64.b64decode(held.packed)), dtype=torch.int16).float() * held.scale
    kept = table[:: held.stride, :: held.stride]
    assert held.grid == kept.shape[:2] and held.dim == shape[2]
    assert kept.numel() <= MOST and (held.stride == 1) == (table.numel() <= MOST)
    assert (numbers.view(kept.shape) - kept).abs().max() <= table.abs().max() / 65_000


def test_the_built_in_table_has_learned_what_is_near() -> None:
    table = F.normalize(built_in().flatten(0, 1), dim=-1)
    places = torch.cartesian_prod(torch.arange(8), torch.arange(8)).float()
    distance, likeness = torch.cdist(places, places), table @ table.T
    assert likeness[distance == 1].mean() > 0.45 > 0.1 > likeness[distance >= 3].mean()


def test_waves_look_like_a_normalised_picture() -> None:
    picture = waves(3, 24, 32)
    assert picture.shape == (1, 3, 24, 32) and waves(1, 8, 8).shape == (1, 1, 8, 8)
    assert abs(picture.mean()) < 1e-6 and abs(picture.std() - 1) < 1e-6


def test_a_page_shows_the_model_it_is_given(randomise: Randomise) -> None:
    model = randomise(vit())
    data = data_of(learn(model, layer=-1, name="mine").html)
    steps = [step._asdict() for step in layer_steps(model, waves(3, 8, 12).double(), 1)]
    assert data["layer"]["steps"] == json.loads(json.dumps(steps))
    assert data["learned"]["grid"] == [2, 3] and data["learned"]["source"] == "This is the table of mine."
    assert "layer 1 of those from 0 to 1" in data["layer"]["source"]


def test_a_model_without_a_learned_table_gets_one_that_says_so() -> None:
    encoder = Encoder(16, 1, 2)
    model = MAE(encoder, Encoder(16, 1, 2), (8, 8), (4, 4), table=Sinusoidal).eval()
    learned = data_of(learn(model, name="mine").html)["learned"]
    assert learned["grid"] == [8, 8] and learned["source"].startswith("mine has no learned table")
    pooled = ViT(Encoder(16, 1, 2), (8, 8), (4, 4), 3, prefix=0, pool=Mean, table=Learned).eval()
    assert data_of(learn(pooled).html)["layer"]["steps"][0]["shape"] == [1, 4, 16]


def test_a_page_is_the_same_each_time_and_leaves_random_numbers_alone() -> None:
    torch.manual_seed(5)
    one = torch.randn(1)
    torch.manual_seed(5)
    page = learn()
    assert torch.randn(1) == one
    assert page.html == learn().html and len(page.html) < 200_000
    assert untrained().training is False


def test_a_name_stays_a_text() -> None:
    name = '</script><img src=x onerror="alert(1)">{who}\u2028"'
    html = learn(untrained(), name=name, picture=name, images=torch.randn(1, 3, 32, 32)).html
    assert name in data_of(html)["layer"]["source"]
    assert "<img" not in html and html.count("</script>") == 2


@pytest.mark.parametrize("language", list_languages(PACKAGE))
def test_each_text_that_is_asked_for_is_there_and_each_is_asked_for(language: str) -> None:
    texts = json.loads(ASSETS.joinpath(f"texts_{language}.json").read_text("utf-8"))
    sources = {file.name: file.read_text("utf-8") for file in ASSETS.iterdir() if file.name.endswith((".js", ".html"))}
    script = "\n".join(text for name, text in sources.items() if name.endswith(".js"))
    asked = set(re.findall(r'say\("([\w.]+)"', script)) | set(re.findall(r"{{([\w.]+)}}", sources["learn.html"]))
    assert not asked - {name for name, text in texts.items() if isinstance(text, str)}
    assert all(f"{lesson}.{part}" in texts for lesson in LESSONS for part in ("title", "text", "try1", "try2"))
    english = json.loads(ASSETS.joinpath("texts_en.json").read_text("utf-8"))
    assert texts.keys() == english.keys()
    for name, text in english.items():
        if isinstance(text, str):
            assert sorted(re.findall(r"{\w+}", texts[name])) == sorted(re.findall(r"{\w+}", text)), name


def test_each_step_has_its_words() -> None:
    texts = json.loads(ASSETS.joinpath("texts_en.json").read_text("utf-8"))
    recorded = re.findall(
        r'(?:before|after|record)\([^"]*?f?"([\w{}]+)"', ASSETS.joinpath("steps.py").read_text("utf-8")
    )
    names = {name.replace("{prefix}", prefix) for name in recorded for prefix in ("", "mlp_")}
    assert {"input", "mlp_post_norm", "gated", "weights", "scale"} <= names
    assert not [
        f"{name}.{part}"
        for name in names
        for part in ("title", "formula", "text")
        if f"layer.{name}.{part}" not in texts
    ]
