"""`vitkit overfit`: train on one batch until it is overfitted. A model that cannot do so will not learn a data set."""

import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from vitkit.data.data_module import Data
from vitkit.fit.initial_weights import load_initial_weights
from vitkit.fit.run_config import CLI
from vitkit.support.errors import format_count
from vitkit.tasks.task import LEARNT, Task


class Trace(NamedTuple):
    """The loss before each step, the learning rate, the goal of the loss, and its least possible value."""

    losses: list[float]
    lr: float
    goal: float
    floor: float


def main(arguments: Sequence[str]) -> int:
    cli = CLI(arguments, "overfit", __doc__, steps=300)
    task, data = cast(Task, cli.model), cast(Data, cli.datamodule)
    data.stop_augmentation()
    task.simplify()
    task.bind(data)
    load_initial_weights(cli.config, task, data)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    task.to(device)
    batch = task.transfer_batch_to_device(next(iter(data.train_dataloader())), device, 0)
    if not len(batch.indices):
        raise ValueError("batch must hold samples that can be read, got none; see data.reading.on_error")
    started = time.perf_counter()
    trace = train_on_batch(task, batch, cli.config.steps, clip=cli.config.trainer.gradient_clip_val)
    first, last = trace.losses[0], trace.losses[-1]
    steps = format_count(len(trace.losses) - 1, "steps")
    summary = f"loss {first:.4g} -> {last:.4g} in {steps}, {time.perf_counter() - started:.1f} s"
    summary += f", goal {trace.goal:.4g}" if trace.goal != LEARNT else ""
    if last < trace.goal:
        print(f"ok: {summary}, of one batch of {len(batch.indices)} at learning rate {trace.lr:g}")
        return 0
    print(f"not overfitted: {summary}: {diagnose(task, batch, trace, data)}")
    return 1


def train_on_batch(task: Task, batch: Any, steps: int, clip: float | None = None) -> Trace:
    """Train on one batch at the peak learning rate, without dropout and drop path.

    Random numbers, such as the mask of an MAE, are the same in every step.
    """
    task.eval()
    lr = task.compute_peak_lr(len(batch.indices))
    groups = [{**group.options, "weight_decay": 0.0} for group in task.make_groups(lr)]
    optimizer = task.optimizer(groups, lr) if groups and lr else None
    trace = Trace([], lr, task.compute_goal(batch), task.compute_floor(batch))
    seed = torch.initial_seed()
    for _ in range(steps + 1):
        torch.manual_seed(seed)
        loss = task.compute_loss(batch)
        trace.losses.append(loss.total.item() / loss.terms)
        if optimizer is None or trace.losses[-1] < trace.goal or not math.isfinite(trace.losses[-1]):
            break
        optimizer.zero_grad()
        (loss.total / loss.terms).backward()
        if clip:
            nn.utils.clip_grad_norm_(task.parameters(), clip)
        optimizer.step()
    return trace


def diagnose(task: Task, batch: Any, trace: Trace, data: Data) -> str:
    """Return the most likely reason why a batch was not overfitted."""
    losses, parameters = trace.losses, dict(task.named_parameters())
    trainable = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    if not trainable:
        return "all parameters are frozen"
    if not math.isfinite(losses[0]):
        return f"the loss is not finite before any step: the model divides by zero, or {data.unit} hold nan or inf"
    if not math.isfinite(losses[-1]):
        return f"the learning rate {trace.lr:g} is too high; the lowest loss was {min(losses[:-1]):.4g}"
    if trace.lr == 0:
        return "the learning rate is 0"
    if fault := task.find_fault(batch, data):
        return fault
    unreached = [name for name, p in trainable.items() if p.grad is None or not p.grad.any()]
    if len(unreached) == len(trainable) and losses[-1] != losses[0]:
        steps = format_count(len(losses) - 1, "steps")
        return f"the learning rate {trace.lr:g} is too high: after {steps} no parameter has a gradient"
    if unreached:
        return f"no gradient reaches {len(unreached)} of {len(trainable)} parameters: {', '.join(unreached[:8])}"
    count = len(parameters) - len(trainable)
    frozen = f"; {count} of {len(parameters)} parameters are frozen" if count else ""
    chance, floor = task.compute_chance(batch), trace.floor
    near = f"{losses[0]:.4g}, the first loss" if chance is None else chance.text
    if losses[-1] - floor > 0.9 * (min(losses[0], math.inf if chance is None else chance.loss) - floor):
        return (
            f"the loss stays near {near}, though all parameters have gradients; "
            f"the learning rate {trace.lr:g} is far too low, or too high to settle{frozen}"
        )
    few = f"--steps {len(losses) - 1} too few{frozen}"
    return f"the loss was still falling; the learning rate {trace.lr:g} is too low, or {few}"
