import pytest
import torch
from timm.layers import resample_abs_pos_embed
from torch.testing import assert_close

from vitkit.nn import Learned, NoPositions, Sinusoidal, bicubic, bicubic_antialias


def cells(h: int, w: int) -> torch.Tensor:
    return torch.cartesian_prod(torch.arange(h), torch.arange(w))[None].float()


def test_learned_table_is_indexed_by_position():
    table = Learned(4, (2, 3))
    with torch.no_grad():
        table.weight.copy_(torch.arange(24.0).view(2, 3, 4))
    assert_close(table(cells(2, 3), (2, 3))[0], torch.arange(24.0).view(6, 4))
    assert_close(table(torch.tensor([[[1.0, 0.0]], [[0.0, 2.0]]]), (2, 3))[:, 0, 0], torch.tensor([12.0, 8.0]))
    text = Learned(4, (5,))
    with torch.no_grad():
        text.weight.copy_(torch.arange(20.0).view(5, 4))
    assert text(torch.tensor([[[3], [0]]]), (5,))[0, :, 0].tolist() == [12.0, 0.0]


@pytest.mark.parametrize("grid", [(5, 9), (2, 3), (8, 3)])
def test_resampling_equals_timm(grid):
    table = Learned(8, (4, 6))
    torch.nn.init.normal_(table.weight)
    theirs = resample_abs_pos_embed(table.weight.flatten(0, 1)[None], list(grid), [4, 6], num_prefix_tokens=0)
    assert_close(table.resize_table(grid).flatten(0, 1)[None], theirs)


def test_grids_with_equal_patch_counts_are_resampled():
    table = Learned(8, (4, 4))
    torch.nn.init.normal_(table.weight)
    assert table.resize_table((2, 8)).shape == (2, 8, 8)
    assert not torch.allclose(table.resize_table((2, 8)).flatten(0, 1), table.weight.flatten(0, 1))


def test_resampling_keeps_axes_apart():
    rows, columns = torch.meshgrid(torch.arange(8.0), torch.arange(12.0), indexing="ij")
    table = Learned(2, (8, 12), resample=bicubic)
    with torch.no_grad():
        table.weight.copy_(torch.stack([rows, columns], dim=-1))
    larger = table.resize_table((16, 36))
    assert_close(larger[..., 0], larger[:, :1, 0].expand(16, 36))
    assert_close(larger[..., 1], larger[:1, :, 1].expand(16, 36))
    # two and three new cells for each old one; the kernel (a = -0.75) repeats a line's steps with this period
    assert_close(larger[6:8, 0, 0].mean(), torch.tensor(3.0))
    assert_close(larger[0, 15:18, 1].mean(), torch.tensor(5.0))


def test_bicubic_and_antialias_differ_when_shrinking():
    table = torch.randn(1, 4, 9, 12)
    assert not torch.allclose(bicubic(table, (3, 5)), bicubic_antialias(table, (3, 5)))


def test_text_table_of_another_length_is_rejected():
    with pytest.raises(ValueError, match=r"grid must be \(5,\).* got grid=\(6,\)"):
        Learned(4, (5,)).resize_table((6,))


def test_sinusoidal_text_table_is_sines_then_cosines():
    place, w = 3.0, torch.tensor([1.0, 10_000.0**-0.5])
    expected = torch.cat([(place * w).sin(), (place * w).cos()])
    assert_close(Sinusoidal(4, (7,))(torch.tensor([[[3]]]), (7,))[0, 0], expected)


def test_sinusoidal_image_table_has_column_first():
    w = 10_000.0 ** -(torch.arange(2) / 2)
    row, column = 2.0, 5.0
    expected = torch.cat([(column * w).sin(), (column * w).cos(), (row * w).sin(), (row * w).cos()])
    assert_close(Sinusoidal(8, (4, 6))(torch.tensor([[[row, column]]]), (4, 6))[0, 0], expected)
    with pytest.raises(ValueError, match="got dim=6 for 2 axes"):
        Sinusoidal(6, (4, 6))


def test_no_positions_returns_zeros_of_table_shape():
    places = torch.tensor([[[3, 1], [0, 0]]]).expand(4, 2, 2)
    assert NoPositions(8, (4, 6))(places, (4, 6)).equal(torch.zeros(4, 2, 8))
    assert not list(NoPositions(8, (5,)).state_dict())
