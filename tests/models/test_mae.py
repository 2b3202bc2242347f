import math
from functools import partial

import pytest
import torch
from lightning.pytorch.plugins.precision import HalfPrecision
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit import losses
from vitkit.models import MAE, blockwise, uniform
from vitkit.models.mae import Reconstruction, interpolate_patches, paste_patches
from vitkit.nn import Encoder, Learned, NoPositions, Rotary, Sinusoidal
from vitkit.nn.embed import gather_patches, split_patches
from vitkit.optim import group_parameters

SIZE, PATCH = (24, 40), (8, 4)  # a grid of 3 x 10
exact = partial(assert_close, rtol=0, atol=1e-12)


def mae(**options) -> MAE:
    return MAE(Encoder(32, 2, 4), Encoder(16, 1, 2), SIZE, PATCH, **options)


def images(count: int = 2, channels: int = 3, size: tuple[int, int] = SIZE) -> Tensor:
    return torch.randn(count, channels, *size, dtype=torch.float64)


@pytest.mark.parametrize("masking", [uniform, blockwise])
@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.6, 0.75, 0.9])
@pytest.mark.parametrize("size", [(24, 40), (8, 8), (56, 12)])
def test_number_of_hidden_patches_follows_ratio(masking, ratio, size):
    count = size[0] // PATCH[0] * (size[1] // PATCH[1])
    model = mae(ratio=ratio, masking=masking, channels=1).double()
    if not 0 < int(count * (1 - ratio)) < count:
        with pytest.raises(ValueError, match=f"ratio must leave some of {count} patches visible"):
            model(images(1, 1, size))
        return
    output = model(images(5, 1, size))
    hidden = count - int(count * (1 - ratio))
    assert output.hidden.shape == (5, hidden)
    assert output.pixels.shape == (5, hidden, 32)
    for row in output.hidden.tolist():
        assert len({*row}) == hidden and min(row) >= 0 and max(row) < count
        assert row == sorted(row)


def test_patches_with_least_noise_are_visible():
    noise = torch.rand(2, 3, 10)
    output = mae().double()(images(), noise.double())
    for row, values in zip(output.hidden, noise.flatten(1), strict=True):
        assert {*row.tolist()} == {*values.argsort()[7:].tolist()}  # int(30 * 0.25) = 7


@pytest.mark.parametrize("masking", [uniform, blockwise])
def test_masks_under_bf16_true_equal_those_in_float32(masking):
    """Noise in 16 bits has ties, of which the first patches were kept."""
    size, count, visible = (160, 80), 400, 100
    model, batch = mae(ratio=0.75, masking=masking, channels=1), images(64, 1, size).float()
    half = HalfPrecision("bf16-true")
    torch.manual_seed(1)
    expected = model(batch).hidden
    torch.manual_seed(1)
    with half.forward_context():
        hidden = half.convert_module(model)(half.convert_input(batch)).hidden
    assert torch.equal(hidden, expected)
    assert {len({*range(count)} - {*row}) for row in hidden.tolist()} == {visible}


def test_every_patch_is_hidden_equally_often():
    hidden = mae(channels=1)(torch.zeros(4000, 1, *SIZE)).hidden
    shares = torch.bincount(hidden.flatten(), minlength=30) / 4000
    assert_close(shares, torch.full((30,), 23 / 30), rtol=0, atol=5 * (0.77 * 0.23 / 4000) ** 0.5)


def test_blockwise_masking_hides_contiguous_patches():
    """Neighbours of a hidden patch are mostly hidden too, unlike in uniform masking."""

    def borders(masking) -> float:
        noise = masking(64, (14, 14), torch.device("cpu"))
        hidden = (noise > noise.flatten(1).median(dim=1).values[:, None, None]).float()
        return (
            (hidden[:, 1:] != hidden[:, :-1]).float().mean() + (hidden[..., 1:] != hidden[..., :-1]).float().mean()
        ) / 2

    assert borders(uniform) == pytest.approx(0.5, abs=0.02)
    assert borders(blockwise) < 0.2


def test_predictions_depend_on_visible_pixels_only(randomise):
    model, x = randomise(mae()), images().requires_grad_()
    output = model(x)
    (gradient,) = torch.autograd.grad(output.pixels.square().sum(), x)
    used = split_patches(gradient, PATCH).flatten(2).any(-1)
    hidden = torch.zeros_like(used).scatter(1, output.hidden, True)
    assert torch.equal(used, ~hidden)


@pytest.mark.parametrize("norm_pix", [False, True])
def test_target_depends_on_hidden_patches_only(norm_pix, randomise):
    model, x = randomise(mae(norm_pix=norm_pix)), images().requires_grad_()
    hidden = model(x).hidden
    (gradient,) = torch.autograd.grad(model.make_target(x, hidden).pow(3).sum(), x)
    used = split_patches(gradient, PATCH).flatten(2).any(-1)
    assert torch.equal(used, torch.zeros_like(used).scatter(1, hidden, True))


def test_target_is_normalised_per_patch_with_unbiased_variance():
    x, model = images(1), mae()
    hidden = torch.tensor([[11]])  # row 1, column 1
    patch = x[0, :, 8:16, 4:8].permute(1, 2, 0).flatten()  # rows, then columns, then channels
    exact(mae(norm_pix=False).make_target(x, hidden)[0, 0], patch)
    exact(model.make_target(x, hidden)[0, 0], (patch - patch.mean()) / (patch.var(correction=1) + 1e-6) ** 0.5)
    flat = model.make_target(torch.full_like(x, 0.3), hidden)
    assert flat.abs().max() < 1e-6


class Recorder(nn.Module):
    """A stand-in for an encoder that records its inputs."""

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        self.x, self.positions = x, positions
        return x


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_patch_order_is_kept_from_pixels_to_completed_image(channels):
    """Each patch carries its index through masking, encoder and decoder to the completed image."""
    model = MAE(Encoder(8, 1, 1), Encoder(8, 1, 1), SIZE, PATCH, channels=channels, norm_pix=False).double()
    index = torch.arange(30, dtype=torch.float64).view(1, 1, 3, 10)
    x = index.repeat_interleave(8, 2).repeat_interleave(4, 3).expand(2, channels, -1, -1).contiguous()
    model.encoder = first = Recorder()
    model.decoder.encoder = second = Recorder()
    model.decoder.embed = nn.Identity()
    model.embed.table, model.decoder.table = ZeroTable(), ZeroTable()
    with torch.no_grad():
        model.embed.patches.weight.fill_(1 / (channels * 32))
        model.embed.patches.bias.zero_()
        model.decoder.mask.fill_(-1)
    hidden = model(x).hidden
    kept = torch.ones(2, 30).scatter(1, hidden, 0).bool()
    assert_close(first.x[:, 1:, 0], torch.arange(30.0).double().expand(2, -1)[kept].view(2, 7))
    assert_close(first.positions[:, 1:] @ torch.tensor([10.0, 1.0]), first.x[:, 1:, 0].float())
    assert_close(second.x[:, 1:, 0], torch.where(kept, torch.arange(30.0).double(), -1.0))
    assert_close(second.positions[0, 1:] @ torch.tensor([10.0, 1.0]), torch.arange(30.0))
    pixels = hidden[:, :, None].expand(-1, -1, 32 * channels).double()
    exact(
        model.fill_hidden(
            x * kept.view(2, 1, 3, 10).repeat_interleave(8, 2).repeat_interleave(4, 3), Reconstruction(pixels, hidden)
        ),
        x,
    )


class ZeroTable(nn.Module):
    def forward(self, positions: Tensor, grid: tuple[int, int]) -> Tensor:
        return positions.new_zeros(1, positions.shape[1], 8)


def test_perfect_prediction_restores_the_image():
    model, x = mae(norm_pix=False), images()
    hidden = model.double()(x).hidden
    exact(model.fill_hidden(x, Reconstruction(model.make_target(x, hidden), hidden)), x)
    exact(
        paste_patches(x * 0, hidden, mae(norm_pix=False).make_target(x, hidden), PATCH)
        + paste_patches(x, hidden, 0 * model.make_target(x, hidden), PATCH),
        x,
    )


def test_perfect_prediction_restores_normalised_patches_up_to_mean_and_contrast():
    model, x = mae().double(), images()
    hidden = model(x).hidden
    target = model.make_target(x, hidden)
    filled = model.fill_hidden(x, Reconstruction(target, hidden))
    assert_close(model.make_target(filled, hidden), target, rtol=0, atol=1e-5)
    equal = x[:, :, :8, :4].repeat(1, 1, 3, 10)  # all patches have one mean and one contrast
    exact(model.fill_hidden(equal, Reconstruction(model.make_target(equal, hidden), hidden)), equal)


@pytest.mark.parametrize("norm_pix", [False, True])
def test_filled_patches_do_not_depend_on_hidden_pixels(norm_pix):
    """They had the mean and the contrast of the real patches."""
    model, x = mae(norm_pix=norm_pix).double(), images()
    output = model(x)
    other = paste_patches(x, output.hidden, 9 * torch.randn_like(output.pixels), PATCH)
    exact(model.fill_hidden(other, output), model.fill_hidden(x, output))
    exact(model.fill_means(other, output.hidden), model.fill_means(x, output.hidden))


def test_interpolation_weights_visible_patches_by_inverse_squared_distance():
    values = torch.tensor([[3.0, 100.0, 100.0, 6.0]])[..., None]
    hidden = torch.tensor([[1, 2]])
    assert_close(interpolate_patches(values, hidden, (1, 4))[..., 0], torch.tensor([[3.6, 5.4]]))
    assert_close(interpolate_patches(values, hidden, (2, 2))[..., 0], torch.tensor([[4.5, 4.5]]))


@pytest.mark.parametrize(
    "slots",
    [
        {"table": Sinusoidal},
        {"table": Learned, "decoder_table": Learned, "prefix": 3},
        {"prefix": 0},
        {"position": partial(Rotary, axes=2)},
        {"position": partial(Rotary, axes=2), "table": NoPositions, "decoder_table": NoPositions},
    ],
)
def test_encoding_visible_patches_equals_masked_attention(slots, randomise):
    position = {"position": slots.pop("position")} if "position" in slots else {}
    model = randomise(MAE(Encoder(32, 2, 4, **position), Encoder(16, 1, 2), SIZE, PATCH, **slots))
    x, noise, prefix = images(), torch.rand(2, 3, 10, dtype=torch.float64), len(model.embed.prefix)
    kept = noise.flatten(1).argsort(1)[:, :7].sort(1).values
    encodings = []
    with model.encoder.register_forward_hook(lambda module, arguments, x: encodings.append(x)):
        model(x, noise)
    visible = torch.zeros(2, 30, dtype=torch.bool).scatter(1, kept, True)
    mask = torch.cat([torch.ones(2, prefix, dtype=torch.bool), visible], 1)[:, None, None]
    whole = model.encoder(*model.embed(x), mask=mask)
    exact(encodings[0][:, prefix:], gather_patches(whole[:, prefix:], kept))
    exact(encodings[0][:, :prefix], whole[:, :prefix])


@pytest.mark.parametrize("training", [False, True])
def test_features_use_all_patches_and_are_deterministic(training, randomise):
    model, x = randomise(mae()).train(training), images()
    before = torch.get_rng_state()
    first = model.features(x)
    assert torch.equal(first, model.features(x)) and torch.equal(before, torch.get_rng_state())
    assert first.shape == (2, 31, 32)
    exact(first, model.encoder(*model.embed(x)))


def test_every_parameter_gets_a_gradient():
    model, x = mae(table=Learned, decoder_table=Learned).double(), images()
    output = model(x)
    losses.squared_error(output.pixels, model.make_target(x, output.hidden)).mean().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_only_matrices_decay():
    plain, decayed = {}, {}
    for group in group_parameters(mae(table=Learned, decoder_table=Learned), 1e-3, 0.05):
        (decayed if group.weight_decay else plain).update(group.parameters)
    assert {name.rsplit(".", 1)[0] for name in decayed} == {
        *("embed.patches", "decoder.embed", "decoder.pixels"),
        *(f"{where}.blocks.{block}.{branch}" for where, depth in (("encoder", 2), ("decoder.encoder", 1))
          for block in range(depth) for branch in ("attn.f.qkv", "attn.f.out", "mlp.f.up", "mlp.f.down")),
    }  # fmt: skip
    assert {"embed.prefix", "embed.table.weight", "decoder.mask", "decoder.table.weight"} <= plain.keys()
    assert all(name.endswith("weight") for name in decayed)
    assert all(name.endswith("bias") for name in plain if "norm" not in name and name.split(".")[-1] not in
               ("prefix", "mask") and ".table." not in name)  # fmt: skip


def test_initialisation_follows_recipe():
    """In lightly#2026 the decoder's embedding and head kept PyTorch's default initialisation."""
    model = MAE(Encoder(64, 1, 4), Encoder(48, 1, 4), (32, 48), (8, 8), table=Learned, decoder_table=Learned)
    for name, parameter in model.named_parameters():
        last = name.rsplit(".", 1)[-1]
        if last == "bias":
            assert not parameter.any(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        elif last in ("prefix", "mask") or ".table." in name:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.3), name
        else:
            bound = math.sqrt(6 / sum(parameter.flatten(1).shape))
            assert 0.95 * bound < parameter.abs().max() <= bound, name


def test_decoder_table_is_not_zero():
    """transformers 5.24 sets it to zero in a model built from a config."""
    rows = mae().decoder.table(torch.cartesian_prod(torch.arange(3), torch.arange(10))[None].float(), (3, 10))
    assert rows.std() > 0.5 and len(rows[0].unique(dim=0)) == 30


@pytest.mark.parametrize("ratio", [0.0, 1.0, 0.99, -1.0])
def test_ratio_hiding_none_or_all_is_rejected(ratio):
    with pytest.raises(ValueError, match=f"visible and hide some, got ratio={ratio}"):
        mae(ratio=ratio)


def test_target_and_loss_are_float32_under_autocast():
    model, x = mae(), images().float()
    with torch.autocast("cpu", torch.bfloat16):
        output = model(x)
        target = model.make_target(x.bfloat16(), output.hidden)
    assert output.pixels.dtype == torch.bfloat16 and target.dtype == torch.float32
    assert losses.squared_error(output.pixels, target).dtype == torch.float32


def test_empty_batch_has_zero_loss():
    """Every image of a batch may be unreadable."""
    model, x = mae(), torch.zeros(0, 3, *SIZE)
    output = model(x)
    loss = losses.squared_error(output.pixels, model.make_target(x, output.hidden)).sum()
    loss.backward()
    assert loss.item() == 0 and model.fill_hidden(x, output).shape == x.shape


def test_block_aspect_ratios_are_symmetric():
    """Aspect ratios range from 0.3 to 1 / 0.3, and each is as likely as its inverse."""
    first = blockwise(2000, (40, 40), torch.device("cpu")) >= 64  # the first block of each image
    ratios = first.any(2).sum(1) / first.any(1).sum(1)
    logs = ratios.log()
    assert logs.mean().abs() < 5 * logs.std() / 2000**0.5
    assert 0.25 < ratios.min() < 0.36 and 2.8 < ratios.max() < 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_outputs_keep_model_dtype(dtype):
    model, x = mae().to(dtype), images().to(dtype)
    output = model(x)
    assert output.pixels.dtype == model.features(x).dtype == dtype
    assert model.fill_hidden(images().float(), output).dtype == torch.float32
