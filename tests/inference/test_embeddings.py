"""Embeddings of many texts equal those of one text at a time, without repeated or padded computation."""

from collections.abc import Iterator

import pytest
import torch
from open_clip import tokenize
from open_clip.zero_shot_classifier import build_zero_shot_classifier
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.testing import assert_close

from vitkit.data.tokenizer import Tokenizer
from vitkit.inference import embeddings
from vitkit.inference.embeddings import encode_classes, encode_texts, fill_templates
from vitkit.models import CLIP, TextTower, ViT
from vitkit.nn import Encoder, Last

TEXTS = ("a red heart", "cat", "a small grey cat that sleeps on a red chair", "Cat", "a red heart", "two cats")


def clip(text: TextTower) -> CLIP:
    model = CLIP(ViT(Encoder(32, 1, 2), (16, 16), (8, 8), 24), text)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name != "log_scale":
                parameter.normal_(std=0.3)
    return model.eval()


@pytest.fixture
def model() -> CLIP:
    return clip(TextTower(Encoder(32, 2, 2, causal=True), outputs=24))


@pytest.fixture
def shapes(model: CLIP) -> Iterator[list[tuple[int, ...]]]:
    """Return a list to which the shapes of the text tower's inputs are added."""
    shapes: list[tuple[int, ...]] = []

    def record(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        shapes.append(tuple(arguments[0].shape))

    hook = model.text.register_forward_pre_hook(record)
    yield shapes
    hook.remove()


def test_embeddings_do_not_depend_on_padding(model: CLIP) -> None:
    ids = tokenize(list(TEXTS))
    assert ids.shape == (6, 77)
    with torch.no_grad():
        expected = model.encode_text(ids)
        junk = torch.where(ids == 0, torch.randint(49406, ids.shape), ids)
        assert_close(model.encode_text(junk), expected, rtol=0, atol=1e-5)
    assert_close(encode_texts(model, Tokenizer(), TEXTS), expected, rtol=0, atol=1e-5)
    assert (expected[0] - expected[1]).abs().max() > 0.01


def test_equal_texts_are_encoded_once_in_batches_of_similar_length(model: CLIP, shapes: list[tuple[int, ...]]) -> None:
    counts: list[int] = []
    encode_texts(model, Tokenizer(), TEXTS, batch=2, advance=counts.append)
    # "cat" (twice: in either case) and "two cats", then the other two
    assert shapes == [(2, 4), (2, 12)]
    assert counts == [3, 3]


def test_tower_that_reads_padding_gets_whole_rows() -> None:
    siglip = clip(TextTower(Encoder(32, 1, 2), context=16, outputs=24, pool=Last))
    encoded = encode_texts(siglip, Tokenizer(16, whole=True), TEXTS, batch=3)
    with torch.no_grad():
        expected = siglip.encode_text(tokenize(list(TEXTS), context_length=16))
    assert_close(encoded, expected)


def test_empty_list_of_texts_gives_no_rows(model: CLIP) -> None:
    assert encode_texts(model, Tokenizer(), []).shape == (0, 24)


def test_embeddings_have_at_least_float32_precision(model: CLIP) -> None:
    assert encode_texts(model.double(), Tokenizer(), TEXTS).dtype == torch.float64
    assert encode_texts(model.bfloat16(), Tokenizer(), TEXTS).dtype == torch.float32


def test_texts_that_do_not_fit_follow_the_overflow_policy(model: CLIP) -> None:
    with pytest.warns(UserWarning, match="1 of 6 texts do not fit into 8 ids, the first: 'a small"):
        truncated = encode_texts(model, Tokenizer(8), TEXTS)
    with pytest.raises(ValueError, match="1 of 6 texts do not fit into 8 ids"):
        encode_texts(model, Tokenizer(8, overflow="error"), TEXTS)
    assert_close(encode_texts(model, Tokenizer(8, overflow="truncate"), TEXTS), truncated)


def test_empty_batch_is_refused(model: CLIP) -> None:
    with pytest.raises(ValueError, match="batch must be at least 1, got batch=0"):
        encode_texts(model, Tokenizer(), TEXTS, batch=0)


def test_class_embedding_is_the_mean_of_its_prompts(model: CLIP) -> None:
    classes, templates = ("cat", "red heart"), ("a photo of a {}.", "{}", "my {} at night")
    with torch.no_grad():
        rows = [[model.encode_text(Tokenizer()(text.format(name)))[0] for text in templates] for name in classes]
    expected = torch.stack([normalize(torch.stack(row).mean(0), dim=0) for row in rows])
    assert_close(encode_classes(model, Tokenizer(), classes, templates).embeddings, expected)


class Peer(nn.Module):
    """A CLIP with the interface of open_clip's."""

    def __init__(self, model: CLIP) -> None:
        super().__init__()
        self.model = model

    def encode_text(self, ids: Tensor, normalize: bool) -> Tensor:
        return self.model.encode_text(ids)


@pytest.mark.parametrize("limit", [2**17, 4])
def test_class_embeddings_equal_open_clip_s(model: CLIP, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "MAX_PROMPTS", limit)
    classes, templates = ["cat", "red heart", "tench, a fish", "cat"], ["a photo of a {}.", "{}", "art of the {}."]
    expected = build_zero_shot_classifier(Peer(model), tokenize, classes, templates).T
    result = encode_classes(model, Tokenizer(), classes, templates)
    assert_close(result.embeddings, expected, rtol=0, atol=1e-5)
    assert result.cut == 0


def test_truncated_prompts_are_counted(model: CLIP) -> None:
    assert encode_classes(model, Tokenizer(6), ("cat", "a very red heart"), ("{}", "this is {}")).cut == 1


def test_class_name_may_contain_braces() -> None:
    assert fill_templates(("{x}", "{}"), ("a {}",)) == ["a {x}", "a {}"]
