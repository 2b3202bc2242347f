"""`vitkit fit`: train a model from a config into a run folder. After a kill, the same command resumes the run."""

import math
import re
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from lightning.pytorch.loops.utilities import _parse_loop_limits
from lightning.pytorch.strategies import FSDPStrategy
from lightning.pytorch.utilities.exceptions import SIGTERMException

from vitkit.data.data_module import Data
from vitkit.data.duplicates import format_shared
from vitkit.fit.checkpoint import AtomicIO, Checkpoint, Progress, read_progress
from vitkit.fit.early_stopping import Patience
from vitkit.fit.ema import EMA
from vitkit.fit.initial_preprocess import adapt_preprocess
from vitkit.fit.initial_weights import load_initial_weights
from vitkit.fit.log import EpochCount, ProgressLines, make_loggers
from vitkit.fit.model_size import describe_excess
from vitkit.fit.new_steps import NewSteps
from vitkit.fit.recomputation import BlockCheckpointing
from vitkit.fit.run_config import CLI
from vitkit.fit.run_folder import claim_folder, lock_run, refuse_other_config, select_inputs
from vitkit.fit.sample_digests import SampleDigests, start_log, write_log
from vitkit.optim import format_parameters
from vitkit.support.errors import format_count
from vitkit.support.extras import require_package
from vitkit.support.files import read_json
from vitkit.tasks.task import Task, say


def main(arguments: Sequence[str]) -> int:
    cli = CLI(arguments, "fit", __doc__)
    task, data = cast(Task, cli.model), cast(Data, cli.datamodule)
    before = read_time(cli.run / "last.ckpt")
    if not cli.config.print_groups:
        refuse_other_config(cli)
        start_log(cli)
    task.bind(data)
    if cli.config.report.baselines and not data.class_names and data.tokenizer is None:
        raise ValueError("report.baselines must be off with data.unlabelled: baselines need labels")
    if cli.config.report.baselines and data.preprocess is not None:
        require_package("sklearn", "report.baselines")  # now, not after hours of training
    trainer = make_trainer(cli)
    if cli.config.print_groups:
        lr = task.compute_peak_lr(math.prod((data.batch, trainer.world_size, trainer.accumulate_grad_batches)))
        print(format_parameters(task, task.make_groups(lr)))
        return 0
    task.make_schedule(count_steps(trainer, data))
    select_inputs(task, data)  # refused before the folder is made
    with lock_run(cli):
        if read_time(cli.run / "last.ckpt") != before:
            raise ValueError(f"run must be free, got run={cli.run}, which was trained meanwhile; run it again")
        return start_or_resume(cli, task, data, trainer)


def read_time(path: Path) -> int | None:
    """Return the time at which a file was last written, in ns, None if there is none."""
    return path.stat().st_mtime_ns if path.exists() else None


def count_steps(trainer: Trainer, data: Data) -> int | float:
    """Return the optimiser steps of a run, which Lightning counts only after it has begun."""
    limit, batches = trainer.limit_train_batches, data.count_batches(trainer.world_size)
    batches = int(batches * limit) if isinstance(limit, float) else min(batches, limit)
    # The least number of steps and epochs decides only whether a run may stop early.
    _, epochs = _parse_loop_limits(None, trainer.max_steps, None, trainer.max_epochs, trainer)
    steps = math.inf if epochs < 0 else math.ceil(batches / trainer.accumulate_grad_batches) * max(epochs, 1)
    return steps if trainer.max_steps < 0 else min(steps, trainer.max_steps)


def start_or_resume(cli: CLI, task: Task, data: Data, trainer: Trainer) -> int:
    """Train in the run folder, from its last checkpoint if there is one, and return the exit status."""
    last, report = cli.run / "last.ckpt", cli.run / "report.json"
    resumes = last.exists() and not cli.config.debug
    for line in adapt_preprocess(data, cli.run / "model" if resumes else None):
        say(line)
    claim_folder(cli)
    progress = Progress() if cli.config.debug else read_progress(last)
    steps, end = progress.steps, progress.describe_end(cli.config.trainer, cli.config.patience)
    if end or steps:
        epochs = format_count(progress.epochs, "epochs")
        say(f"{cli.run} {end}" if end else f"resuming {cli.run} from step {steps} after {epochs}")
    if end and report.exists() and read_json(report).get("kept", cli.config.keep) == cli.config.keep:
        return 0
    write_log(cli)
    if not steps:
        for lines in load_initial_weights(cli.config, task, data):
            say("\n  ".join(lines))
        for line in describe_excess(cli.config, task.model, data):
            say(line)
        for line in data.omissions.format(len(data.training) + len(data.validation), data.unit):
            say(line)
        report_duplicates(data)
    if not end:
        total = count_steps(trainer, data)
        planned = "" if steps or math.isinf(total) else f", {format_count(int(total), 'steps')}"
        say(describe_run(cli, data) + planned, flush=True)
    say(f"precision = {cli.config.trainer.precision}")
    if not steps:
        from vitkit.convert.export_targets import format_export_targets  # of other libraries, which no help needs

        say(format_export_targets(cli.portable, data.preprocess, data.tokenizer))
    loggers = cli.config_init.trainer.logger or []  # beside those of every run
    trainer.loggers = [*make_loggers(cli.run, steps), *(loggers if isinstance(loggers, Iterable) else [loggers])]
    report.unlink(missing_ok=True)  # of a shorter run, or of other weights
    if cli.config.compile:
        task.compile_model()
    if cli.config.resume_with_changes and steps and not progress.within_epoch:
        cast(Any, trainer).callbacks.insert(0, NewSteps())
    try:
        if not end:
            trainer.fit(task, datamodule=data, ckpt_path=last if steps else None)
        if end or not cast(Checkpoint, trainer.checkpoint_callback).is_final(trainer):
            if not end and isinstance(trainer.strategy, FSDPStrategy):  # it cannot shard a model a second time
                say("the kept weights are yet to be validated and reported, which the same command does")
                return 0
            trainer.limit_val_batches = trainer.limit_val_batches or 1.0  # a run that did not validate does so once
            trainer.validate(task, datamodule=data, ckpt_path=last if last.exists() else None, verbose=False)
    except SystemExit as stop:  # raised by Lightning on Ctrl-C and SIGTERM
        number = signal.SIGTERM if isinstance(stop, SIGTERMException) else signal.SIGINT
        raise KeyboardInterrupt(number) from None
    except ValueError as error:  # from a worker process it is a traceback that ends with the message
        if trainer.progress_bar_callback is not None:
            print(file=sys.stderr)  # the bar has not ended its line
        last_line = (str(error).strip() or repr(error)).splitlines()[-1]
        raise ValueError(re.sub(r"^[\w.]+Error: ", "", last_line)) from error
    return 0


def describe_run(cli: CLI, data: Data) -> str:
    classes = f" of {format_count(len(data.class_names), 'classes')}" if data.class_names else ""
    training = format_count(len(data.training), data.unit)
    return f"{cli.run}: {training}{classes} to train on, {len(data.validation):,} to validate on"


@rank_zero_only
def report_duplicates(data: Data) -> None:
    if pairs := data.find_duplicates():
        example = data.name_sample(pairs[0][0]), data.name_validation_sample(pairs[0][1])
        print(format_shared(len(pairs), len(data.validation), data.unit, example))


def make_trainer(cli: CLI) -> Trainer:
    """Return the trainer of a run, without loggers, which write into its folder."""
    fixed = {"default_root_dir": cli.run, "plugins": [AtomicIO()], "use_distributed_sampler": False, "logger": False}
    try:
        trainer = cli.instantiate_trainer(**fixed)
    except MisconfigurationException as error:
        raise ValueError(f"trainer: {error}") from error
    callbacks: list[Any] = cast(Any, trainer).callbacks
    cast(Checkpoint, trainer.checkpoint_callback).keep = cli.config.keep
    callbacks[:] = [callback for callback in callbacks if not (isinstance(callback, EMA) and callback.decay == 0)]
    if not sys.stdout.isatty():
        bars = RichProgressBar, TQDMProgressBar
        callbacks[:] = [callback for callback in callbacks if not isinstance(callback, bars)]
    bar = trainer.progress_bar_callback
    callbacks.insert(callbacks.index(bar) + 1 if bar else 0, EpochCount() if bar else ProgressLines())
    if (log := cast(Data, cli.datamodule).log) is not None:
        callbacks.insert(0, SampleDigests(cast(Data, cli.datamodule), log))
    if cli.config.checkpoint_blocks:
        callbacks.insert(0, BlockCheckpointing())
    if cli.config.patience:  # in front, so that the checkpoint saves its new count
        callbacks.insert(0, Patience(cast(Task, cli.model).score, cli.config.patience))
    return trainer
