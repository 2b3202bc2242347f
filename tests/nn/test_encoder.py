"""The encoder equals torch.nn.Transformer, and keeps its invariants for every choice of slots."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit.nn import (
    MLP,
    ALiBi,
    Attention,
    Cache,
    Encoder,
    ExplicitCore,
    FusedCore,
    Position,
    PostNorm,
    PreNorm,
    RelativeBias,
    Rotary,
    SwiGLU,
    masks,
)

POSITIONS = {
    "none": Position,
    "rotary": Rotary,
    "alibi": ALiBi,
    "relative": partial(RelativeBias, buckets=8, reach=16, backward_only=True),
}
exact = partial(assert_close, atol=1e-10, rtol=0)  # the package's bound in float64


def text(T: int, start: int = 0) -> Tensor:
    return torch.arange(start, start + T)[None, :, None]


def grid(h: int, w: int) -> Tensor:
    return torch.cartesian_prod(torch.arange(h), torch.arange(w))[None].double()


def copy_layer(theirs: nn.Module, attn: nn.Module, cross: nn.Module | None, mlp: nn.Module) -> None:
    """Copy the weights of a block into a torch.nn.Transformer{Encoder,Decoder}Layer."""
    pairs = [(theirs.self_attn.in_proj_weight, attn.f.qkv.weight), (theirs.self_attn.in_proj_bias, attn.f.qkv.bias)]
    pairs += [(theirs.self_attn.out_proj.weight, attn.f.out.weight), (theirs.self_attn.out_proj.bias, attn.f.out.bias)]
    residuals = [attn, mlp]
    if cross is not None:
        residuals = [attn, cross, mlp]
        other = theirs.multihead_attn
        pairs.append((other.in_proj_weight, torch.cat([cross.f.q.weight, cross.f.kv.weight])))
        pairs.append((other.in_proj_bias, torch.cat([cross.f.q.bias, cross.f.kv.bias])))
        pairs += [(other.out_proj.weight, cross.f.out.weight), (other.out_proj.bias, cross.f.out.bias)]
    for linear, source in ((theirs.linear1, mlp.f.up), (theirs.linear2, mlp.f.down)):
        pairs += [(linear.weight, source.weight), (linear.bias, source.bias)]
    for index, residual in enumerate(residuals, start=1):
        norm = getattr(theirs, f"norm{index}")
        pairs += [(norm.weight, residual.norm.weight), (norm.bias, residual.norm.bias)]
    with torch.no_grad():
        for target, source in pairs:
            target.copy_(source)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("residual", [PreNorm, PostNorm])
def test_encoder_and_decoder_equal_torch_nn_transformer(residual, randomise):
    theirs = nn.Transformer(
        32, 4, 2, 3, 48, dropout=0.0, batch_first=True, norm_first=residual is PreNorm, activation="gelu"
    ).double()
    slots = {"residual": residual, "mlp": partial(MLP, ratio=1.5), "norm": nn.LayerNorm}
    encoder = randomise(Encoder(32, 2, 4, **slots))
    decoder = randomise(Encoder(32, 3, 4, memory_dim=32, causal=True, **slots))
    for layer, block in zip(theirs.encoder.layers, encoder.blocks, strict=True):
        copy_layer(layer, block.attn, None, block.mlp)
    for layer, block in zip(theirs.decoder.layers, decoder.blocks, strict=True):
        copy_layer(layer, block.attn, block.cross, block.mlp)
    theirs.encoder.norm.load_state_dict(encoder.norm.state_dict())
    theirs.decoder.norm.load_state_dict(decoder.norm.state_dict())

    source, target = torch.randn(3, 7, 32).double(), torch.randn(3, 5, 32).double()
    source_valid, target_valid = torch.ones(3, 7, dtype=torch.bool), torch.ones(3, 5, dtype=torch.bool)
    source_valid[0, 4:], source_valid[1, 6:], target_valid[1, 3:] = False, False, False
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)  # in torch.nn.Transformer True hides a key
    memory = encoder(source, text(7), mask=masks.padding(source_valid))
    ours = decoder(
        target,
        text(5),
        mask=masks.padding(target_valid),
        memory=memory,
        memory_mask=masks.padding(source_valid),
    )
    expected = theirs(
        source,
        target,
        tgt_mask=future,
        src_key_padding_mask=~source_valid,
        tgt_key_padding_mask=~target_valid,
        memory_key_padding_mask=~source_valid,
    )
    exact(ours[target_valid], expected[target_valid])


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("residual", [PreNorm, PostNorm])
@pytest.mark.parametrize("memory_dim", [None, 24])
@pytest.mark.parametrize("chunks", [[1] * 13, [5, 1, 1, 3, 1, 2], [12, 1]])
def test_cached_decoding_equals_one_pass(position, residual, memory_dim, chunks, randomise):
    attention = partial(Attention, kv_heads=2)
    encoder = randomise(
        Encoder(
            32,
            2,
            4,
            causal=True,
            memory_dim=memory_dim,
            attention=attention,
            residual=residual,
            position=POSITIONS[position],
        )
    )
    x, memory = torch.randn(3, 13, 32).double(), memory_dim and torch.randn(3, 5, memory_dim).double()
    cache, parts, start = Cache(capacity=16), [], 0
    for chunk in x.split(chunks, dim=1):
        parts.append(encoder(chunk, text(chunk.shape[1], start), memory=memory, cache=cache))
        start += chunk.shape[1]
    exact(torch.cat(parts, dim=1), encoder(x, text(13), memory=memory))


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_change_valid_tokens(position, causal, side, randomise):
    encoder = randomise(Encoder(32, 2, 4, causal=causal, position=POSITIONS[position]))
    x, real = torch.randn(2, 9, 32).double(), slice(3, 9) if side == "left" else slice(0, 6)
    valid = torch.zeros(2, 9, dtype=torch.bool)
    valid[:, real] = True
    positions = (torch.arange(9) - (3 if side == "left" else 0)).clamp(min=0)[None, :, None]
    padded = encoder(x, positions, mask=masks.padding(valid))
    exact(padded[:, real], encoder(x[:, real], text(6)))
    assert padded.isfinite().all()


@pytest.mark.parametrize("position", POSITIONS)
def test_cached_decoding_with_left_padding_equals_unpadded_sequence(position, randomise):
    encoder = randomise(Encoder(32, 2, 4, causal=True, position=POSITIONS[position]))
    x = torch.randn(2, 8, 32).double()
    valid = torch.tensor([[True] * 5, [False, False, True, True, True]])
    positions = torch.stack([torch.arange(8), torch.arange(8) - 2]).clamp(min=0)[..., None]
    cache = Cache(8, valid)
    steps = [encoder(x[:, :5], positions[:, :5], cache=cache)]
    steps += [encoder(x[:, t : t + 1], positions[:, t : t + 1], cache=cache) for t in range(5, 8)]
    whole = torch.cat(steps, dim=1)
    exact(whole[:1], encoder(x[:1], text(8)))
    exact(whole[1:, 2:], encoder(x[1:, 2:], text(6)))


def test_cache_select_reorders_and_repeats_sequences(randomise):
    encoder = randomise(Encoder(32, 2, 4, causal=True, memory_dim=24, position=Rotary))
    x, memory, rows = torch.randn(2, 5, 32).double(), torch.randn(2, 3, 24).double(), torch.tensor([1, 1, 0])
    cache = Cache(5, torch.tensor([[True, True], [False, True]]))
    encoder(x[:, :4], text(4), memory=memory, cache=cache)
    cache.select(rows)
    step = encoder(x[rows, 4:], text(1, 4), memory=memory[rows], cache=cache)
    mask = masks.padding(torch.tensor([[True] * 5, [False] + [True] * 4]))
    exact(step, encoder(x, text(5), memory=memory, mask=mask)[rows, 4:])


@pytest.mark.parametrize("memory_moves", [True, False])
def test_cache_select_may_keep_the_memory_of_beams(memory_moves, randomise):
    """Two beams share each of two memories; `memory=False` keeps the stored keys and values."""
    encoder = randomise(Encoder(32, 2, 4, causal=True, memory_dim=24, position=Rotary))
    x, memory = torch.randn(4, 6, 32).double(), torch.randn(2, 3, 24).double().repeat_interleave(2, dim=0)
    cache, rows = Cache(6), torch.tensor([1, 1, 3, 2])
    encoder(x[:, :4], text(4), memory=memory, cache=cache)
    before = [layer.memory for layer in cache.layers.values()]
    cache.select(rows, memory=memory_moves)
    assert memory_moves or all(layer.memory is pair for layer, pair in zip(cache.layers.values(), before, strict=True))
    step = encoder(x[:, 4:5], text(1, 4), memory=memory, cache=cache)
    exact(step, encoder(torch.cat([x[rows, :4], x[:, 4:5]], 1), text(5), memory=memory)[:, 4:])


def test_too_small_cache_is_rejected():
    with pytest.raises(ValueError, match="got capacity=4 for 5 tokens"):
        Encoder(32, 1, 4, causal=True)(torch.randn(1, 5, 32), text(5), cache=Cache(4))


@pytest.mark.parametrize("position", POSITIONS)
def test_causal_encoder_ignores_later_tokens(position, randomise):
    encoder = randomise(Encoder(32, 2, 4, causal=True, position=POSITIONS[position]))
    x = torch.randn(1, 6, 32).double()
    changed = torch.cat([x[:, :4], torch.randn(1, 2, 32).double()], dim=1)
    exact(encoder(changed, text(6))[:, :4], encoder(x, text(6))[:, :4])


def test_encoder_without_positions_is_permutation_equivariant(randomise):
    encoder, x = randomise(Encoder(32, 2, 4)), torch.randn(2, 7, 32).double()
    order = torch.randperm(7)
    exact(encoder(x[:, order], text(7)), encoder(x, text(7))[:, order])


@pytest.mark.parametrize("position", [Rotary, ALiBi, POSITIONS["relative"]])
def test_permuting_tokens_with_their_positions_permutes_output(position, randomise):
    encoder, x = randomise(Encoder(32, 2, 4, position=position)), torch.randn(2, 7, 32).double()
    order = torch.randperm(7)
    assert not torch.allclose(encoder(x[:, order], text(7)), encoder(x, text(7))[:, order])
    exact(encoder(x[:, order], text(7).double()[:, order]), encoder(x, text(7).double())[:, order])


@pytest.mark.parametrize(
    "position", [partial(Rotary, axes=2), ALiBi, partial(RelativeBias, axes=2, buckets=8, reach=16)]
)
def test_relative_schemes_are_invariant_to_image_shifts(position, randomise):
    encoder, x = randomise(Encoder(32, 2, 4, position=position)), torch.randn(2, 6, 32).double()
    exact(encoder(x, grid(2, 3)), encoder(x, grid(2, 3) + torch.tensor([5.0, 7.0])))
    assert not torch.allclose(encoder(x, grid(2, 3)), encoder(x, grid(3, 2)))


def test_memory_positions_act_relative_to_query_positions(randomise):
    encoder = randomise(Encoder(32, 2, 4, memory_dim=32, position=partial(Rotary, axes=2)))
    x, memory = torch.randn(1, 6, 32).double(), torch.randn(1, 12, 32).double()
    placed = encoder(x, grid(2, 3), memory=memory, memory_positions=grid(3, 4))
    exact(placed, encoder(x, grid(2, 3) + 4, memory=memory, memory_positions=grid(3, 4) + 4))
    assert not torch.allclose(placed, encoder(x, grid(2, 3), memory=memory))


def test_samples_of_a_batch_are_independent(randomise):
    encoder, x = randomise(Encoder(32, 2, 4, position=Rotary)), torch.randn(5, 4, 32).double()
    exact(encoder(x, text(4))[2:3], encoder(x[2:3], text(4)))


@pytest.mark.parametrize("core", [ExplicitCore, FusedCore])
def test_replacing_the_core_keeps_outputs_and_state(core, randomise):
    encoder, x = randomise(Encoder(32, 2, 4, causal=True)), torch.randn(2, 4, 32).double()
    before, names = encoder(x, text(4)), list(encoder.state_dict())
    for block in encoder.blocks:
        block.attn.f.core = core()
    exact(encoder(x, text(4)), before)
    assert list(encoder.state_dict()) == names


def test_memory_must_match_memory_dim():
    x, memory = torch.randn(1, 3, 32), torch.randn(1, 5, 24)
    with pytest.raises(ValueError, match="memory_dim=None"):
        Encoder(32, 1, 4)(x, text(3), memory=memory)
    with pytest.raises(ValueError, match="memory_dim=24"):
        Encoder(32, 1, 4, memory_dim=24)(x, text(3))


def test_every_parameter_gets_a_gradient():
    slots = {"mlp": SwiGLU, "residual": partial(PostNorm, scale=0.5), "position": POSITIONS["relative"]}
    encoder = Encoder(32, 2, 4, memory_dim=24, attention=partial(Attention, qk_norm=nn.RMSNorm), **slots)
    encoder(torch.randn(2, 5, 32), text(5), memory=torch.randn(2, 3, 24)).square().sum().backward()
    assert [name for name, p in encoder.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("position", POSITIONS)
def test_half_precision_keeps_dtype_and_is_close_to_float32(dtype, position):
    encoder = Encoder(32, 2, 4, causal=True, position=POSITIONS[position]).eval()
    x = torch.randn(2, 300, 32)
    expected = encoder(x, text(300))
    output = encoder.to(dtype)(x.to(dtype), text(300))
    assert output.dtype == dtype
    assert_close(output.float(), expected, atol=0.1, rtol=0.1)  # 8 bits of mantissa through two blocks


def test_position_scheme_gets_head_dim_of_attention():
    """The position scheme is built for this width, even if it is not dim / heads."""
    assert Encoder(32, 2, 4, attention=partial(Attention, head_dim=6), position=Rotary).position.head_dim == 6
    with pytest.raises(ValueError, match="attention must make an AttentionBranch, which has a head_dim, got Linear"):
        Encoder(32, 1, 4, attention=lambda dim, *_: nn.Linear(dim, dim))


def test_invalid_sizes_are_in_the_error():
    with pytest.raises(ValueError, match="at least 1, got dim=32, depth=0, heads=4"):
        Encoder(32, 0, 4)
    with pytest.raises(ValueError, match="drop must be at least 0 and below 1, got drop=1.5"):
        Encoder(32, 2, 4, drop_path=1.5)
