import math
from functools import partial

import pytest
import torch
from torch.testing import assert_close

from vitkit.nn import ALiBi, Encoder, Position, RelativeBias, Rotary


def line(*places: float) -> torch.Tensor:
    return torch.tensor(places)[None, :, None]


def test_default_scheme_does_nothing():
    x = torch.randn(1, 2, 3, 4)
    assert Position(2, 4).rotation(line(0, 1, 2))(x) is x and Position(2, 4).bias(line(0, 1), line(0, 1)) is None


def test_rotary_rotates_channel_i_with_channel_i_plus_half():
    angle = 3.0 * torch.tensor([1.0, 100.0**-0.5])
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    expected = torch.cat([x[:2] * angle.cos() - x[2:] * angle.sin(), x[:2] * angle.sin() + x[2:] * angle.cos()])
    assert_close(Rotary(1, 4, base=100.0).rotation(line(3))(x[None, None, None])[0, 0, 0], expected)


@pytest.mark.parametrize("axes", [1, 2])
def test_rotary_scores_depend_only_on_offsets(axes):
    rotary = Rotary(4, 8, axes=axes)
    q, k = torch.randn(1, 4, 1, 8).double(), torch.randn(1, 4, 1, 8).double()
    here, there = torch.tensor([[[3.0, 5.0]]]).double()[..., :axes], torch.tensor([[[1.0, 9.0]]]).double()[..., :axes]

    def score(a, b):
        return (rotary.rotation(a)(q) * rotary.rotation(b)(k)).sum()

    shift = torch.tensor([70.0, -31.0]).double()[:axes]
    assert_close(score(here + shift, there + shift), score(here, there), atol=1e-12, rtol=0)
    assert not torch.allclose(score(here, there), score(there, here))
    assert torch.equal(rotary.rotation(torch.zeros(1, 1, axes).double())(q), q)


def test_rotary_axes_are_not_interchangeable():
    rotary, x = Rotary(1, 8, axes=2), torch.randn(1, 1, 1, 8)
    assert not torch.allclose(
        rotary.rotation(torch.tensor([[[1.0, 3.0]]]))(x), rotary.rotation(torch.tensor([[[3.0, 1.0]]]))(x)
    )
    with pytest.raises(ValueError, match="axes=2 numbers each, got 1"):
        rotary.rotation(line(1))
    with pytest.raises(ValueError, match="head_dim=6, axes=2"):
        Rotary(1, 6, axes=2)


def test_alibi_equals_expected_matrix():
    bias = ALiBi(2, 8).bias(line(0, 1, 2).long(), line(0, 1, 2).long())
    distance = torch.tensor([[0.0, 1, 2], [1, 0, 1], [2, 1, 0]])
    assert_close(bias, -torch.stack([distance / 16, distance / 256])[None])


def test_prefix_tokens_have_their_own_bias():
    place = torch.tensor([[[0.0, 0], [0, 0], [0, 3]]])  # CLS at the origin, then patch (0, 0), patch (0, 3)
    assert_close(
        ALiBi(1, 8, prefix=1).bias(place, place)[0, 0] * 256, -torch.tensor([[0.0, 0, 0], [0, 0, 3], [0, 3, 0]])
    )
    relative = RelativeBias(1, 8, axes=2, buckets=8, reach=16, prefix=1)
    with torch.no_grad():
        relative.weight.copy_(torch.randn(2, 8, 1))
        relative.prefix_weight.fill_(9.0)
    bias = relative.bias(place, place)[0, 0]
    assert bias[0].eq(9).all() and bias[:, 0].eq(9).all() and bias[1:, 1:].ne(9).all()
    assert_close(relative.bias(place[:, 2:], place)[0, 0], bias[2:])  # with a cache: only the last query


def find_t5_bucket(offset: int, buckets: int, reach: int, backward_only: bool) -> int:
    """Return the bucket of an offset, key minus query position, by the paper's rule."""
    side = 0
    if backward_only:
        distance = max(-offset, 0)
    else:
        buckets //= 2
        side = buckets if offset > 0 else 0
        distance = abs(offset)
    exact = buckets // 2
    if distance < exact:
        return side + distance
    far = exact + int(math.log(distance / exact) / math.log(reach / exact) * (buckets - exact) + 1e-6)
    return side + min(far, buckets - 1)


@pytest.mark.parametrize("backward_only", [False, True])
@pytest.mark.parametrize(("buckets", "reach"), [(32, 128), (8, 16)])
def test_relative_buckets_equal_t5(backward_only, buckets, reach):
    scheme = RelativeBias(1, 8, buckets=buckets, reach=reach, backward_only=backward_only)
    offsets = range(-200, 201)
    expected = [find_t5_bucket(offset, buckets, reach, backward_only) for offset in offsets]
    assert scheme.find_buckets(torch.tensor(offsets)).tolist() == expected
    assert scheme.find_buckets(torch.tensor(offsets).float()).tolist() == expected


def test_relative_bias_indexes_table_by_head_and_offset():
    scheme = RelativeBias(2, 8, buckets=8, reach=16)
    with torch.no_grad():
        scheme.weight.copy_(torch.arange(16.0).view(1, 8, 2))
    bias = scheme.bias(line(4).long(), line(3, 4, 5).long())  # offsets -1, 0, 1: buckets 1, 0, 5
    assert bias[0, :, 0].tolist() == [[2.0, 0.0, 10.0], [3.0, 1.0, 11.0]]


def test_invalid_buckets_are_rejected():
    with pytest.raises(ValueError, match="buckets=30, reach=128"):
        RelativeBias(1, 8, buckets=30)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("axes", [1, 2])
def test_rotary_computes_in_float32_in_bfloat16_model(axes, autocast):
    """bfloat16 is too coarse for the angles of positions in the thousands. The core's queries and keys equal those of
    float64 up to one rounding to 8 bits, a relative error of 2^-8; rotation in bfloat16 would round them more."""
    encoder = Encoder(64, 1, 4, position=partial(Rotary, axes=axes)).eval()
    attention, inputs, rotated = encoder.blocks[0].attn.f, [], []
    for norm in (attention.q_norm, attention.k_norm):
        norm.register_forward_hook(lambda _, arguments, output: inputs.append(output))
    attention.core.register_forward_pre_hook(lambda _, arguments: rotated.extend(arguments[:2]))
    x, positions = torch.randn(2, 30, 64), torch.randint(2000, 9000, (2, 30, axes))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        (encoder if autocast else encoder.bfloat16())(x if autocast else x.bfloat16(), positions)
    frequencies = 10_000.0 ** -(torch.arange(8 // axes).double() / (8 // axes))
    angles = (positions.double()[..., None] * frequencies).flatten(-2)[:, None]
    k, q = inputs  # the order in which Attention normalises them
    for before, after in zip((q, k), rotated, strict=True):
        assert before.dtype == after.dtype == torch.bfloat16
        pairs = torch.complex(*before.double().chunk(2, dim=-1)) * torch.polar(torch.ones_like(angles), angles)
        expected = torch.cat([pairs.real, pairs.imag], dim=-1)
        # float32 angles near 9000 are 5e-4 apart, and the numbers to rotate are at most about 3
        assert_close(after.double(), expected, rtol=2**-8, atol=1e-3)
        assert (before - after).abs().max() > 1
