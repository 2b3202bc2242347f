import time
from functools import partial

import pytest
import torch
from torch import nn

from vitkit.bench.timing import alternate_timers, measure_peak, time_step

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

    times = alternate_timers([partial(timer, name) for name in "ABC"], 3, warm=1)
    assert "".join(order) == "ABC" + "ABC" + "CBA" + "ABC"
    assert times == [[4, 9, 10], [5, 8, 11], [6, 7, 12]]


def test_time_of_a_step():
    assert time_step(partial(time.sleep, 0.02), CPU) >= 0.02 > time_step(lambda: None, CPU)


def test_peak_is_the_memory_in_use_at_once():
    make = partial(torch.empty, dtype=torch.uint8)

    def step() -> None:
        first, second = make(MB), make(2 * MB)
        del first
        third = make(4 * MB)
        del second, third
        make(5 * MB)

    assert measure_peak(step, CPU) == 6 * MB


def test_peak_excludes_earlier_memory():
    layer, x = nn.Linear(512, 512), torch.zeros(16, 512)
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    assert measure_peak(lambda: layer(x), CPU) == 4 * 16 * 512
    assert measure_peak(lambda: layer.zero_grad(), CPU) == 0
