"""Published models built from the package's layers equal their reference implementations.

Every parameter is random, texts differ in length, and padding is on the left where positions count valid tokens.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit.nn import (
    MLP,
    Attention,
    Encoder,
    Message,
    NoPositions,
    Position,
    PostNorm,
    RelativeBias,
    Rotary,
    Sinusoidal,
    SwiGLU,
    TokenEmbed,
    masks,
)
from vitkit.nn.positions import Rotate, rotate_pairs

transformers = pytest.importorskip("transformers")

Randomise = Callable[[nn.Module], nn.Module]
Rules = Sequence[tuple[str, str]]
exact = partial(assert_close, atol=1e-9, rtol=0)
close = partial(assert_close, atol=1e-5, rtol=1e-5)  # for models that compute some parts in float32 in any dtype
TANH = partial(nn.GELU, approximate="tanh")
FUSED = {"qkv": ("q", "k", "v"), "kv": ("memory_k", "memory_v"), "gate_up": ("gate", "up_")}


class Text(nn.Module):
    """A text model: embedding -> `norm` -> encoder."""

    def __init__(self, embed: TokenEmbed, encoder: Encoder, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.embed, self.norm, self.encoder = embed, norm or nn.Identity(), encoder

    def forward(self, ids: Tensor, valid: Tensor | None = None, count_padding: bool = True, **memory: Any) -> Tensor:
        """Args: count_padding: whether padding takes up positions, as right padding does."""
        places = None if valid is None or count_padding else (valid.cumsum(1) - 1).clamp(min=0)[..., None]
        mask = None if valid is None else masks.padding(valid)
        x, positions = self.embed(ids, places)
        return self.encoder(self.norm(x), positions, mask=mask, **memory)


def rename(state: Mapping[str, Tensor], rules: Rules) -> dict[str, Tensor]:
    """Rename a state to vitkit's names. Tensors without a rule are dropped, and separate matrices are joined."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in state.items():
        for pattern, new in rules:
            if match := re.fullmatch(pattern, name):
                renamed[match.expand(new)] = tensor
    for whole, parts in FUSED.items():
        first = re.compile(rf"(.+\.f)\.{parts[0]}\.(weight|bias)")
        for match in [match for name in renamed if (match := first.fullmatch(name))]:
            names = [f"{match[1]}.{part}.{match[2]}" for part in parts]
            if all(name in renamed for name in names):
                renamed[f"{match[1]}.{whole}.{match[2]}"] = torch.cat([renamed.pop(name) for name in names])
    return renamed


def make_rules(layer: str, encoder: str, names: Mapping[str, str]) -> Rules:
    """Return the rules for the tensors of each layer. Args: layer: its prefix, with the layer's number as a group."""
    return [(rf"{layer}\.{old}\.(weight|bias)", rf"{encoder}.blocks.\1.{new}.\2") for old, new in names.items()]


def draw_ids(vocabulary: int, length: int = 11) -> Tensor:
    return torch.randint(3, vocabulary, (3, length))


def build_left_padding(length: int = 11) -> Tensor:
    valid = torch.ones(3, length, dtype=torch.bool)
    valid[0, :4] = valid[1, :1] = False
    return valid


GPT2 = [
    ("wte.weight", "embed.tokens.weight"),
    ("wpe.weight", "embed.table.weight"),
    (r"ln_f\.(.+)", r"encoder.norm.\1"),
    *make_rules(
        r"h\.(\d+)",
        "encoder",
        {
            "ln_1": "attn.norm",
            r"attn\.c_attn": "attn.f.qkv",
            r"attn\.c_proj": "attn.f.out",
            "ln_cross_attn": "cross.norm",
            r"crossattention\.q_attn": "cross.f.q",
            r"crossattention\.c_attn": "cross.f.kv",
            r"crossattention\.c_proj": "cross.f.out",
            "ln_2": "mlp.norm",
            r"mlp\.c_fc": "mlp.f.up",
            r"mlp\.c_proj": "mlp.f.down",
        },
    ),
]


def gpt2(randomise: Randomise, memory_dim: int | None = None) -> tuple[Text, Any]:
    config = transformers.GPT2Config(
        vocab_size=99, n_positions=40, n_embd=32, n_layer=2, n_head=4, add_cross_attention=memory_dim is not None,
        attn_implementation="eager",
    )  # fmt: skip
    theirs = randomise(transformers.GPT2Model(config))
    slots: dict[str, Any] = {"norm": partial(nn.LayerNorm, eps=1e-5), "mlp": partial(MLP, act=TANH)}
    ours = Text(TokenEmbed(32, 99, 40), Encoder(32, 2, 4, causal=True, memory_dim=memory_dim, **slots)).double().eval()
    # transformers' Conv1D stores matrices as (in, out).
    convolved = {name for name in theirs.state_dict() if re.search(r"c_(attn|proj|fc)|q_attn", name)}
    state = {
        name: tensor.mT.contiguous() if name in convolved and tensor.ndim == 2 else tensor
        for name, tensor in theirs.state_dict().items()
    }
    ours.load_state_dict(rename(state, GPT2))
    return ours, theirs


def test_gpt2_with_left_padding_equals_transformers(randomise: Randomise) -> None:
    ours, theirs = gpt2(randomise)
    ids, valid = draw_ids(99), build_left_padding()
    exact(ours(ids), theirs(ids).last_hidden_state)
    places = (valid.cumsum(1) - 1).clamp(min=0)
    expected = theirs(ids, attention_mask=valid.long(), position_ids=places).last_hidden_state
    exact(ours(ids, valid, count_padding=False)[valid], expected[valid])


def test_gpt2_with_padded_memory_equals_transformers(randomise: Randomise) -> None:
    ours, theirs = gpt2(randomise, memory_dim=32)
    ids, memory, valid = draw_ids(99), torch.randn(3, 7, 32).double(), torch.ones(3, 7, dtype=torch.bool)
    valid[0, 5:] = valid[2, 2:] = False
    expected = theirs(ids, encoder_hidden_states=memory, encoder_attention_mask=valid.long()).last_hidden_state
    exact(ours(ids, memory=memory, memory_mask=masks.padding(valid)), expected)


def test_llama_with_left_padding_equals_transformers(randomise: Randomise) -> None:
    config = transformers.LlamaConfig(
        vocab_size=99, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=128, attn_implementation="eager",
    )  # fmt: skip
    theirs = randomise(transformers.LlamaModel(config)).float()
    attention = partial(Attention, kv_heads=2, bias=False)
    mlp = partial(SwiGLU, ratio=80 / 48, bias=False)
    norm = partial(nn.RMSNorm, eps=1e-6)
    encoder = Encoder(48, 2, 6, causal=True, attention=attention, norm=norm, mlp=mlp, position=Rotary)
    ours = Text(TokenEmbed(48, 99, 128, table=NoPositions), encoder).eval()
    names = {f"self_attn.{part}_proj": f"attn.f.{part}" for part in "qkv"}
    names |= {"self_attn.o_proj": "attn.f.out", "input_layernorm": "attn.norm", "post_attention_layernorm": "mlp.norm"}
    names |= {"mlp.gate_proj": "mlp.f.gate", "mlp.up_proj": "mlp.f.up_", "mlp.down_proj": "mlp.f.down"}
    rules = [("embed_tokens.weight", "embed.tokens.weight"), ("norm.weight", "encoder.norm.weight")]
    ours.load_state_dict(rename(theirs.state_dict(), [*rules, *make_rules(r"layers\.(\d+)", "encoder", names)]))
    ids, valid = draw_ids(99, 30), build_left_padding(30)
    places = (valid.cumsum(1) - 1).clamp(min=0)
    expected = theirs(ids, attention_mask=valid.long(), position_ids=places).last_hidden_state
    close(ours(ids, valid, count_padding=False)[valid], expected[valid])


@pytest.mark.parametrize("gated", [False, True])
def test_t5_with_padded_source_equals_transformers(randomise: Randomise, gated: bool) -> None:
    config = transformers.T5Config(
        vocab_size=99, d_model=32, d_kv=6, d_ff=37, num_layers=2, num_decoder_layers=2, num_heads=4,
        relative_attention_num_buckets=8, relative_attention_max_distance=16, dropout_rate=0,
        feed_forward_proj="gated-gelu" if gated else "relu", attn_implementation="eager",
    )  # fmt: skip
    theirs = randomise(transformers.T5Model(config)).float()
    sizes: dict[str, Any] = {"ratio": 37.5 / 32, "bias": False}
    slots: dict[str, Any] = {
        "norm": partial(nn.RMSNorm, eps=1e-6),
        "attention": partial(Attention, head_dim=6, scale=1.0, bias=False),
        "mlp": partial(SwiGLU, gate=TANH, **sizes) if gated else partial(MLP, act=nn.ReLU, **sizes),
    }
    bias = partial(RelativeBias, buckets=8, reach=16)
    source = Text(TokenEmbed(32, 99, 40, table=NoPositions), Encoder(32, 2, 4, position=bias, **slots)).eval()
    backward = partial(bias, backward_only=True)
    encoder = Encoder(32, 2, 4, memory_dim=32, causal=True, position=backward, **slots)
    target = Text(TokenEmbed(32, 99, 40, table=NoPositions), encoder).eval()
    for side, last, ours in (("encoder", 1, source), ("decoder", 2, target)):
        names = {rf"0\.SelfAttention\.{part}": f"attn.f.{part}" for part in "qkv"}
        names |= {r"0\.SelfAttention\.o": "attn.f.out", r"0\.layer_norm": "attn.norm"}
        names |= {r"1\.EncDecAttention\.q": "cross.f.q", r"1\.EncDecAttention\.o": "cross.f.out"} if last == 2 else {}
        names |= {rf"1\.EncDecAttention\.{part}": f"cross.f.memory_{part}" for part in "kv"} if last == 2 else {}
        names |= {r"1\.layer_norm": "cross.norm"} if last == 2 else {}
        names |= {rf"{last}\.layer_norm": "mlp.norm", rf"{last}\.DenseReluDense\.wi": "mlp.f.up"}
        names |= {rf"{last}\.DenseReluDense\.wi_0": "mlp.f.gate", rf"{last}\.DenseReluDense\.wi_1": "mlp.f.up_"}
        names |= {rf"{last}\.DenseReluDense\.wo": "mlp.f.down"}
        rules = make_rules(rf"{side}\.block\.(\d+)\.layer", "encoder", names)
        bias_name = rf"{side}\.block\.0\.layer\.0\.SelfAttention\.relative_attention_bias\.weight"
        others = [("shared.weight", "embed.tokens.weight"), (bias_name, "encoder.position.weight")]
        state = rename(
            theirs.state_dict(), [*others, (rf"{side}\.final_layer_norm\.weight", "encoder.norm.weight"), *rules]
        )
        state["encoder.position.weight"] = state["encoder.position.weight"][None]
        ours.load_state_dict(state)
    ids, decoded, valid = draw_ids(99, 21), draw_ids(99, 19), torch.ones(3, 21, dtype=torch.bool)
    valid[0, 12:] = valid[2, 20:] = False
    expected = theirs(input_ids=ids, attention_mask=valid.long(), decoder_input_ids=decoded).last_hidden_state
    memory = source(ids, valid)
    close(target(decoded, memory=memory, memory_mask=masks.padding(valid)), expected)


def test_marian_with_scaled_embeddings_equals_transformers(randomise: Randomise) -> None:
    config = transformers.MarianConfig(
        vocab_size=99, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=50, dropout=0,
        attention_dropout=0, activation_dropout=0, pad_token_id=1, scale_embedding=True, activation_function="relu",
        attn_implementation="eager",
    )  # fmt: skip
    theirs = transformers.MarianModel(config)
    tables = [side.embed_positions.weight.detach().clone() for side in (theirs.encoder, theirs.decoder)]
    randomise(theirs)
    for side, table in zip((theirs.encoder, theirs.decoder), tables, strict=True):
        side.embed_positions.weight.data = table.double()  # fixed sinusoids
    slots: dict[str, Any] = {
        "norm": partial(nn.LayerNorm, eps=1e-5),
        "mlp": partial(MLP, ratio=1.5, act=nn.ReLU),
        "residual": PostNorm,
        "final_norm": False,
    }

    def text(**options: Any) -> Text:
        return (
            Text(TokenEmbed(16, 99, 50, table=Sinusoidal, scale=16**0.5), Encoder(16, 2, 4, **options, **slots))
            .double()
            .eval()
        )

    source, target = text(), text(memory_dim=16, causal=True)
    for side, ours in (("encoder", source), ("decoder", target)):
        names = {rf"self_attn\.{part}_proj": f"attn.f.{part}" for part in "qkv"}
        names |= {r"self_attn\.out_proj": "attn.f.out", "self_attn_layer_norm": "attn.norm"}
        names |= {r"encoder_attn\.q_proj": "cross.f.q", r"encoder_attn\.out_proj": "cross.f.out"}
        names |= {rf"encoder_attn\.{part}_proj": f"cross.f.memory_{part}" for part in "kv"}
        names |= {"encoder_attn_layer_norm": "cross.norm"}
        names |= {"fc1": "mlp.f.up", "fc2": "mlp.f.down", "final_layer_norm": "mlp.norm"}
        rules = [
            ("shared.weight", "embed.tokens.weight"),
            *make_rules(rf"{side}\.layers\.(\d+)", "encoder", names),
        ]
        ours.load_state_dict(rename(theirs.state_dict(), rules))
    ids, decoded, valid = draw_ids(99, 11), draw_ids(99, 7), torch.ones(3, 11, dtype=torch.bool)
    valid[0, 6:] = False
    expected = theirs(input_ids=ids, attention_mask=valid.long(), decoder_input_ids=decoded).last_hidden_state
    memory = source(ids, valid)
    # Their table of sinusoids is in float32.
    assert_close(target(decoded, memory=memory, memory_mask=masks.padding(valid)), expected, atol=1e-6, rtol=0)


def test_bert_with_right_padding_equals_transformers(randomise: Randomise) -> None:
    config = transformers.BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37,
        max_position_embeddings=40, attn_implementation="eager",
    )  # fmt: skip
    theirs = randomise(transformers.BertModel(config, add_pooling_layer=False))
    norm = partial(nn.LayerNorm, eps=1e-12)
    mlp = partial(MLP, ratio=37.5 / 32)
    encoder = Encoder(32, 2, 4, norm=norm, residual=PostNorm, mlp=mlp, final_norm=False)
    ours = Text(TokenEmbed(32, 99, 40), encoder, norm(32)).double().eval()
    names = {rf"attention\.self\.{name}": f"attn.f.{name[0]}" for name in ("query", "key", "value")}
    names |= {r"attention\.output\.dense": "attn.f.out", r"attention\.output\.LayerNorm": "attn.norm"}
    names |= {r"intermediate\.dense": "mlp.f.up", r"output\.dense": "mlp.f.down", r"output\.LayerNorm": "mlp.norm"}
    rules = [
        (r"embeddings\.word_embeddings\.weight", "embed.tokens.weight"),
        (r"embeddings\.position_embeddings\.weight", "embed.table.weight"),
        (r"embeddings\.LayerNorm\.(.+)", r"norm.\1"),
        *make_rules(r"encoder\.layer\.(\d+)", "encoder", names),
    ]
    state = rename(theirs.state_dict(), rules)
    state["embed.table.weight"] = state["embed.table.weight"] + theirs.embeddings.token_type_embeddings.weight[0]
    ours.load_state_dict(state)
    ids, valid = draw_ids(99, 9), torch.ones(3, 9, dtype=torch.bool)
    valid[0, 6:] = False
    expected = theirs(ids, attention_mask=valid.long()).last_hidden_state
    exact(ours(ids, valid)[valid], expected[valid])


class Fourier(Position):
    """Rotation by angles that are a learned linear function of the position (LightGlue, https://arxiv.org/abs/2306.13643)."""

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__(heads, head_dim)
        self.angles = nn.Linear(2, head_dim // 2, bias=False)

    def rotation(self, positions: Tensor) -> Rotate:
        angles = self.angles(positions)[:, None]
        return lambda x: rotate_pairs(x, cos=angles.cos(), sin=angles.sin())


def test_lightglue_layer_of_messages_equals_transformers(randomise: Randomise) -> None:
    from transformers.models.lightglue import modeling_lightglue as lightglue

    config = transformers.LightGlueConfig(
        keypoint_detector_config={
            "model_type": "superpoint", "encoder_hidden_sizes": [32, 32, 64], "decoder_hidden_size": 64,
            "keypoint_decoder_dim": 65, "descriptor_decoder_dim": 64,
        },
        descriptor_dim=64, num_hidden_layers=2, num_attention_heads=4, attn_implementation="eager",
    )  # fmt: skip
    layer: Any = randomise(lightglue.LightGlueTransformerLayer(config, 0))
    places: Any = randomise(lightglue.LightGluePositionalEncoder(config))

    def perceptron(dim: int) -> nn.Module:
        return nn.Sequential(nn.Linear(2 * dim, 2 * dim), nn.LayerNorm(2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    within = Message(Attention(64, 4), 64, nn.Identity, fuse=perceptron).double().eval()
    cross = Message(Attention(64, 4, 64), 64, nn.Identity, fuse=perceptron).double().eval()
    fourier = Fourier(4, 16).double()
    fourier.angles.weight.data = places.projector.weight.data
    # LightGlue rotates neighbouring channels, vitkit channel i with i + Dh / 2.
    halves = (torch.arange(4)[:, None] * 16 + torch.cat([torch.arange(0, 16, 2), torch.arange(1, 16, 2)])).flatten()
    state = layer.state_dict()
    for end in ("weight", "bias"):
        for side in ("q", "k"):
            name = f"self_attention.{side}_proj.{end}"
            state[name] = state[name][halves]
    mlp = {"fc1": "fuse.0", "layer_norm": "fuse.1", "fc2": "fuse.3"}
    for side, message, keys in (("self", within, ("k", "v")), ("cross", cross, ("memory_k", "memory_v"))):
        names = {f"{side}_attention.q_proj": "f.q", f"{side}_attention.o_proj": "f.out"}
        names |= {f"{side}_attention.{key[-1]}_proj": f"f.{key}" for key in keys}
        names |= {f"{side}_mlp.{old}": new for old, new in mlp.items()}
        rules = [(rf"{old}\.(weight|bias)", rf"m.{new}.\1") for old, new in names.items()]
        renamed = rename(state, rules)
        message.load_state_dict({name.removeprefix("m."): tensor for name, tensor in renamed.items()})
    x, points = torch.randn(4, 7, 64).double(), torch.rand(4, 7, 2).double() * 2 - 1  # two pairs of images
    expected = layer(x, places(points)[0], None)[0].view(4, 7, 64)
    a, b = (within(x[i::2], rotate=fourier.rotation(points[i::2])) for i in (0, 1))
    result = torch.stack([cross(a, b), cross(b, a)], 1).flatten(0, 1)
    assert_close(result, expected, atol=1e-6, rtol=0)  # their attention computes its softmax in float32
