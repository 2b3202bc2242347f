"""Time and memory of a step, and the speed of the machine."""

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


def time_step(step: Step, device: torch.device) -> float:
    """Return the seconds of a step."""
    synchronize(device)
    start = time.perf_counter()
    step()
    synchronize(device)
    return time.perf_counter() - start


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def alternate_timers(timers: Sequence[Callable[[], float]], rounds: int, *, warm: int = 2) -> list[list[float]]:
    """Return the seconds of each timer in each round, in alternating order, so that a slow phase affects all.

    Args: warm: rounds before, which do not count. The first compiles, the first two create gradients and moments.
    """
    for timer in [*timers] * warm:
        timer()
    times: list[list[float]] = [[] for _ in timers]
    for turn in range(rounds):
        for index in reversed(range(len(timers))) if turn % 2 else range(len(timers)):
            times[index].append(timers[index]())
    return times


def measure_peak(step: Step, device: torch.device) -> int:
    """Return the peak memory of a step in bytes, beyond the memory in use before it.

    On a CPU the profiler reports every allocation; the peak of the process could be that of an earlier step.
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


def measure_matmul_rate(dtype: torch.dtype, device: torch.device) -> float:
    """Return the FLOP/s of a square linear layer that takes at least 0.1 s, or is 16,384 wide."""
    width, seconds = 256, 0.0
    while seconds < 0.1 and width < 16384:
        width *= 2
        product = partial(F.linear, *torch.randn(2, width, width, device=device).to(dtype))
        seconds = median([time_step(product, device) for _ in range(6)][1:])
    return 2 * width**3 / seconds


def get_processor_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    name = re.search(r"model name\s*: (.+)", text)
    return f"{name[1] if name else platform.machine()} with {torch.backends.cpu.get_cpu_capability()}"
