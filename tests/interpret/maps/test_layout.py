"""Layouts of tokens: by the positions of a model that is made to show them, and by hand."""

from typing import Any

import pytest
import timm
import torch
from torch import Tensor

from vitkit import CLIP, MAE, Encoder, TextTower, ViT
from vitkit.interpret.maps.layout import Layout, layout_of
from vitkit.interpret.maps.windows import Windows, find_windows
from vitkit.interpret.see.capture import capture

WIDE = (64, 96)
NARROW = {"embed_dim": 48, "num_heads": 3}
LAYOUT = Layout(("cls", "reg0"), (2, 3), (8, 8))


def test_names_and_tokens_are_inverse() -> None:
    names = ["cls", "reg0", *(f"row {row}, column {column}" for row in range(2) for column in range(3))]
    assert [LAYOUT.name_token(token) for token in range(LAYOUT.num_tokens)] == names
    assert [LAYOUT.find_token("reg0"), LAYOUT.find_token((0, 0)), LAYOUT.find_token((1, 2))] == [1, 2, 7]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("dist", "token must be one of cls, reg0, got dist"),
        ((2, 0), r"inside the grid of 2 x 3, got row 2, column 0"),
        ((0, -1), "got row 0, column -1"),
    ],
)
def test_unknown_tokens_are_refused(where: str | tuple[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LAYOUT.find_token(where)


def test_split_into_prefix_and_grid() -> None:
    split = LAYOUT.split(torch.arange(8.0).expand(4, 8))
    assert torch.equal(split.prefix[0], torch.tensor([0.0, 1.0]))
    assert torch.equal(split.patches[3], torch.tensor([[2.0, 3, 4], [5, 6, 7]]))
    with pytest.raises(ValueError, match=r"weights must be of 2 \+ 2 x 3 tokens, got 7"):
        LAYOUT.split(torch.ones(7))


@pytest.mark.parametrize(("prefix", "names"), [(0, ()), (1, ("cls",)), (3, ("cls", "reg0", "reg1"))])
def test_vitkits_models_have_cls_then_registers(prefix: int, names: tuple[str, ...]) -> None:
    from vitkit import Mean

    trunk = Encoder(8, 1, 2)
    image = ViT(trunk, (16, 24), (8, 4), 5, prefix=prefix, pool=Mean)
    expected = Layout(names, (4, 3), (8, 4))
    text = TextTower(Encoder(8, 1, 2, causal=True), 9, 4, 5)
    mae = MAE(trunk, Encoder(8, 1, 2), (16, 24), (8, 4), prefix=prefix)
    for model in (image, mae, CLIP(image, text)):
        assert layout_of(model, (32, 12)) == expected
    with pytest.raises(ValueError, match="image_size must be a multiple of patch_size"):
        layout_of(image, (30, 12))


TIMM: dict[str, tuple[dict[str, Any], tuple[int, int], tuple[str, ...], tuple[int, int]]] = {
    "vit_tiny_patch16_224": ({"depth": 1}, WIDE, ("cls",), (16, 16)),
    "deit_tiny_distilled_patch16_224": ({"depth": 1}, WIDE, ("cls", "dist"), (16, 16)),
    "vit_small_patch14_reg4_dinov2": (
        {"depth": 1, **NARROW},
        (56, 84),
        ("cls", *[f"reg{i}" for i in range(4)]),
        (14, 14),
    ),
    "vit_small_patch16_dinov3": ({"depth": 1, **NARROW}, WIDE, ("cls", *[f"reg{i}" for i in range(4)]), (16, 16)),
    "eva02_tiny_patch14_224": ({"depth": 1}, (56, 84), ("cls",), (14, 14)),
    "beit_base_patch16_224": ({"depth": 1, **NARROW}, WIDE, ("cls",), (16, 16)),
    "vit_base_patch16_siglip_224": ({"depth": 1, **NARROW}, WIDE, (), (16, 16)),
    "vit_relpos_small_patch16_224": ({"depth": 1, **NARROW}, WIDE, (), (16, 16)),
    "vit_tiny_r_s16_p8_224": ({"depth": 1}, WIDE, ("cls",), (32, 32)),
    "cait_xxs24_224": ({"depth": 1, "depth_token_only": 1}, WIDE, ("cls",), (16, 16)),
    "naflexvit_base_patch16_gap": ({"depth": 1, **NARROW}, WIDE, tuple(f"reg{i}" for i in range(4)), (16, 16)),
}


@torch.no_grad()
@pytest.mark.parametrize("name", TIMM)
def test_layout_of_timm_matches_changed_tokens(name: str) -> None:
    """The input of the first attention: of the prefix nothing changes, of the grid the patch that was painted."""
    options, size, prefix, patch = TIMM[name]
    sized = {} if name.startswith("naflex") else {"img_size": size}
    model = timm.create_model(name, num_classes=2, **sized, **options).eval()
    layout = layout_of(model, size)
    assert layout == Layout(prefix, (size[0] // patch[0], size[1] // patch[1]), patch)
    row, column = 1, 2
    image = torch.zeros(2, 3, *size)
    image[1, :, patch[0] * row : patch[0] * (row + 1), patch[1] * column : patch[1] * (column + 1)] = 1
    kept: list[Tensor] = []
    block = model.blocks_token_only[0].attn if name.startswith("cait") else model.blocks[0]
    block.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0]))
    model(image)
    changed = (kept[0][0] - kept[0][1]).abs().amax(-1)
    if name.startswith("cait"):  # this far, all tokens have spoken to each other
        assert changed[0] == 0
        assert len(changed) == layout.num_tokens
    else:
        assert changed.argmax() == layout.find_token((row, column))
        assert not changed[: len(prefix)].any()


def test_layouts_of_other_libraries() -> None:
    open_clip, transformers = pytest.importorskip("open_clip"), pytest.importorskip("transformers")
    from torchvision.models import VisionTransformer

    vision = {"image_size": (32, 48), "patch_size": 16, "layers": 1, "width": 16, "head_width": 8}
    text = {"context_length": 6, "vocab_size": 50, "width": 16, "heads": 2, "layers": 1}
    clip = open_clip.CLIP(8, vision, text)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    register = transformers.Dinov2WithRegistersConfig(**sizes, image_size=32, patch_size=16, num_register_tokens=2)
    deit = transformers.DeiTConfig(**sizes, image_size=32, patch_size=16)
    for model, prefix in (
        (clip, ("cls",)),
        (clip.visual, ("cls",)),
        (VisionTransformer(32, 16, 1, 2, 16, 32), ("cls",)),
        (transformers.Dinov2WithRegistersModel(register), ("cls", "reg0", "reg1")),
        (transformers.DeiTModel(deit), ("cls", "dist")),
    ):
        assert layout_of(model, (32, 48)) == Layout(prefix, (2, 3), (16, 16))
    with pytest.raises(ValueError, match="tokens of ViTMAEModel are unknown"):
        layout_of(transformers.ViTMAEModel(transformers.ViTMAEConfig(**sizes, image_size=32)), (32, 32))


@pytest.mark.parametrize("name", ["pit_ti_224", "swin_tiny_patch4_window7_224", "hiera_tiny_224", "resnet18"])
def test_unknown_models_are_refused(name: str) -> None:
    with torch.device("meta"):
        model = timm.create_model(name)
    with pytest.raises(ValueError, match=r"the tokens of \w+ are unknown; give a Layout"):
        layout_of(model, (224, 224))


@pytest.mark.parametrize(("size", "message"), [((64, 64), "size must be the model's own, 64 x 96"), (WIDE, None)])
def test_a_size_that_the_model_does_not_take_is_refused(size: tuple[int, int], message: str | None) -> None:
    with torch.device("meta"):
        model = timm.create_model("vit_tiny_patch16_224", img_size=WIDE, depth=1)
    if message is None:
        assert layout_of(model, size).grid == (4, 6)
        return
    with pytest.raises(ValueError, match=message):
        layout_of(model, size)


def map_by_hand(windows: Windows, weights: Tensor, row: int, column: int) -> Tensor:
    """By moving an image of numbered places through the shift, the padding and the windows."""
    (h, w), (a, b) = windows.grid, windows.window
    places = torch.arange(h * w).view(h, w).roll((-windows.shift[0], -windows.shift[1]), (0, 1))
    padded = torch.full((-(-h // a) * a, -(-w // b) * b), -1)
    padded[:h, :w] = places
    cut = [
        padded[top : top + a, left : left + b]
        for top in range(0, len(padded), a)
        for left in range(0, padded.shape[1], b)
    ]
    result = torch.zeros(len(weights) // len(cut), weights.shape[1], h * w, dtype=weights.dtype)
    for image in range(len(result)):
        for index, window in enumerate(cut):
            numbers = window.flatten()
            query = (numbers == row * w + column).nonzero()
            if len(query):
                real = numbers >= 0
                result[image][:, numbers[real]] = weights[image * len(cut) + index][:, query.item(), real]
    return result.unflatten(-1, (h, w))


@pytest.mark.parametrize(
    "windows",
    [Windows((6, 4), (3, 2), (0, 0)), Windows((6, 4), (3, 2), (1, 1)), Windows((5, 7), (3, 2), (1, 1))],
    ids=["whole", "shifted", "shifted and padded"],
)
def test_windows_are_mapped_back_to_the_grid(windows: Windows) -> None:
    down, across = windows.count
    weights = torch.rand(2 * down * across, 2, 6, 6).softmax(-1)
    for row in range(windows.grid[0]):
        for column in range(windows.grid[1]):
            assert torch.equal(windows.map_to_grid(weights, row, column), map_by_hand(windows, weights, row, column))


@torch.no_grad()
@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256"])
def test_windows_of_swin_have_the_gradient(name: str) -> None:
    """In a shifted layer, a place looks where a change of the block's input changes what the place gets."""
    model = timm.create_model(
        name, img_size=(64, 96), window_size=4, depths=(2, 1), num_heads=(2, 4), embed_dim=16, num_classes=2
    ).eval()
    layer, block = "layers.0.blocks.1.attn", model.layers[0].blocks[1]
    windows = find_windows(model, layer)
    assert windows == Windows((16, 24), (4, 4), (2, 2))
    x = torch.randn(1, 16, 24, 16)
    with capture(block, "attn") as attention:
        block._attn(x)
    for row, column in ((0, 0), (1, 5), (7, 13), (15, 23)):
        weights = windows.map_to_grid(attention.get_layer(0).weights, row, column)[0].amax(0)
        assert weights.sum() > 0
        with torch.enable_grad():
            gradient = torch.autograd.grad(block._attn(y := x.clone().requires_grad_())[0, row, column].sum(), y)[0]
        assert torch.equal(weights > 1e-12, gradient[0].abs().sum(-1) > 1e-12)


def test_unknown_windows_are_refused() -> None:
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1)
    with pytest.raises(ValueError, match=r"the windows of blocks\.0\.attn \(timm.* are unknown"):
        find_windows(model, "blocks.0.attn")
    windows = Windows((6, 4), (3, 2), (0, 0))
    with pytest.raises(ValueError, match="cell must be inside the grid of 6 x 4, got row 6, column 0"):
        windows.map_to_grid(torch.rand(4, 1, 6, 6), 6, 0)
    with pytest.raises(ValueError, match=r"weights must be of 4 windows of 3 x 2 for each image, got \(5, 1, 6, 6\)"):
        windows.map_to_grid(torch.rand(5, 1, 6, 6), 0, 0)
