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
from vitkit.pages.learn.lessons import LESSONS, build_untrained_vit, draw_waves, learn
from vitkit.pages.learn.position_table import MAX_NUMBERS, PACKAGE, load_digit_table, pack_table
from vitkit.pages.learn.steps import record_layer
from vitkit.support.texts import list_languages

ASSETS = files(PACKAGE)
Randomise = Callable[[nn.Module], nn.Module]


def build_vit(**parts: object) -> ViT:
    return ViT(Encoder(16, 2, 2, **parts), (8, 12), (4, 4), 3)


def read_data(html: str) -> dict[str, object]:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert match
    return json.loads(match[1])


def compute_steps(model: ViT, images: Tensor, layer: int) -> dict[str, Tensor]:
    """Compute each step of a pre-norm layer with an MLP by plain functions."""
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
def test_recorded_steps_equal_plain_functions(randomise: Randomise, layer: int) -> None:
    model, images = randomise(build_vit()), torch.randn(1, 3, 8, 12).double()
    reference = compute_steps(model, images, layer)
    steps = record_layer(model, images, layer - 2)
    assert [step.step for step in steps] == [*reference]
    for step in steps:
        numbers = reference[step.step]
        assert step.shape == tuple(numbers.shape) and len(step.letters) == numbers.ndim
        expected = [numbers.mean(), numbers.var(correction=0), numbers.min(), numbers.max()]
        torch.testing.assert_close(
            torch.tensor(step[3:7], dtype=torch.float64), torch.stack(expected).detach().double(), atol=1e-6, rtol=1e-6
        )
        assert sum(step.bins) == numbers.numel()


def test_recording_leaves_no_hooks(randomise: Randomise) -> None:
    model, images = randomise(build_vit()), torch.randn(1, 3, 8, 12).double()
    before = model(images)
    record_layer(model, images)
    assert torch.equal(model(images), before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_steps_depend_on_residual_and_mlp(randomise: Randomise) -> None:
    def list_steps(**parts: object) -> list[str]:
        return [step.step for step in record_layer(randomise(build_vit(**parts)), torch.randn(1, 3, 8, 12).double())]

    attention = ["q", "k", "v", "products", "scores", "weights", "heads", "out"]
    post = list_steps(residual=PostNorm)
    assert post == ["input", *attention, "sum", "post_norm", "up", "act", "down", "mlp_sum", "mlp_post_norm"]
    gated = list_steps(mlp=SwiGLU)
    assert gated[gated.index("mlp_norm") :] == ["mlp_norm", "gate_up", "gated", "down", "mlp_sum"]
    scaled = list_steps(residual=partial(PreNorm, scale=0.1))
    assert scaled[9:12] == ["out", "scale", "sum"] and scaled[-3:] == ["down", "mlp_scale", "mlp_sum"]
    custom = list_steps(mlp=lambda dim: nn.Sequential(MLP(dim)))
    assert custom[-3:] == ["mlp_norm", "branch", "mlp_sum"]


def test_shared_keys_have_fewer_heads(randomise: Randomise) -> None:
    model = randomise(build_vit(attention=partial(Attention, kv_heads=1)))
    steps = {step.step: step for step in record_layer(model, torch.randn(1, 3, 8, 12).double())}
    assert steps["k"].letters == ("B", "K", "T", "Dh") and steps["k"].shape == (1, 1, 7, 8)
    assert steps["weights"].shape == (1, 2, 7, 7)


def test_unknown_layers_modes_and_languages_are_refused(randomise: Randomise) -> None:
    model, images = randomise(build_vit()), torch.randn(1, 3, 8, 12).double()
    with pytest.raises(ValueError, match="layer must be from -2 to 1, got layer=2"):
        record_layer(model, images, 2)
    with pytest.raises(ValueError, match=r"call model\.eval"):
        record_layer(model.train(), images)
    with pytest.raises(ValueError, match="finite"):
        record_layer(model.eval(), images * torch.inf)
    fused = partial(Message, fuse=lambda dim: nn.Linear(2 * dim, dim))
    with pytest.raises(ValueError, match="PreNorm or PostNorm residuals, got Message"):
        record_layer(randomise(ViT(Encoder(16, 2, 2, residual=fused), (8, 12), (4, 4), 3, init=init.mae)), images)
    with pytest.raises(ValueError, match="its core LinearCore has no softmax"):
        record_layer(randomise(build_vit(attention=partial(Attention, core=LinearCore))), images)
    with pytest.raises(ValueError, match="language must be one of en, zh, got language=xx"):
        learn(language="xx")


@pytest.mark.parametrize("shape", [(8, 8, 32), (1, 5, 4), (40, 30, 768)])
def test_packed_table_fits_and_keeps_its_numbers(shape: tuple[int, int, int]) -> None:
    import base64

    table = torch.randn(shape)
    packed = pack_table(table)
    numbers = torch.frombuffer(bytearray(base64.b64decode(packed.packed)), dtype=torch.int16).float() * packed.scale
    kept = table[:: packed.stride, :: packed.stride]
    assert packed.grid == kept.shape[:2] and packed.dim == shape[2]
    assert kept.numel() <= MAX_NUMBERS and (packed.stride == 1) == (table.numel() <= MAX_NUMBERS)
    assert (numbers.view(kept.shape) - kept).abs().max() <= table.abs().max() / 65_000


def test_digit_table_is_similar_for_near_patches() -> None:
    table = F.normalize(load_digit_table().flatten(0, 1), dim=-1)
    places = torch.cartesian_prod(torch.arange(8), torch.arange(8)).float()
    distance, similarity = torch.cdist(places, places), table @ table.T
    assert similarity[distance == 1].mean() > 0.45 > 0.1 > similarity[distance >= 3].mean()


def test_waves_are_a_normalised_image() -> None:
    image = draw_waves(3, 24, 32)
    assert image.shape == (1, 3, 24, 32) and draw_waves(1, 8, 8).shape == (1, 1, 8, 8)
    assert abs(image.mean()) < 1e-6 and abs(image.std() - 1) < 1e-6


def test_page_shows_the_given_model(randomise: Randomise) -> None:
    model = randomise(build_vit())
    data = read_data(learn(model, layer=-1, name="mine").html)
    steps = [step._asdict() for step in record_layer(model, draw_waves(3, 8, 12).double(), 1)]
    assert data["layer"]["steps"] == json.loads(json.dumps(steps))
    assert data["learned"]["grid"] == [2, 3] and data["learned"]["source"] == "These are the learned positions of mine."
    assert "Layer 1 is shown, of layers 0 to 1." in data["layer"]["source"]


def test_model_without_learned_positions_shows_the_digit_table() -> None:
    encoder = Encoder(16, 1, 2)
    model = MAE(encoder, Encoder(16, 1, 2), (8, 8), (4, 4), table=Sinusoidal).eval()
    learned = read_data(learn(model, name="mine").html)["learned"]
    assert learned["grid"] == [8, 8] and learned["source"].startswith("mine has no learned positions")
    pooled = ViT(Encoder(16, 1, 2), (8, 8), (4, 4), 3, prefix=0, pool=Mean, table=Learned).eval()
    assert read_data(learn(pooled).html)["layer"]["steps"][0]["shape"] == [1, 4, 16]


def test_page_is_deterministic_and_keeps_the_random_state() -> None:
    torch.manual_seed(5)
    number = torch.randn(1)
    torch.manual_seed(5)
    page = learn()
    assert torch.randn(1) == number
    assert page.html == learn().html and len(page.html) < 200_000
    assert build_untrained_vit().training is False


def test_hostile_name_stays_text() -> None:
    name = '</script><img src=x onerror="alert(1)">{who}\u2028"'
    html = learn(build_untrained_vit(), name=name, picture=name, images=torch.randn(1, 3, 32, 32)).html
    assert name in read_data(html)["layer"]["source"]
    assert "<img" not in html and html.count("</script>") == 2


@pytest.mark.parametrize("language", list_languages(PACKAGE))
def test_every_used_text_exists(language: str) -> None:
    texts = json.loads(ASSETS.joinpath(f"texts_{language}.json").read_text("utf-8"))
    sources = {file.name: file.read_text("utf-8") for file in ASSETS.iterdir() if file.name.endswith((".js", ".html"))}
    script = "\n".join(text for name, text in sources.items() if name.endswith(".js"))
    asked = set(re.findall(r'getText\("([\w.]+)"', script)) | set(re.findall(r"{{([\w.]+)}}", sources["learn.html"]))
    assert not asked - {name for name, text in texts.items() if isinstance(text, str)}
    assert all(f"{lesson}.{part}" in texts for lesson in LESSONS for part in ("title", "text", "try1", "try2"))
    english = json.loads(ASSETS.joinpath("texts_en.json").read_text("utf-8"))
    assert texts.keys() == english.keys()
    for name, text in english.items():
        if isinstance(text, str):
            assert sorted(re.findall(r"{\w+}", texts[name])) == sorted(re.findall(r"{\w+}", text)), name


def test_every_step_has_texts() -> None:
    texts = json.loads(ASSETS.joinpath("texts_en.json").read_text("utf-8"))
    recorded = re.findall(
        r'(?:record_input|record_output|record)\([^"]*?f?"([\w{}]+)"', ASSETS.joinpath("steps.py").read_text("utf-8")
    )
    names = {name.replace("{prefix}", prefix) for name in recorded for prefix in ("", "mlp_")}
    assert {"input", "mlp_post_norm", "gated", "weights", "scale"} <= names
    assert not [
        f"{name}.{part}"
        for name in names
        for part in ("title", "formula", "text")
        if f"layer.{name}.{part}" not in texts
    ]
