import numpy as np
import pytest
import torch
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg

from vitkit.data.tokenizer import Tokenizer
from vitkit.interpret.draw.word_strip import draw_tokens, spell_tokens


def test_each_id_is_spelt() -> None:
    tokenizer = Tokenizer()
    ids = tokenizer("a photo of a  CAT &amp; dog")[0].tolist()
    assert spell_tokens(tokenizer, ids) == ["<start>", "a", "photo", "of", "a", "cat", "&", "dog", "<end>"]


def test_boxes_have_the_colours_of_weights_in_order() -> None:
    words, weights = ["<start>", "a", "$x_", "", "cat"], torch.tensor([0.1, 0.0, 0.4, 0.2, 0.3])
    axes = draw_tokens(words, weights, caption="text").axes[0]
    assert [text.get_text() for text in axes.texts] == ["<start>", "a", "$x_", "□", "cat"]
    for patch, weight in zip(axes.patches, weights.tolist(), strict=True):
        assert np.allclose(patch.get_facecolor(), colormaps["viridis"](weight / 0.4), atol=0.005)
    lefts = [patch.get_x() for patch in axes.patches]
    assert lefts == sorted(lefts)


def test_words_fit_their_boxes_and_lines_break() -> None:
    words = ["an", "antidisestablishmentarianism", "i", "日本"] * 6
    figure = draw_tokens(words, torch.rand(len(words)))
    canvas = FigureCanvasAgg(figure)
    with pytest.warns(UserWarning, match="missing from font"):
        canvas.draw()
    axes = figure.axes[0]
    for text, patch in zip(axes.texts, axes.patches, strict=True):
        inner, outer = text.get_window_extent(), patch.get_window_extent()
        assert inner.x0 >= outer.x0 and inner.x1 <= outer.x1, text.get_text()
        assert outer.x1 <= canvas.get_width_height()[0]
    assert len({patch.get_y() for patch in axes.patches}) > 1
    boxes = [patch.get_bbox() for patch in axes.patches]
    for before, after in zip(boxes, boxes[1:], strict=False):
        assert after.x0 >= before.x1 or after.y0 >= before.y1


def test_unequal_words_and_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="weights must be one for each word, got 3 for 2 words"):
        draw_tokens(["a", "b"], torch.zeros(3))
