"""`vitkit overfit`: one batch to no loss. A model that cannot learn 64 pictures by heart will not learn a data set."""

import math
import time
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from vitkit.bundle.transfer import start_from
from vitkit.data.images import Images
from vitkit.data.pictures import Batch
from vitkit.fit.run_config import CLI
from vitkit.tasks.classify import Classify

LEARNT = 0.01  # nats: the labels have 99 % of the probability


class Trace(NamedTuple):
    """What happened: the loss before each step, and the optimiser's learning rate."""

    losses: list[float]
    lr: float


def main(arguments: Sequence[str]) -> int:
    cli = CLI(arguments, "overfit", __doc__, steps=300)
    task, data = cli.model, cast(Images, cli.datamodule)
    if not isinstance(task, Classify):
        raise ValueError(f"model must be Classify, which has labels to learn by heart, got {type(task).__name__}")
    data.training_pictures.augment = data.training_pictures.augment_tensors = ()
    task.label_smoothing, task.class_weights = 0.0, None  # or the loss would not end at zero
    task.suit(data)
    if cli.config.pretrained:
        start_from(cli.config.pretrained, task.model, data.names, data.preprocess)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    task.to(device)
    batch = next(iter(data.train_dataloader()))
    batch = batch._replace(**{name: getattr(batch, name).to(device) for name in ("images", "labels", "indices")})
    started = time.perf_counter()
    trace = learn(task, batch, cli.config.steps, clip=cli.config.trainer.gradient_clip_val)
    first, last = trace.losses[0], trace.losses[-1]
    told = f"loss {first:.4g} -> {last:.4g} in {len(trace.losses) - 1} steps, {time.perf_counter() - started:.1f} s"
    if last < LEARNT:
        print(f"ok: {told}, of one batch of {len(batch.labels)} at learning rate {trace.lr:g}")
        return 0
    print(f"not learnt: {told}: {verdict(task, batch, trace, data)}")
    return 1


def learn(task: Classify, batch: Batch, steps: int, clip: float | None = None) -> Trace:
    """Train on one batch, without dropout and drop path, and at the peak learning rate throughout."""
    task.eval()
    lr = task.peak(len(batch.labels))
    trained = [{**group.options, "weight_decay": 0.0} for group in task.groups(lr)]
    optimizer = task.optimizer(trained, lr) if trained else None
    trace = Trace([], lr)
    for _ in range(steps + 1):
        loss = task.loss(batch)
        trace.losses.append(loss.total.item() / loss.terms)
        if optimizer is None or trace.losses[-1] < LEARNT or not math.isfinite(trace.losses[-1]):
            break
        optimizer.zero_grad()
        (loss.total / loss.terms).backward()
        if clip:
            nn.utils.clip_grad_norm_(task.parameters(), clip)
        optimizer.step()
    return trace


def verdict(task: Classify, batch: Batch, trace: Trace, data: Images) -> str:
    """The most likely cause, of those that the evidence allows."""
    losses, named = trace.losses, dict(task.named_parameters())
    trained = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
    if not trained:
        return f"all {len(named)} parameters are frozen"
    if not math.isfinite(losses[0]):
        return "it is not finite before the first step: the model divides by zero, or the pictures hold such values"
    if not math.isfinite(losses[-1]):
        return f"the learning rate {trace.lr:g} is too high; the loss had got to {min(losses[:-1]):.4g}"
    if trace.lr == 0:
        return "the learning rate is 0"
    if twins := contradiction(batch):
        names = [f"{data.source.name(int(batch.indices[i]))} ({spelt(batch.labels[i], data.names)})" for i in twins]
        return f"the labels contradict each other: {' and '.join(names)} are the same picture"
    if unreached := [name for name, p in trained.items() if p.grad is None or not p.grad.any()]:
        return f"no gradient reaches {len(unreached)} of {len(trained)} parameters: {', '.join(unreached[:8])}"
    if len(batch.images) > 1 and not batch.images.std(0).any():
        return "the pictures are all the same"
    guesses = 2 if data.source.several else data.classes
    chance = math.log(guesses)
    if losses[-1] > 0.9 * min(losses[0], chance):
        return (
            f"the loss stays near ln {guesses} = {chance:.4g}, a guess's, though gradients reach everything; "
            f"the learning rate {trace.lr:g} is far too low, or too high to settle"
        )
    return f"it was still falling; the learning rate {trace.lr:g} is too low, or --steps {len(losses) - 1} too few"


def spelt(label: Tensor, names: Sequence[str]) -> str:
    """One class, or those of a set."""
    return (
        names[int(label)] if label.ndim == 0 else "|".join(name for name, has in zip(names, label, strict=True) if has)
    )


def contradiction(batch: Batch) -> tuple[int, int] | None:
    """Where the same picture is twice, under two labels."""
    seen: dict[bytes, int] = {}
    for place, image in enumerate(batch.images.cpu()):
        before = seen.setdefault(image.numpy().tobytes(), place)
        if not torch.equal(batch.labels[before], batch.labels[place]):
            return before, place
    return None
