import numpy as np
import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch.testing import assert_close

from vitkit.bundle import model_config
from vitkit.bundle.weights import load
from vitkit.convert.jax_weights import count_heads, to_timm
from vitkit.convert.timm import config as timm_config
from vitkit.convert.timm import tensors as timm_tensors
from vitkit.convert.timm.config import Facts

D, H, N, CLASSES = 32, 4, 9, 5  # timm takes the positions of such files for a square
SIZE, GRID = (24, 24), (3, 3)
ATTENTION = "MultiHeadDotProductAttention_1"


def draw_arrays(before: str = "", head: bool = True) -> dict[str, np.ndarray]:
    """Return random arrays of a ViT of two blocks, in the layout of the JAX code."""
    shapes = {
        "cls": (1, 1, D),
        **list_shapes("embedding", (8, 8, 3, D), (D,)),
        "Transformer/posembed_input/pos_embedding": (1, N + 1, D),
        "Transformer/encoder_norm/scale": (D,),
        "Transformer/encoder_norm/bias": (D,),
        **(list_shapes("head", (D, CLASSES), (CLASSES,)) if head else {}),
    }
    for block in ("Transformer/encoderblock_0", "Transformer/encoderblock_1"):
        for norm in ("LayerNorm_0", "LayerNorm_2"):
            shapes |= {f"{block}/{norm}/scale": (D,), f"{block}/{norm}/bias": (D,)}
        for name in ("query", "key", "value"):
            shapes |= list_shapes(f"{block}/{ATTENTION}/{name}", (D, H, D // H), (H, D // H))
        shapes |= list_shapes(f"{block}/{ATTENTION}/out", (H, D // H, D), (D,))
        shapes |= list_shapes(f"{block}/MlpBlock_3/Dense_0", (D, 128), (128,))
        shapes |= list_shapes(f"{block}/MlpBlock_3/Dense_1", (128, D), (D,))
    generator = np.random.default_rng(0)
    return {before + name: generator.normal(0, 0.3, shape).astype("float32") for name, shape in shapes.items()}


def list_shapes(name: str, kernel: tuple[int, ...], bias: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {f"{name}/kernel": kernel, f"{name}/bias": bias}


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize("before", ["", "opt/target/"])
def test_outputs_equal_those_of_timms_reader(tmp_path, before, head):
    arrays = draw_arrays(before, head)
    np.savez(tmp_path / "vit.npz", **arrays)
    sizes = {"img_size": SIZE, "patch_size": 8, "embed_dim": D, "depth": 2, "num_heads": H}
    reference = VisionTransformer(**sizes, num_classes=CLASSES if head else 0).eval()
    reference.load_pretrained(str(tmp_path / "vit.npz"))
    state = to_timm({**arrays, "opt/state/step": np.zeros((), "int32")} if before else arrays)
    model = model_config.build_model(timm_config.read_config(state, Facts(count_heads(arrays), SIZE))).eval()
    load(model, timm_tensors.to_vitkit(state, GRID))
    images = torch.randn(2, 3, *SIZE)
    assert_close(model(images), reference(images), rtol=0, atol=1e-5)


def test_positions_take_the_given_grid():
    arrays = draw_arrays()
    arrays["Transformer/posembed_input/pos_embedding"] = np.zeros((1, 16, D), "float32")
    assert timm_tensors.to_vitkit(to_timm(arrays), (3, 5))["embed.table.weight"].shape == (3, 5, D)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["pre_logits/kernel"], "pre_logits"),
        (["conv_root/kernel", "gn_root/scale", "block1/unit1/conv1/kernel"], "a ResNet in front"),
        (["params/img/MAPHead_0/probe"], "a pool by attention"),
        (["params/img/pos_embedding"], "big_vision's layout"),
        (["Transformer/encoderblock/MlpBlock_0/Dense_0/kernel"], "big_vision's layout"),
    ],
)
def test_other_architectures_raise_with_the_reason(names, reason):
    with pytest.raises(ValueError, match=reason):
        to_timm({**draw_arrays(), **dict.fromkeys(names, np.zeros((2, 2), "float32"))})


def test_unknown_and_missing_tensors_are_listed_at_once():
    arrays = draw_arrays()
    model = model_config.build_model(timm_config.read_config(to_timm(arrays), Facts(H, SIZE)))
    del arrays[f"Transformer/encoderblock_1/{ATTENTION}/key/bias"]
    arrays["extra/kernel"] = np.zeros((2, 2), "float32")
    with pytest.raises(ValueError) as error:
        load(model, timm_tensors.to_vitkit(to_timm(arrays), GRID))
    assert [line.split(":")[0] for line in str(error.value).splitlines()[1:]] == [
        f"  + Transformer/encoderblock_1/{ATTENTION}/query/bias",
        f"  + Transformer/encoderblock_1/{ATTENTION}/value/bias",
        "  - encoder.blocks.1.attn.f.qkv.bias",
        "  + extra/weight",
    ]


def test_arrays_without_a_vit_or_floats_raise():
    with pytest.raises(ValueError, match="arrays must be of a ViT"):
        count_heads({"a": np.zeros(2)})
    with pytest.raises(ValueError, match=r"must hold floats, got cls \(int64\)"):
        to_timm({**draw_arrays(), "cls": np.zeros((1, 1, D), "int64")})
