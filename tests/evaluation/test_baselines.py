import pytest

from vitkit.data.images import Images
from vitkit.evaluation.baselines import evaluate_baselines


@pytest.mark.parametrize(
    ("source", "side", "neighbours", "regression"), [("digits", 8, 0.985, 0.96), ("mnist5k", 28, 0.93, 0.90)]
)
def test_raw_pixels_reach_the_published_figures(source, side, neighbours, regression):
    scores = evaluate_baselines(Images(source, size=(side, side), mean=(0.5,), std=(0.5,)))
    assert [score.name for score in scores] == [
        "most frequent class",
        "5-NN on pixels",
        "logistic regression on pixels",
    ]
    # 360 and 1,000 validation pictures: one standard error is 0.01 or less.
    assert [score.accuracy for score in scores] == pytest.approx([0.1, neighbours, regression], abs=0.02)
