"""Choice of the probes of an evaluation, and of the samples that they are fitted to."""

from collections.abc import Sequence

import numpy as np

from vitkit.bundle.bundle import Bundle
from vitkit.data.sources.open import open_source
from vitkit.data.sources.source import Source
from vitkit.data.sources.subset import Subset
from vitkit.evaluation import probes
from vitkit.support.extras import require_package


def choose_kinds(bundle: Bundle, source: Source, knn: bool, linear: bool) -> list[str]:
    """Return the kinds of probes to fit: none for a multilabel model.

    Raises: ValueError for several labels per image unless the model is multilabel, and for a model without classes if
    no probes are requested.
    """
    kinds = [kind for kind, wanted in ((probes.KNN, knn), (probes.LINEAR, linear)) if wanted]
    if source.multilabel and not bundle.multilabel:
        reason = "the model predicts one class" if bundle.class_names else "probes predict one class"
        raise ValueError(f"source must have one label for each picture, since {reason}, got several")
    if not bundle.class_names and not kinds:
        raise ValueError("model must have classes to be evaluated without probes, got none; leave out --no-probe")
    if bundle.multilabel:
        return []
    if kinds:
        require_package("sklearn", "a probe")
    return kinds


def choose_training(
    probe: str | None,
    name: str,
    source: Source,
    others: Sequence[int] | None,
    columns: tuple[str, ...],
    exclude: Sequence[str],
) -> tuple[Source, Sequence[int]] | None:
    """Return the source and the samples that baselines are fitted to.

    They are taken from `probe`, else from the other folds, else from the rest of the source that a Subset is a part of.
    Without any of them the result is None: then baselines are cross-validated over the evaluated images.

    Args: others: the samples of the other folds, None without a fold.
    Raises: ValueError if they would be the evaluated images themselves.
    """
    if probe is not None and probe != name:
        other = open_source(probe, columns=columns, exclude=exclude)
        if other.multilabel:
            raise ValueError(f"probe must have one label for each picture, got several in probe={probe}")
        return other, range(len(other))
    if others is not None:
        return source, others
    if probe is not None:
        raise ValueError(f"probe must hold other pictures than source, got both {probe}; leave out probe, or give fold")
    if isinstance(source, Subset):
        return source.whole, sorted({*range(len(source.whole))} - {*source.samples})
    return None


def check_folds(data: probes.ProbeData, needed: bool) -> str | None:
    """Return the reason why probes cannot be cross-validated, if any. Raises: ValueError if they are needed."""
    counts = np.unique(data.labels, return_counts=True)[1]
    if len(counts) == 1 and not needed:
        return "left out: all pictures are of one class"
    few = int(counts.min())
    if few >= probes.FOLDS:
        return None
    if needed:
        raise ValueError(
            f"source must hold {probes.FOLDS} pictures of each class for a model without classes, got one with {few}; "
            "name labelled pictures with --probe"
        )
    return f"left out: a class has {few} pictures, and {probes.FOLDS} folds are made"
