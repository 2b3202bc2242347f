import time
from functools import partial

import pytest
import torch
from torch import nn

from vitkit.commands.timing import alternate, peak, seconds

CPU = torch.device("cpu")
MB = 1 << 20


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")


def test_steps_alternate_after_a_warm_up():
    order: list[str] = []
    first, second = alternate(partial(order.append, "A"), partial(order.append, "B"), 3, CPU)
    assert "".join(order) == "ABAB" + "AB" + "BA" + "AB"
    assert len(first) == len(second) == 3


def test_seconds_are_credited_to_their_own_step():
    first, second = alternate(partial(time.sleep, 0.02), lambda: None, 4, CPU)
    assert min(first) >= 0.02 > max(second)
    assert seconds(partial(time.sleep, 0.02), CPU) >= 0.02


def test_peak_is_what_is_held_at_once():
    make = partial(torch.empty, dtype=torch.uint8)

    def step() -> None:
        first, second = make(MB), make(2 * MB)
        del first
        third = make(4 * MB)
        del second, third
        make(5 * MB)

    assert peak(step, CPU) == 6 * MB


def test_peak_leaves_out_what_was_there_before():
    layer, x = nn.Linear(512, 512), torch.zeros(16, 512)
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    assert peak(lambda: layer(x), CPU) == 4 * 16 * 512
    assert peak(lambda: layer.zero_grad(), CPU) == 0
