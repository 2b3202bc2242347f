from functools import partial

import pytest
import torch
from torch.testing import assert_close

from vitkit.nn import Learned, NoPositions, PatchEmbed, Sinusoidal, TokenEmbed
from vitkit.nn.embed import gather_patches, split_patches


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_patch_embedding_equals_matrix_product_of_pixels(channels, randomise):
    embed = randomise(PatchEmbed(16, (8, 18), (4, 6), channels=channels))
    images = torch.randn(2, channels, 8, 18).double()
    x, positions = embed.patchify(images)
    assert positions[0].tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    for index, (row, column) in enumerate(positions[0].long().tolist()):
        pixels = images[:, :, 4 * row : 4 * row + 4, 6 * column : 6 * column + 6].flatten(1)
        expected = pixels @ embed.patches.weight.flatten(1).T + embed.patches.bias + embed.table.weight[row, column]
        assert_close(x[:, index], expected)


@pytest.mark.parametrize("table", [Learned, Sinusoidal, NoPositions])
def test_kept_patches_equal_selected_patches_and_read_no_others(table, randomise):
    embed = randomise(PatchEmbed(16, (8, 18), (4, 6), table=table))
    images, kept = torch.randn(2, 3, 8, 18).double().requires_grad_(), torch.tensor([[5, 0, 2], [1, 2, 3]])
    x, positions = embed.patchify(images, kept)
    patches, grid = embed.patchify(images)
    assert_close(x, gather_patches(patches, kept), rtol=0, atol=1e-12)
    assert torch.equal(positions, grid[0, kept])
    (gradient,) = torch.autograd.grad(x.sum(), images)
    used = split_patches(gradient, (4, 6)).flatten(2).any(-1)
    assert torch.equal(used, torch.zeros(2, 6, dtype=torch.bool).scatter(1, kept, True))


@pytest.mark.parametrize("prefix", [0, 1, 5])
def test_prefix_tokens_come_first_at_the_origin(prefix, randomise):
    embed = randomise(PatchEmbed(16, (8, 18), (4, 6), prefix=prefix))
    x, positions = embed(torch.randn(2, 3, 8, 18).double())
    patches, places = embed.patchify(torch.randn(2, 3, 8, 18).double())
    assert x.shape == (2, prefix + 6, 16) and positions.shape == (1, prefix + 6, 2)
    assert_close(x[:, :prefix], embed.prefix.expand(2, -1, -1))
    assert positions[:, :prefix].eq(0).all() and torch.equal(positions[:, prefix:], places)


def test_grids_with_equal_patch_counts_get_different_embeddings(randomise):
    embed = randomise(PatchEmbed(16, (16, 16), (4, 4)))
    wide, (tall, _) = (
        embed.patchify(torch.ones(1, 3, 8, 32).double())[0],
        embed.patchify(torch.ones(1, 3, 32, 8).double()),
    )
    assert wide.shape == tall.shape == (1, 16, 16) and not torch.allclose(wide, tall)


def test_fixed_table_keeps_model_dtype():
    embed = PatchEmbed(16, (8, 8), (4, 4), table=Sinusoidal).bfloat16()
    x, positions = embed(torch.randn(1, 3, 8, 8).bfloat16())
    assert x.dtype == torch.bfloat16 and positions.dtype == torch.float32


@pytest.mark.parametrize("table", [Learned, Sinusoidal, NoPositions])
def test_tokens_stay_float32_under_autocast(table):
    embed = PatchEmbed(16, (8, 8), (4, 4), table=table, prefix=0)
    with torch.autocast("cpu", torch.bfloat16):
        assert embed(torch.randn(1, 3, 8, 8))[0].dtype == torch.float32


def test_indivisible_image_size_error_suggests_a_size():
    refuse = partial(pytest.raises, ValueError)
    with refuse(match=r"got image_size=\(30, 33\), patch_size=\(8, 16\); resize to \(24, 32\)"):
        PatchEmbed(16, (30, 33), (8, 16))
    with refuse(match=r"resize to \(8, 16\)"):
        PatchEmbed(16, (8, 16), (8, 16))(torch.randn(1, 3, 3, 5))


def test_token_embedding_is_sum_of_vector_and_position(randomise):
    embed = randomise(TokenEmbed(8, 10, 5))
    x, positions = embed(torch.tensor([[3, 3, 9]]))
    assert positions.tolist() == [[[0], [1], [2]]]
    assert not positions.is_floating_point()
    assert_close(x[0], embed.tokens.weight[[3, 3, 9]] + embed.table.weight[:3])


def test_scale_multiplies_vectors_but_not_positions(randomise):
    embed = randomise(TokenEmbed(8, 10, 5, scale=8**0.5))
    expected = embed.tokens.weight[[3, 3, 9]] * 8**0.5 + embed.table.weight[:3]
    assert_close(embed(torch.tensor([[3, 3, 9]]))[0][0], expected)


@pytest.mark.parametrize("table", [Learned, Sinusoidal])
def test_explicit_positions_select_rows_of_the_table(table, randomise):
    """Positions may differ between texts: padded on the left, packed, or continued."""
    embed = randomise(TokenEmbed(8, 10, 7, table=table))
    ids, explicit = torch.randint(10, (3, 4)), torch.tensor([[0, 0, 1, 2], [0, 1, 0, 1], [3, 4, 5, 6]])[:, :, None]
    x, positions = embed(ids, explicit)
    assert positions is explicit
    places = embed.table(torch.arange(7)[None, :, None], (7,))[0]
    assert_close(x, embed.tokens.weight[ids] + places[explicit[..., 0]].double())
    shared, positions = embed(ids, explicit[2:])  # one row for all texts
    assert positions.shape == (1, 4, 1)
    assert_close(shared[0], embed.tokens.weight[ids[0]] + places[3:7].double())


def test_embeddings_without_table_have_no_positions(randomise):
    embed = randomise(TokenEmbed(8, 10, 5, table=NoPositions))
    ids = torch.randint(10, (2, 4))
    assert list(embed.state_dict()) == ["tokens.weight"]
    assert torch.equal(embed(ids)[0], embed.tokens.weight[ids])
    image = randomise(PatchEmbed(16, (8, 18), (4, 6), table=NoPositions))
    pixels = torch.randn(2, 3, 8, 18).double()
    assert torch.equal(image.patchify(pixels)[0], image.patches(pixels).flatten(2).mT)


@pytest.mark.parametrize("position", [-1, 7])
def test_positions_outside_the_context_are_rejected(position):
    """With left padding a position may be -1, which would select the last row of the table."""
    positions = torch.tensor([0, 1, position])[None, :, None]
    with pytest.raises(ValueError, match=r"positions must be in \[0, context=7\)"):
        TokenEmbed(8, 10, 7)(torch.zeros(1, 3, dtype=torch.int64), positions)
