"""The record of a run's samples: which it trains on and which it holds out, whatever becomes of the files meanwhile."""

from pathlib import Path
from typing import Any, cast

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import Callback, LightningModule, Trainer

from vitkit.bundle.folder import read_classes
from vitkit.bundle.record_file import read_record, write_record
from vitkit.data.data_module import Data
from vitkit.data.sample_record import SampleLog, SampleRecord, format_changes, select_past
from vitkit.data.tokenizer import FILE
from vitkit.fit.run_config import CLI
from vitkit.fit.run_options import TOWERS
from vitkit.losses.ranks import gather_objects
from vitkit.support.errors import format_few
from vitkit.tasks.task import say


def start_log(cli: CLI) -> None:
    """Start the record of samples. Those of the run so far, or of a pretrained model of the same fold, keep their side.

    Raises: ValueError if the classes are no longer those that the run began with.
    """
    data, folder, arguments = cast(Data, cli.datamodule), cli.run / "model", cli.config.data.init_args
    folds = 0 if arguments.get("val") is not None else arguments.get("folds", 0)
    empty = SampleRecord(folds=folds, fold=arguments.get("fold", 0) if folds else 0)
    resumes = (cli.run / "last.ckpt").exists() and not cli.config.debug
    if resumes:
        refuse_other_classes(data.class_names, folder)
        if data.tokenizer is not None and isinstance(data.tokenizer.name, int) and (folder / FILE).is_file():
            data.tokenizer.text = (folder / FILE).read_text("utf-8")  # of the captions that the run began with
    options = ("pretrained", *(f"pretrained_{tower}" for tower in TOWERS))
    folders = [folder] if resumes else [cli.config[option] for option in options if cli.config[option]]
    records = [record for record in map(read_record, folders) if record is not None]
    same_split = len(records) == 1 and records[0][2:] == empty[2:]
    data.start_log(records[0] if same_split else empty)
    if data.log is None:
        return
    if not same_split:
        for record in records:
            data.log.past = data.log.past.add(select_past(record, data.log.digests[False]))
    if resumes and records and not data.log.shares(records[0]):
        raise ValueError(
            f"data must be those that the run began with, got {data.unit} none of which is recorded in {folder}; start "
            f"a new run from its weights: --pretrained {folder} --run FOLDER"
        )
    if resumes and not records:
        say(f"{folder} has no record of samples, as of an earlier version: the data are split anew")
    if changes := format_changes(data.log.changes):
        say(f"{data.unit} since the last training: {changes}; all others stay in training or held out as before")


@rank_zero_only
def write_log(cli: CLI) -> None:
    """Write the record into the model folder."""
    if (log := cast(Data, cli.datamodule).log) is not None:
        write_record(cli.run / "model", log.make_record())


def refuse_other_classes(class_names: tuple[str, ...], folder: Path) -> None:
    """Compare the classes of the data with those of a run. Raises: ValueError that names the different ones."""
    before = read_classes(folder)[0] if (folder / "classes.json").is_file() else ()
    if before and class_names != before:
        sides = {"only in the data": set(class_names) - set(before), "only in the run": set(before) - set(class_names)}
        texts = [f"{format_few(sorted(names))} {side}" for side, names in sides.items() if names]
        raise ValueError(
            f"classes must be those that the run began with, got {' and '.join(texts) or 'another order'}; start a new "
            f"run from its weights: --pretrained {folder} --run FOLDER"
        )


class SampleDigests(Callback):
    """Adds the digests of samples, as they are read on any rank, to the record in the model folder."""

    def __init__(self, data: Data, log: SampleLog) -> None:
        self.data, self.samples = data, log
        self.digests: tuple[dict[int, int], dict[int, int]] = {}, {}  # of this rank since the last file

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.add_batch(batch, held_out=False)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self.add_batch(batch, held_out=True)

    def add_batch(self, batch: Any, held_out: bool) -> None:
        self.digests[held_out].update(batch.digests)
        self.data.confirm_digests(batch.digests, held_out)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.write(trainer)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.write(trainer)

    def write(self, trainer: Trainer) -> None:
        """Write the record if there are new digests on any rank. Called on all ranks."""
        parts = [part for part in gather_objects([self.digests]) if any(part)]
        self.digests = {}, {}
        if trainer.is_global_zero and parts:
            for part in parts:
                for held_out in (False, True):
                    self.samples.add(held_out, part[held_out])
            write_record(Path(trainer.default_root_dir) / "model", self.samples.make_record())
