"""The resume of a run between two epochs with another number of samples in an optimiser step."""

import math
from typing import Any, cast

from lightning.pytorch import Callback, LightningModule, Trainer

from vitkit.tasks.task import Task


class NewSteps(Callback):
    """Continues the schedule of a run at the same epoch, where an epoch has another number of optimiser steps.

    The learning rate is that of the new batch, if it depends on it. The count of optimiser steps goes on.
    """

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        for identity in checkpoint["loops"]["fit_loop"]["state_dict"].get("combined_loader", ()):
            identity["batch"] = cast(Task, pl_module).data.batch * trainer.world_size

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        task, scheduler = cast(Task, pl_module), cast(Any, trainer.lr_scheduler_configs[0].scheduler)
        accumulated = trainer.accumulate_grad_batches
        steps = math.ceil(trainer.num_training_batches / accumulated)
        scheduler.last_epoch = trainer.current_epoch * steps
        lr = task.compute_peak_lr(task.data.batch * trainer.world_size * accumulated)
        scheduler.base_lrs = [group.lr for group in task.make_groups(lr)]
        factor = scheduler.lr_lambdas[0](scheduler.last_epoch)
        for group, base in zip(trainer.optimizers[0].param_groups, scheduler.base_lrs, strict=True):
            group["initial_lr"], group["lr"] = base, base * factor
