import time
from functools import partial

import pytest
import torch
from torch import nn

from vitkit.bench.timing import alternate, peak, seconds

CPU = torch.device("cpu")
MB = 1 << 20


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")


def test_timers_alternate_after_a_warm_up():
    order: list[str] = []

    def timer(name: str) -> float:
        order.append(name)
        return float(len(order))

    times = alternate([partial(timer, name) for name in "ABC"], 3, warm=1)
    assert "".join(order) == "ABC" + "ABC" + "CBA" + "ABC"
    assert times == [[4, 9, 10], [5, 8, 11], [6, 7, 12]]


def test_seconds_are_those_of_the_step():
    assert seconds(partial(time.sleep, 0.02), CPU) >= 0.02 > seconds(lambda: None, CPU)


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
