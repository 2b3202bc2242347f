"""Logs of a run: metrics.csv and TensorBoard's event files in the run folder."""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import Logger, TensorBoardLogger

from vitkit.support.files import replace_file


def make_loggers(run: Path, step: int) -> list[Logger]:
    """Return loggers into the run folder from an optimiser step on. Later rows of an earlier process are removed."""
    # After Ctrl-C during a write TensorBoard's thread may sleep until its next flush, by default for two minutes.
    events = TensorBoardLogger(run, name="events", version="", purge_step=step, flush_secs=5)
    return [CSV(run / "metrics.csv", step), events]


class CSV(Logger):
    """Writes a row per call to disk at once. A resumed run appends, where Lightning's CSVLogger deletes."""

    def __init__(self, path: Path, step: int) -> None:
        super().__init__()
        self.path = path
        self.columns: list[str] = []
        self.write_rows(row for row in read_rows(path) if int(row["step"]) < step)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float | int], step: int | None = None) -> None:
        row = {"step": step, **metrics}
        if row.keys() <= {*self.columns}:
            with self.path.open("a", newline="") as file:
                csv.DictWriter(file, self.columns).writerow(row)
        else:
            self.write_rows([*read_rows(self.path), row])

    @rank_zero_only
    def write_rows(self, rows: Iterable[dict[str, Any]]) -> None:
        """Rewrite the file, with a column for every name."""
        rows = list(rows)
        self.columns = list(dict.fromkeys(name for row in rows for name in row))
        with replace_file(self.path) as temporary, temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(rows)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing: config.yaml is beside metrics.csv."""

    @property
    def name(self) -> str:
        return ""

    @property
    def version(self) -> str:
        return ""


def read_rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
