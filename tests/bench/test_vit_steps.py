import pytest
import torch

from vitkit.bench.peers import Settings
from vitkit.bench.vit_steps import (
    LIMIT,
    build_vits,
    halve_batch,
    make_forward_step,
    make_training_step,
    parse_shape,
)

CPU = torch.device("cpu")


def make_settings(dtype: str = "float32") -> Settings:
    return Settings(dtype, CPU, threads=1, batch=1, pairs=1, compiled=False)


def test_both_models_have_the_same_parameters_and_outputs():
    ours, peer, image = build_vits(parse_shape("ti/4@8"))
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in (ours, peer)]
    assert image.shape == (1, 3, 8, 8) and counts[0] == counts[1]


@pytest.mark.parametrize("dtype", ["float32", "bf16-mixed"])
def test_training_step_changes_every_weight_and_keeps_no_gradient(dtype: str):
    settings = make_settings(dtype)
    model, _, image = build_vits(parse_shape("ti/4@8"))
    model.to(settings.weight_dtype)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    make_training_step(model, image.to(settings.weight_dtype), torch.zeros(1, dtype=torch.long), settings)()
    assert not any(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None and parameter.dtype == settings.weight_dtype for parameter in model.parameters())


def test_forward_step_runs_in_inference_mode():
    model, _, image = build_vits(parse_shape("ti/4@8"))
    output = make_forward_step(model.train(), image, make_settings())()
    assert isinstance(output, torch.Tensor) and output.is_inference() and not model.training


def test_mixed_precision_multiplies_in_bfloat16():
    model, _, image = build_vits(parse_shape("ti/4@8"))
    full, mixed = (make_forward_step(model, image, make_settings(dtype))() for dtype in ("float32", "bf16-mixed"))
    assert isinstance(full, torch.Tensor) and isinstance(mixed, torch.Tensor)
    assert (full.dtype, mixed.dtype) == (torch.float32, torch.bfloat16)


def test_batch_is_halved_until_it_fits_the_limit():
    image = 2 * 10 * 4 / 0.5  # seconds for 7 pairs where a forward pass takes one at the full rate
    assert halve_batch(8, 7, flops=1, rate=8 * image / LIMIT) == 8
    assert halve_batch(8, 7, flops=1, rate=2 * image / LIMIT) == 2
    assert halve_batch(8, 7, flops=1, rate=0.9 * image / LIMIT) == 0
