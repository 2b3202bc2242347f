"""How long a step takes and how much it holds, beside what the machine can do."""

import platform
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

Step = Callable[[], object]


def seconds(step: Step, device: torch.device) -> float:
    finish(device)
    start = time.perf_counter()
    step()
    finish(device)
    return time.perf_counter() - start


def finish(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def alternate(timers: Sequence[Callable[[], float]], rounds: int, *, warm: int = 2) -> list[list[float]]:
    """Return the seconds of each timer in each round, forth and back: what slows the machine for a while slows all.

    Args: warm: rounds before, which do not count. The first run compiles, the first two make gradients and moments.
    """
    for timer in [*timers] * warm:
        timer()
    times: list[list[float]] = [[] for _ in timers]
    for number in range(rounds):
        for index in reversed(range(len(timers))) if number % 2 else range(len(timers)):
            times[index].append(timers[index]())
    return times


def peak(step: Step, device: torch.device) -> int:
    """The most bytes that a step holds at once, beyond those held before it.

    On a CPU the profiler reports every allocation; the process's greatest size would be that of any earlier step.
    """
    if device.type != "cpu":
        torch.accelerator.reset_peak_memory_stats(device)
        before = torch.accelerator.memory_allocated(device)
        step()
        return torch.accelerator.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step()
    recorder: Any = record.profiler  # PyTorch does not type its events
    events = [event for event in recorder.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate((event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())), initial=0))


def matmul_rate(dtype: torch.dtype, device: torch.device) -> float:
    """FLOPs a second in a square linear layer that takes at least 0.1 s, or is 16,384 wide."""
    width, took = 256, 0.0
    while took < 0.1 and width < 16384:
        width *= 2
        product = partial(F.linear, *torch.randn(2, width, width, device=device).to(dtype))
        took = median([seconds(product, device) for _ in range(6)][1:])
    return 2 * width**3 / took


def processor(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    listed = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    name = re.search(r"model name\s*: (.+)", listed)
    return f"{name[1] if name else platform.machine()} with {torch.backends.cpu.get_cpu_capability()}"
