"""Build a task, its data and a trainer from configs and a command line."""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from pydoc import locate
from types import FunctionType
from typing import Any, cast

import torch
from jsonargparse import Namespace
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from vitkit.bundle.model_config import explain_error
from vitkit.bundle.old_names import ARGUMENTS, move_options, update_options
from vitkit.data.data_module import Data
from vitkit.fit.checkpoint import Checkpoint
from vitkit.fit.data_links import LINKS, TOWER, TOWER_LINKS, fill_links, find_links
from vitkit.fit.debug import shorten_run, shrink_model
from vitkit.fit.ema import EMA
from vitkit.fit.folder_options import is_pretrained, read_folders
from vitkit.fit.initial_weights import insert_folders
from vitkit.fit.parser import MODE, ConfigFile, Parser, note_old_name
from vitkit.fit.run_options import TRAINER_HELP, add_run_options
from vitkit.fit.run_report import Report
from vitkit.nn.cores import has_fast_bfloat16
from vitkit.tasks.task import Task, say

MODEL = "model.init_args.model.init_args"
# Arguments of the Trainer that are set by the run folder, not by configs.
FIXED = {"default_root_dir", "enable_checkpointing", "plugins", "use_distributed_sampler"}
SHARDED = ("fsdp", "FSDP", "ModelParallel")


class CLI(LightningCLI):
    """The task, the data and, on request, the trainer that configs and a command line describe."""

    def __init__(
        self, arguments: Sequence[str], command: str = "fit", description: str | None = __doc__, **options: int
    ) -> None:
        """Args: command, description: shown by --help. options: further options with their defaults."""
        self.options = options
        for name in ("lightning.fabric", "lightning.pytorch"):
            logging.getLogger(name).setLevel(logging.WARNING)
        warnings.filterwarnings("ignore", "`isinstance.treespec, LeafSpec.` is")  # a warning of torch about Lightning
        super().__init__(
            Task,
            LightningDataModule,
            args=update_options(arguments),
            run=False,
            save_config_callback=None,
            seed_everything_default=0,
            subclass_mode_model=True,
            subclass_mode_data=True,
            parser_class=Parser,
            parser_kwargs={
                "prog": f"vitkit {command}",
                "description": description,
                "allow_abbrev": False,
                "parser_mode": MODE,
            },
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
        )

    def init_parser(self, **options: Any) -> Parser:
        parser = Parser(**options)
        text = "Path to a configuration file in json or yaml format."
        parser.add_argument("-c", "--config", action=ConfigFile, help=text)
        return parser

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_class_arguments(
            Trainer, "trainer", skip={*FIXED}, instantiate=False, fail_untyped=False, sub_configs=True
        )
        parser.add_argument(TRAINER_HELP, action="help", help="show these options, and exit")
        parser.set_defaults({"trainer.enable_model_summary": False, "trainer.log_every_n_steps": 1})
        parser.add_lightning_class_args(Task, "model", subclass_mode=True)
        parser.add_lightning_class_args(LightningDataModule, "data", subclass_mode=True)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        add_run_options(parser, self.options)
        for callback, key in ((EMA, "ema"), (Checkpoint, "checkpoint"), (Report, "report")):
            parser.add_lightning_class_args(callback, key)
        for prefix, links in (("", LINKS), (f"{TOWER}.init_args.", TOWER_LINKS)):
            for parameter, attribute in links.items():
                parser.link_arguments(f"data.{attribute}", f"{MODEL}.{prefix}{parameter}", apply_on="instantiate")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        if is_known(read_folders(args).data):
            args = move_options(args, note_old_name)
        args = insert_folders(cast(Parser, parser), args)
        self.config = parser.parse_args(args)
        given = parser.parse_args(args, defaults=False).get(MODEL, {})
        tower = given.get(f"{TOWER}.init_args") or {}
        links = find_links(cast(type[Data], locate(self.config.data.class_path)))
        linked = {name: source for name, source in links.items() if name in given}
        linked |= {f"{TOWER}.{name}": source for name, source in TOWER_LINKS.items() if name in tower}
        for name, source in linked.items():
            parser.error(f"model.model.{name} must be left out: it follows from data.{source}")
        # The config of a folder has no path.
        run = [Path(config).stem for config in self.config.config or [] if config is not None]
        if not run and self.config.run is None:
            raise ValueError(
                "run must be given where no config has a name, got run=None; or take a recipe, such as --config "
                "configs/finetune_folder.yaml"
            )
        if self.config.debug:
            self.shrink_run()
        folder = self.config.run or Path("runs") / "-".join(run)
        self.run = Path(f"{folder}-debug") if self.config.debug else folder

    def shrink_run(self) -> None:
        """Shorten the run, shrink the model unless it starts from weights, and print the changes in a line."""
        before = dict(iterate_leaves(to_yaml_types(self.config)))
        shorten_run(self.config)
        if not is_pretrained(self.config):
            shrink_model(self.config)
        after = dict(iterate_leaves(to_yaml_types(self.config)))
        changes = {key: (before.get(key), after.get(key)) for key in [*before, *after]}
        say("debug: " + ", ".join(f"{key} {old} -> {new}" for key, (old, new) in changes.items() if old != new))

    def before_instantiate_classes(self) -> None:
        config = self.config
        if low := [name for name in ("threads", "patience") if config[name] is not None and config[name] < 1]:
            raise ValueError(f"{low[0]} must be at least 1, got {low[0]}={config[low[0]]}")
        if (interval := config.trainer.log_every_n_steps) is not None and interval < 0:
            raise ValueError(f"trainer.log_every_n_steps must be at least 0, where 0 logs no steps, got {interval}")
        if config.resume_with_changes and (config.trainer.max_epochs or -1) < 0:
            raise ValueError("trainer.max_epochs must be given with resume_with_changes, which goes on between epochs")
        if isinstance(config.trainer.logger, bool):
            raise ValueError(
                "trainer.logger must be one logger or several, beside metrics.csv and events, which every run has; got "
                f"trainer.logger={config.trainer.logger}"
            )
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        if config.keep is None:
            config.keep = "best" if config.patience else "last"
        if config.trainer.precision is None:
            config.trainer.precision = choose_precision(config.trainer.accelerator)
        if str(config.trainer.precision) in ("16", "16-mixed", "16-true"):
            raise ValueError(
                f"trainer.precision must have the range of float32, got {config.trainer.precision}; "
                "take bf16-mixed or 32-true"
            )
        strategy = to_yaml_types(config.trainer.strategy)
        if any(word in str(strategy) for word in SHARDED):
            _check_sharding(config)
        given = [key for key, _ in iterate_leaves({"trainer.strategy": strategy}) if "activation_checkpointing" in key]
        if config.checkpoint_blocks and given:
            raise ValueError(
                f"one of checkpoint_blocks and {given[0]} may be given, and not both, because each recomputes the "
                "blocks; leave out --checkpoint_blocks"
            )
        if str(config.trainer.precision) == "bf16-true" and config.ema.decay:
            raise ValueError("ema.decay must be 0 under trainer.precision = bf16-true, too coarse for averages")

    def instantiate_classes(self) -> None:
        try:
            self.config_init = self.parser.instantiate(self.config)
        except ValueError as error:
            raise ValueError(explain_error(str(error))) from error
        self.model, self.datamodule = self.config_init.model, self.config_init.data
        trainer = self.config.trainer
        if cast(Task, self.model).exact:
            if str(trainer.precision) == "bf16-true":
                raise ValueError("trainer.precision must keep weights in float32 for the scale, got bf16-true")
            if any(word in str(to_yaml_types(trainer.strategy)) for word in SHARDED):
                raise ValueError(
                    "trainer.strategy must not shard the scale, which is one number; take configs/ddp.yaml"
                )

    @property
    def portable(self) -> Mapping[str, Any]:
        """Return the model's config, with the arguments that follow from its data."""
        model, data = to_yaml_types(self.config)["model"]["init_args"]["model"], cast(Data, self.datamodule)
        return fill_links(model, data, find_links(data))


def is_known(data: str | None) -> bool:
    """Return whether the class of the data, a path or a name, is one of vitkit or not given yet."""
    return data is None or data in ARGUMENTS or data in {path.rpartition(".")[2] for path in ARGUMENTS}


def _check_sharding(config: Namespace) -> None:
    """Check a config with sharded weights. Raises: ValueError that lists the options that exclude them."""
    arguments = config.model.init_args
    wrong = {
        "trainer.gradient_clip_val must be null: Lightning clips no norm over shards": config.trainer.gradient_clip_val,
        "ema.decay must be 0: Lightning averages no shards": config.ema.decay,
        "model.pictures_every must be 0: no rank has all weights for a figure": arguments.get("pictures_every"),
        "model.sample_length must be 0: no rank has all weights for a text": arguments.get("sample_length"),
    }
    if problems := [message for message, value in wrong.items() if value]:
        raise ValueError(f"{'; '.join(problems)}; got trainer.strategy={to_yaml_types(config.trainer.strategy)}")


def to_yaml_types(value: Any) -> Any:
    """Return a config in types of YAML. The dump of jsonargparse spoils arguments of type numbers.Number."""
    match value:
        case Namespace():
            return to_yaml_types(vars(value))
        case dict():
            # A group of arguments that was read from a file remembers its path, as __path__.
            return {key: to_yaml_types(item) for key, item in value.items() if item is not None and key != "__path__"}
        case list() | tuple():
            return [to_yaml_types(item) for item in value]
        case bool() | int() | float() | str():
            return value
        case type() | FunctionType():
            return f"{value.__module__}.{value.__qualname__}"
    return str(value)


def iterate_leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (key, value) pairs, with keys as on the command line."""
    for key, value in config.items():
        name = prefix.removesuffix("init_args.") + key
        if isinstance(value, Mapping):
            yield from iterate_leaves(value, f"{name}.")
        else:
            yield name, value


def choose_precision(accelerator: str) -> str:
    """Return bf16-mixed if the hardware multiplies bfloat16 faster than float32, else 32-true."""
    cuda = torch.cuda.is_available() and accelerator in ("auto", "gpu", "cuda")
    fast = has_fast_bfloat16("cuda") if cuda else accelerator in ("auto", "cpu") and has_fast_bfloat16("cpu")
    return "bf16-mixed" if fast else "32-true"
