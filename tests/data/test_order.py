import itertools
from collections import Counter

import numpy as np
import pytest

from vitkit.data.order import (
    Apart,
    Balanced,
    Repeated,
    Shuffled,
    TrainingOrder,
    ValidationOrder,
    derive_seed,
    split_folds,
)

SAMPLES = range(100, 137)


def picks(order, epoch):
    order.set_epoch(epoch)
    return list(order)


def test_order_depends_on_seed_and_epoch_only():
    one, other = TrainingOrder(SAMPLES, 8, seed=3), TrainingOrder(SAMPLES, 8, seed=3)
    assert picks(one, 2) == picks(other, 2)
    assert [len(batch) for batch in picks(one, 2)] == [8, 8, 8, 8, 5]
    assert {pick.epoch for batch in picks(one, 2) for pick in batch} == {2}
    orders = [
        [pick.sample for batch in picks(TrainingOrder(SAMPLES, 8, seed), epoch) for pick in batch]
        for seed, epoch in [(3, 2), (3, 1), (4, 2), (2, 3)]
    ]
    assert len({tuple(order) for order in orders}) == 4
    assert all(sorted(order) == list(SAMPLES) for order in orders)


def test_derived_seeds_differ_and_never_change():
    assert len({derive_seed(*numbers) for numbers in itertools.product(range(10), repeat=3)}) == 1000
    assert derive_seed(1, 2) != derive_seed(12)
    # A checkpoint relies on it: another value here breaks the resume of older runs.
    assert derive_seed(0, 1, 2) == 2254201745


def test_trained_batches_are_skipped_in_their_epoch_only():
    whole = TrainingOrder(SAMPLES, 8, seed=0)
    resumed = TrainingOrder(SAMPLES, 8, seed=0, done=(1, 3))
    assert list(resumed) == picks(whole, 1)[3:]
    assert picks(resumed, 1) == picks(whole, 1)[3:]
    assert picks(resumed, 2) == picks(whole, 2)
    assert len(resumed) == 5


@pytest.mark.parametrize("count", [32, 33, 34, 35, 37, 47])
@pytest.mark.parametrize("world", [2, 4])
def test_ranks_divide_the_batches_of_one_process(world, count):
    alone = list(TrainingOrder(range(count), 16, seed=0))
    ranks = [TrainingOrder(range(count), 16 // world, seed=0, rank=rank, world=world) for rank in range(world)]
    steps = list(zip(*ranks, strict=True))
    together = [[pick for share in shares for pick in share] for shares in steps]
    rest = count % 16
    assert together == (alone[:-1] if 0 < rest < world else alone)
    assert all(len(share) > 0 for shares in steps for share in shares)
    assert all(max(map(len, shares)) - min(map(len, shares)) <= 1 for shares in steps)
    assert {len(order) for order in ranks} == {len(steps)}
    assert {order.dropped for order in ranks} == {rest if rest < world else 0}


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 7, 12])
def test_validation_order_divides_all_samples_among_ranks(count, world):
    ranks = [ValidationOrder(range(count), 2, rank=rank, world=world) for rank in range(world)]
    assert sorted(pick.sample for order in ranks for batch in order for pick in batch) == list(range(count))
    assert all(len(order) == len(list(order)) for order in ranks)


def test_folds_divide_every_class_evenly():
    labels = np.random.default_rng(0).choice(3, 101, p=[0.2, 0.3, 0.5]).tolist()
    folds = [split_folds(labels, "abc", 4, fold) for fold in range(4)]
    assert sorted(sample for _, held_out in folds for sample in held_out) == list(range(101))
    for training, held_out in folds:
        assert sorted(training + held_out) == list(range(101))
    counts = np.array([np.bincount([labels[sample] for sample in held_out]) for _, held_out in folds])
    assert np.ptp(counts, axis=0).max() <= 1
    assert np.ptp(counts.sum(axis=1)) <= 1
    assert split_folds(labels, "abc", 4, 0) == folds[0]


def test_class_of_one_sample_trains_and_changes_no_other_fold():
    folds = [split_folds([0, 1, 0, 0, 2, 2, 0, 2], "abc", 3, fold) for fold in range(3)]
    assert sorted(sample for _, held_out in folds for sample in held_out) == [0, 2, 3, 4, 5, 6, 7]
    without = [split_folds([0, 0, 0, 2, 2, 0, 2], "abc", 3, fold)[1] for fold in range(3)]
    assert [[sample - (sample > 1) for sample in held_out] for _, held_out in folds] == without


def test_fewer_samples_than_folds_are_divided_all_the_same():
    assert all(len(split_folds([0, 0, 1, 1], "ab", 5, fold)[1]) == 1 for fold in range(5))
    with pytest.raises(ValueError, match="a class must have two pictures, one of them to hold out, got 1; give val"):
        split_folds([0, 1, 2], "abc", 3, 0)


@pytest.mark.parametrize(("folds", "fold"), [(1, 0), (5, 5), (5, -1)])
def test_a_fold_outside_the_range_is_an_error(folds, fold):
    with pytest.raises(ValueError, match=f"got folds={folds}, fold={fold}"):
        split_folds([0] * 10, "a", folds, fold)


LABELS = [0] * 30 + [1] * 6 + [2] * 1  # of SAMPLES


def test_balanced_draw_has_every_class_equally_often() -> None:
    drawn = [sample for seed in range(60) for sample in Balanced()(SAMPLES, LABELS, seed)]
    assert len(drawn) == 60 * 37
    shares = np.bincount([LABELS[sample - 100] for sample in drawn]) / len(drawn)
    assert np.abs(shares - 1 / 3).max() < 0.04
    within = np.bincount([sample - 130 for sample in drawn if 130 <= sample < 136])
    assert within.min() > 0.75 * within.max()
    assert Balanced()(SAMPLES, LABELS, 5) == Balanced()(SAMPLES, LABELS, 5) != Balanced()(SAMPLES, LABELS, 6)


def test_label_set_counts_for_its_rarest_label() -> None:
    sets = [(0,)] * 16 + [(0, 1)] * 2 + [()] * 2
    drawn = [sample for seed in range(300) for sample in Balanced()(range(20), sets, seed)]
    shares = np.bincount(drawn, minlength=20) / len(drawn)
    assert shares[:16].sum() == pytest.approx(0.45, abs=0.02)
    assert shares[16:18].sum() == pytest.approx(0.45, abs=0.02)
    assert shares[18:].sum() == pytest.approx(0.1, abs=0.02)


def test_repeated_draw_augments_each_image_several_times_in_a_batch() -> None:
    order = TrainingOrder(SAMPLES, 12, seed=0, draw=Repeated(3))
    batches = list(order)
    assert sum(map(len, batches)) == len(SAMPLES) == 37
    for batch in batches[:3]:
        copies = {
            sample: [pick.copy for pick in batch if pick.sample == sample] for sample in {p.sample for p in batch}
        }
        assert len(copies) == 4 and set(map(tuple, copies.values())) == {(0, 1, 2)}
    assert len({pick.sample for batch in batches for pick in batch}) == 13
    with pytest.raises(ValueError, match="times must be at least 1, got times=0"):
        Repeated(0)


def test_repeated_samples_have_copy_numbers_that_resuming_keeps() -> None:
    order = TrainingOrder(SAMPLES, 8, seed=0, labels=LABELS, draw=Balanced())
    whole = list(order)
    assert len({pick for batch in whole for pick in batch}) == 37
    resumed = TrainingOrder(SAMPLES, 8, seed=0, labels=LABELS, draw=Balanced(), done=(0, 2))
    assert list(resumed) == whole[2:]
    shares = [TrainingOrder(SAMPLES, 4, seed=0, labels=LABELS, draw=Balanced(), rank=r, world=2) for r in (0, 1)]
    assert [one + other for one, other in zip(*shares, strict=True)] == whole


def test_label_sets_are_split_by_their_rarest_label() -> None:
    sets = [(0,)] * 20 + [(0, 1)] * 5 + [()] * 5
    held_out = [split_folds(sets, ("a", "b"), 5, fold)[1] for fold in range(5)]
    assert all(
        [sum(sample in held for sample in range(start, stop)) for start, stop in ((0, 20), (20, 25), (25, 30))]
        == [4, 1, 1]
        for held in held_out
    )
    assert split_folds([(0,), (0,), (0, 1)], ("a", "b"), 2, 0)[0][-1] == 2


MARKS = [0, 0, 0, 1, 0, 2, 0, 1]


class Given(Shuffled):
    def __call__(self, samples, labels, seed):
        return list(samples)


@pytest.mark.parametrize(
    ("batch", "order"),
    [
        (1, [0, 1, 2, 3, 4, 5, 6, 7]),
        (2, [0, 3, 1, 5, 2, 7, 4, 6]),
        (3, [0, 3, 5, 1, 7, 2, 4, 6]),
        (5, [0, 3, 5, 1, 2, 4, 7, 6]),
        (9, [0, 3, 5, 1, 2, 4, 6, 7]),
    ],
)
def test_apart_fills_batches_with_distinct_labels_first(batch: int, order: list[int]) -> None:
    assert Apart(Given(), batch)(range(8), MARKS, 0) == order


def test_apart_permutes_a_draw_into_distinct_batches() -> None:
    labels = np.random.default_rng(0).zipf(1.6, 3000).clip(max=300).tolist()
    drawn = Balanced()(range(3000), labels, 5)
    order = Apart(Balanced(), 16)(range(3000), labels, 5)
    assert Counter(order) == Counter(drawn)
    for start in range(0, 3000, 16):
        batch = [labels[sample] for sample in order[start : start + 16]]
        left = {labels[sample] for sample in order[start:]}
        assert len(set(batch)) == min(16, len(left))


def test_apart_is_as_fast_for_one_label_as_for_many() -> None:
    # 100,000 in batches of 2 took minutes where each batch went through all that wait.
    assert sorted(Apart(Shuffled(), 2)(range(100_000), [0] * 100_000, 0)) == list(range(100_000))


def test_global_batches_are_distinct() -> None:
    labels = [number % 6 for number in range(24)]
    alone = list(TrainingOrder(range(24), 6, 0, labels=labels, draw=Apart(Shuffled(), 6)))
    ranks = [TrainingOrder(range(24), 3, 0, labels=labels, draw=Apart(Shuffled(), 6), rank=rank, world=2)
             for rank in range(2)]  # fmt: skip
    assert [[*one, *other] for one, other in zip(*ranks, strict=True)] == alone
    assert all(sorted(labels[pick.sample] for pick in batch) == [*range(6)] for batch in alone)
