import pytest

from vitkit.data.images import Images
from vitkit.data.preprocess import Preprocess
from vitkit.evaluation.baselines import evaluate_baselines


@pytest.mark.parametrize(
    ("source", "side", "neighbours", "regression"), [("digits", 8, 0.98, 0.95), ("mnist5k", 28, 0.95, 0.89)]
)
def test_baselines_reach_the_expected_accuracy(source, side, neighbours, regression):
    scores = evaluate_baselines(Images(source, preprocess=Preprocess((side, side), (0.5,), (0.5,))))
    assert (
        [*scores.accuracy]
        == [*scores.macro_recall]
        == ["most frequent class", "20-NN on pixels", "linear probe on pixels"]
    )
    # 360 and 1,000 validation pictures: one standard error is 0.01 or less.
    assert [*scores.accuracy.values()] == pytest.approx([0.1, neighbours, regression], abs=0.02)
