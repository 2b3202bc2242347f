from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torchvision.transforms import v2

from vitkit.bundle import model_config
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import save
from vitkit.data.batches import Reading
from vitkit.data.images import Images
from vitkit.data.order import draw_samples
from vitkit.data.pictures import Augmentation
from vitkit.evaluation.classification import evaluate
from vitkit.fit.ema import EMA
from vitkit.fit.log import CSV, read_rows
from vitkit.models import MAE
from vitkit.support.extras import require_package
from vitkit.tasks import feature_probe
from vitkit.tasks.feature_probe import gather_features
from vitkit.tasks.reconstruction import Reconstruct

Few = Callable[..., Images]
Fit = Callable[..., Trainer]


def pool_features(mae: MAE, data: Images, samples: list[int]) -> tuple[np.ndarray, np.ndarray]:
    with torch.no_grad():
        images = torch.stack([data.preprocess(data.source.read_image(sample)) for sample in samples])
        labels = np.array([cast(int, data.source.labels[sample]) for sample in samples])
        return mae.features(images)[:, 1:].mean(1).numpy(), labels


def test_probes_use_mean_patch_tokens_without_augmentation(mae: MAE, few: Few, trainer: Fit) -> None:
    data = few(training=120, validation=40, batch=16, augment=Augmentation([v2.RandomInvert(1.0)]))
    task = Reconstruct(mae, lr=1.0, probed=100, pictures_every=0)
    metrics = trainer().validate(task, datamodule=data, verbose=False)[0]
    samples = draw_samples(data.training, 100)
    training, labels = pool_features(mae, data, list(samples))
    validation, expected = pool_features(mae, data, data.validation)
    linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(training, labels)
    assert metrics["val/linear"] == pytest.approx((linear.predict(validation) == expected).mean())
    scores = task.probe.scores
    assert (metrics["val/knn"], metrics["val/linear"]) == pytest.approx(
        (scores["20-NN on features"], scores["linear probe on features"])
    )
    assert scores["linear probe on pixels"] > 0.6 and task.probe.baselines["most frequent class"] < 0.3


def test_evaluation_of_the_saved_model_equals_its_probes(few: Few, trainer: Fit, tmp_path: Path) -> None:
    encoder = {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 16, "depth": 1, "heads": 2}}
    sizes = {"image_size": [8, 8], "patch_size": [2, 4], "channels": 1}
    config = {"class_path": "vitkit.models.MAE", "init_args": {**sizes, "encoder": encoder, "decoder": encoder}}
    network = cast(MAE, model_config.build_model(config))
    data, task = few(training=1437, validation=360, batch=200), Reconstruct(network, lr=1e-2, probed=150)
    trainer().fit(task, datamodule=data)
    save(tmp_path / "model", Bundle(network, config, data.preprocess))
    numbers = evaluate(tmp_path / "model", "digits", fold=0, probed=150, reading=Reading(64)).numbers
    expected = numbers["probes"]
    assert {f"{kind} on {what}" for kind in ("20-NN", "linear probe") for what in ("features", "pixels")} < {*expected}
    assert task.probe.scores == pytest.approx({name: expected[name] for name in task.probe.scores}, abs=0.01)
    assert task.probe.baselines == numbers["baselines"] == {"most frequent class": 0.1}


def test_probes_run_every_so_many_epochs_and_in_the_last(mae: MAE, few: Few, trainer: Fit, tmp_path: Path) -> None:
    log = CSV(tmp_path / "metrics.csv", 0)
    task = Reconstruct(mae, lr=1e-3, probe_every=2, pictures_every=0)
    trainer(5, logger=log, log_every_n_steps=1).fit(task, datamodule=few(training=30, batch=10, validation=20))
    rows = [row for row in read_rows(log.path) if row["val/loss"]]
    assert [bool(row["val/linear"]) for row in rows] == [False, True, False, True, True]
    assert task.probe.epoch == 5


def test_run_that_ends_by_steps_is_probed(mae: MAE, few: Few, trainer: Fit, tmp_path: Path) -> None:
    task = Reconstruct(mae, lr=1e-3, probe_every=10, pictures_every=0)
    trainer(-1, max_steps=3, log_every_n_steps=1).fit(task, datamodule=few(training=30, batch=10, validation=20))
    assert task.probe.epoch == 1 and "linear probe on features" in task.probe.scores
    assert ("probes are fitted to 30 training pictures", "") in task.summarize(tmp_path, "last epoch", False).rows


def test_averaged_weights_are_probed(mae: MAE, few: Few, trainer: Fit) -> None:
    data = few(training=40, batch=10, validation=30)
    task = Reconstruct(mae, lr=0.05, pictures_every=0)
    trainer(2, callbacks=[EMA(0.9)], log_every_n_steps=1).fit(task, datamodule=data)  # leaves the average in the model
    training, labels = pool_features(mae, data, data.training)
    validation, expected = pool_features(mae, data, data.validation)
    linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(training, labels)
    assert task.metrics["val/linear"] == pytest.approx((linear.predict(validation) == expected).mean())


@pytest.mark.parametrize("reason", ["off", "unlabelled", "multilabel"])
def test_no_probe_without_single_labels_or_when_off(reason: str, mae: MAE, few: Few, trainer: Fit) -> None:
    data = few(validation=20, unlabelled=reason == "unlabelled")
    if reason == "multilabel":
        data.source.labels = [(cast(int, label),) for label in data.source.labels]
    task = Reconstruct(mae, lr=1.0, probe_every=0 if reason == "off" else 1, pictures_every=0)
    trainer().validate(task, datamodule=data, verbose=False)
    assert set(task.metrics) == {"val/loss", "val/explained"} and task.probe.scores == {}


def test_missing_package_error_names_the_option(mae: MAE, few: Few, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_probe, "require_package", lambda package, feature: require_package("absent", feature))
    with pytest.raises(ValueError, match=r"^a probe \(model.probe_every=0 for none\) needs the package absent"):
        Reconstruct(mae, lr=1.0).bind(few())
    Reconstruct(mae, lr=1.0, probe_every=0).bind(few())
    Reconstruct(mae, lr=1.0).bind(few(unlabelled=True))
    with pytest.raises(ValueError, match="probed at least 1, got probe_every=10, probed=0"):
        Reconstruct(mae, lr=1.0, probed=0)


def test_features_of_ranks_are_sorted_by_index() -> None:
    def part(*indices: int) -> tuple[torch.Tensor, ...]:
        column = torch.tensor(indices)
        return column, column[:, None].float(), column[:, None].byte(), column

    data = gather_features([part(0, 4), part(1, 5), part(3)])
    assert data.labels.tolist() == data.features[:, 0].tolist() == data.pixels[:, 0].tolist() == [0, 1, 3, 4, 5]
    with pytest.raises(ValueError, match="must have training pictures that can be read"):
        gather_features([])
