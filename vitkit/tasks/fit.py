"""`vitkit fit`: a config becomes a trained model in a run folder. The same command goes on from where it was killed."""

import logging
import re
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from types import FunctionType
from typing import Any, cast

import torch
import yaml
from jsonargparse import Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from vitkit.data.images import Images
from vitkit.nn.attention import fast_bfloat16
from vitkit.tasks.averaging import EMA
from vitkit.tasks.checkpoint import AtomicIO, Checkpoint
from vitkit.tasks.log import loggers
from vitkit.tasks.parser import Parser, explain
from vitkit.tasks.report import Report
from vitkit.tasks.task import Task, say
from vitkit.weights import replacing, save_config

# Nobody configures what the data knows about the model, nor what belongs to the run folder.
MODEL = "model.init_args.model.init_args"
LINKS = {"outputs": "classes", "image_size": "size", "channels": "channels"}
OWNED = {"default_root_dir", "enable_checkpointing", "logger", "plugins", "use_distributed_sampler"}
STARTED = {"config.yaml", "model", "metrics.csv", "events", "best.ckpt"}  # what there can be before last.ckpt
# What may change when a run goes on: how long it is, how it is watched, how fast it is read.
FREE = (
    *("trainer.max_epochs", "trainer.max_steps", "trainer.max_time", "trainer.log_every_n_steps"),
    *("trainer.enable_progress_bar", "trainer.enable_model_summary", "trainer.profiler"),
    *("data.workers", "checkpoint.every", "report.baselines", "threads"),
)


def main(arguments: Sequence[str]) -> int:
    cli = CLI(arguments)
    cli.claim()
    last = cli.run / "last.ckpt"
    step, epoch = progress(last)
    length = cli.config.trainer
    finished = 0 <= length.max_steps <= step or 0 <= (length.max_epochs or -1) <= epoch
    if finished:
        say(f"{cli.run} is finished, after {epoch} epochs and {step} steps; a larger trainer.max_epochs goes on")
        if (cli.run / "report.json").exists():
            return 0
    elif step:
        say(f"going on in {cli.run} from step {step}, {epoch} whole epochs")
    say(f"precision = {cli.config.trainer.precision}")
    owned = {"default_root_dir": cli.run, "logger": loggers(cli.run, step), "plugins": [AtomicIO()]}
    try:
        trainer = cli.instantiate_trainer(**owned, use_distributed_sampler=False)
    except MisconfigurationException as error:
        raise ValueError(f"trainer: {error}") from error
    if not finished:  # a report is of a whole run; a longer one gets its own, also after a kill
        (cli.run / "report.json").unlink(missing_ok=True)
    run = trainer.validate if finished else trainer.fit
    try:
        run(cli.model, datamodule=cli.datamodule, ckpt_path=last if step else None)
    except SystemExit:  # what Lightning makes of Ctrl-C
        raise KeyboardInterrupt from None
    except ValueError as error:  # one of a worker process is a traceback that ends with its message
        if trainer.progress_bar_callback is not None:
            print(file=sys.stderr)  # the bar has not ended its line
        raise ValueError(re.sub(r"^[\w.]+Error: ", "", str(error).strip().splitlines()[-1])) from error
    return 0


class CLI(LightningCLI):
    """What a config and a command line describe: the task, the data and, when asked, the trainer."""

    def __init__(
        self, arguments: Sequence[str], command: str = "fit", description: str | None = __doc__, **options: int
    ) -> None:
        """Args: command, description: what --help says. options: further ones, with their defaults."""
        self.options = options
        for name in ("lightning.fabric", "lightning.pytorch"):
            logging.getLogger(name).setLevel(logging.WARNING)
        warnings.filterwarnings("ignore", "`isinstance.treespec, LeafSpec.` is")  # torch's, of Lightning's code
        super().__init__(
            Task,
            LightningDataModule,
            args=list(arguments),
            run=False,
            save_config_callback=None,
            seed_everything_default=0,
            subclass_mode_model=True,
            subclass_mode_data=True,
            parser_class=Parser,
            parser_kwargs={"prog": f"vitkit {command}", "description": description, "allow_abbrev": False},
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
        )

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_class_arguments(
            Trainer, "trainer", skip={*OWNED}, instantiate=False, fail_untyped=False, sub_configs=True
        )
        parser.set_defaults({"trainer.enable_model_summary": False, "trainer.log_every_n_steps": 1})
        parser.add_lightning_class_args(Task, "model", subclass_mode=True)
        parser.add_lightning_class_args(LightningDataModule, "data", subclass_mode=True)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument(
            "--run", type=Path | None, help="the folder of the run (runs/ and the names of the configs)"
        )
        parser.add_argument("--fresh", action="store_true", help="start anew, in an empty folder")
        parser.add_argument("--threads", type=int | None, help="of the processor, for each operation")
        for name, default in self.options.items():
            parser.add_argument(f"--{name}", type=int, default=default)
        for callback, key in ((EMA, "ema"), (Checkpoint, "checkpoint"), (Report, "report")):
            parser.add_lightning_class_args(callback, key)
        for parameter, attribute in LINKS.items():
            parser.link_arguments(f"data.{attribute}", f"{MODEL}.{parameter}", apply_on="instantiate")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        self.config = parser.parse_args(args)
        given = parser.parse_args(args, defaults=False).get(MODEL, {})
        if taken := [name for name in LINKS if name in given]:
            parser.error(f"model.model.{taken[0]} must be left to the data, whose {LINKS[taken[0]]} it is")
        self.run = self.config.run or Path("runs") / "-".join(Path(config).stem for config in self.config.config)

    def before_instantiate_classes(self) -> None:
        if self.config.threads is not None:
            if self.config.threads < 1:
                raise ValueError(f"threads must be at least 1, got threads={self.config.threads}")
            torch.set_num_threads(self.config.threads)
        if self.config.trainer.precision is None:
            self.config.trainer.precision = precision(self.config.trainer.accelerator)
        if str(self.config.trainer.precision) in ("16", "16-mixed", "16-true"):
            raise ValueError(
                f"trainer.precision must have the range of float32, got {self.config.trainer.precision}; "
                "take bf16-mixed or 32-true"
            )

    def instantiate_classes(self) -> None:
        try:
            self.config_init = self.parser.instantiate(self.config)
        except ValueError as error:
            raise ValueError(explain(str(error))) from error
        self.model, self.datamodule = self.config_init.model, self.config_init.data

    @rank_zero_only
    def claim(self) -> None:
        """Make the run folder this run's.

        Raises: ValueError if it is another's, or holds the same run under another config.
        """
        config = {key: value for key, value in plain(self.config).items() if key not in ("config", "run", "fresh")}
        model, data = config["model"]["init_args"]["model"], cast(Images, self.datamodule)
        own = model.get("init_args", {})
        linked = {name: getattr(data, LINKS[name]) for name in LINKS if own.pop(name, None) is not None}
        path = self.run / "config.yaml"
        if self.config.fresh and self.run.exists() and any(self.run.iterdir()):
            raise ValueError(f"run must be an empty folder to start fresh, got run={self.run}")
        begun = (self.run / "last.ckpt").exists()
        if begun and path.exists():
            before, now = dict(leaves(yaml.safe_load(path.read_text("utf-8")))), dict(leaves(config))
            changed = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key) and key not in FREE]
            if changed:
                texts = [f"{key} (was {before.get(key)}, now {now.get(key)})" for key in changed]
                raise ValueError(f"run must go on as it began, got {', '.join(texts)}; choose another --run")
        elif self.run.exists():
            held = {file.name for file in self.run.iterdir() if file.suffix != ".partial"}
            if held - STARTED or held and not {"config.yaml", "model"} <= held:
                raise ValueError(f"run must be a folder that is new, empty or of a run, got run={self.run}")
            shutil.rmtree(self.run / "model", ignore_errors=True)  # of a run that failed before it saved anything
        self.run.mkdir(parents=True, exist_ok=True)
        with replacing(path) as beside:
            beside.write_text(yaml.safe_dump(config, sort_keys=False), "utf-8")
        save_config(self.run / "model", {**model, "init_args": {**own, **linked}}, data.preprocess, data.names)


def plain(value: Any) -> Any:
    """A config as YAML has it. jsonargparse's own dump spoils what is typed numbers.Number, such as angles."""
    match value:
        case Namespace():
            return plain(vars(value))
        case dict():
            return {key: plain(item) for key, item in value.items() if item is not None}
        case list() | tuple():
            return [plain(item) for item in value]
        case bool() | int() | float() | str():
            return value
        case type() | FunctionType():
            return f"{value.__module__}.{value.__qualname__}"
    return str(value)


def leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(key, value) pairs, the keys as the command line spells them."""
    for key, value in config.items():
        name = prefix.removesuffix("init_args.") + key
        if isinstance(value, Mapping):
            yield from leaves(value, f"{name}.")
        else:
            yield name, value


def progress(checkpoint: Path) -> tuple[int, int]:
    """Optimiser steps and whole epochs; none without a checkpoint."""
    if not checkpoint.exists():
        return 0, 0
    try:
        state = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, OSError, UnpicklingError) as error:
        raise ValueError(
            f"{checkpoint} must be a whole checkpoint, got {str(error):.80}; remove it to start again"
        ) from error
    return state["global_step"], state["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]


def precision(accelerator: str) -> str:
    """bf16-mixed where the hardware multiplies bfloat16 faster than float32, else 32-true."""
    cuda = torch.cuda.is_available() and accelerator in ("auto", "gpu", "cuda")
    fast = fast_bfloat16("cuda") if cuda else accelerator in ("auto", "cpu") and fast_bfloat16("cpu")
    return "bf16-mixed" if fast else "32-true"
