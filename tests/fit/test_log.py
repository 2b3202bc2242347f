from pathlib import Path

import pandas

from vitkit.fit.log import CSV


def test_resumed_run_appends_without_duplicates(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    log = CSV(path, 0)
    for step in range(4):
        log.log_metrics({"loss": 1 / (step + 3)}, step)
    log.log_metrics({"val/loss": 0.5}, 3)
    resumed = CSV(path, 2)
    for step in range(2, 4):
        resumed.log_metrics({"loss": 1 / (step + 3)}, step)
    resumed.log_metrics({"val/loss": 0.25}, 3)
    table = pandas.read_csv(path)
    assert table["step"].tolist() == [0, 1, 2, 3, 3]
    assert table["loss"].dropna().tolist() == [1 / 3, 1 / 4, 1 / 5, 1 / 6]
    assert table["val/loss"].dropna().tolist() == [0.25]


def test_new_run_replaces_an_old_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    CSV(path, 0).log_metrics({"loss": 1.0}, 0)
    CSV(path, 0).log_metrics({"loss": 2.0}, 0)
    assert pandas.read_csv(path)["loss"].tolist() == [2.0]
