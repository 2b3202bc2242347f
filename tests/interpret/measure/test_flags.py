import pytest
import torch
from torch import Tensor

from vitkit.interpret.maps.layout import Layout
from vitkit.interpret.measure.flags import flag_prompts, flag_statistics
from vitkit.interpret.measure.moments import Moments
from vitkit.interpret.measure.statistics import Statistics, compute_patch_distances, group_tokens, measure_weights

LAYOUT = Layout(("cls",), (4, 6), (8, 8))
T, H = 25, 3


def measure_layers(*layers: Tensor) -> Statistics:
    """Compute the statistics of weights (B, H, T, T)."""
    names = tuple(f"layer {index}" for index in range(len(layers)))
    columns: dict[str, list[Moments]] = {}
    for weights in layers:
        for name, values in measure_weights(weights, group_tokens(LAYOUT), 1, compute_patch_distances(LAYOUT)).items():
            columns.setdefault(name, []).append(Moments())
            columns[name][-1].add(values)
    similarity = tuple(moments.mean for moments in columns.pop("similarity"))
    measures = {name: tuple(moments.summarise() for moments in column) for name, column in columns.items()}
    return Statistics(names, 2, measures, similarity, LAYOUT)


def list_flags(*layers: Tensor) -> list[str]:
    return [*map(str, flag_statistics(measure_layers(*layers)))]


@pytest.fixture
def random() -> Tensor:
    return (2 * torch.randn(2, H, T, T, dtype=torch.float64)).softmax(-1)


def test_random_attention_has_no_warning(random: Tensor) -> None:
    assert list_flags(random, random) == []


def test_equal_heads_are_flagged(random: Tensor) -> None:
    alike = random[:, :1] * torch.ones(1, H, 1, 1, dtype=torch.float64)
    assert list_flags(random, alike) == [
        "all heads of layer 1 have nearly the same attention maps (mean cosine similarity 1.00)"
    ]


def test_a_layer_on_the_diagonal_is_flagged(random: Tensor) -> None:
    itself = 0.95 * torch.eye(T, dtype=torch.float64) + 0.05 * random
    assert "all heads of layer 0 attend almost only to the query itself (diagonal 0.95)" in list_flags(itself)


def test_a_head_with_a_sink_is_flagged(random: Tensor) -> None:
    random = random.clone()
    random[:, 2] *= 0.3
    random[:, 2, :, 7] += 0.7
    assert list_flags(random) == ["head 2 of layer 0 gives most of its attention to one token of an image (sink 0.71)"]


def test_a_nearly_uniform_layer_is_flagged() -> None:
    even = (0.1 * torch.randn(2, H, T, T, dtype=torch.float64)).softmax(-1)
    similar, uniform = list_flags(even)
    assert similar.endswith("(mean cosine similarity 0.99)")
    assert uniform == "attention of all heads of layer 0 is nearly uniform (entropy 99.9% of the maximum)"


def test_a_single_head_is_not_compared_with_itself(random: Tensor) -> None:
    assert list_flags(random[:, :1]) == []


def test_equal_maps_of_several_prompts_are_flagged() -> None:
    map = torch.rand(4, 6)
    same = torch.stack([map, map + 0.01 * torch.rand(4, 6), 2 * map])
    (sentence,) = flag_prompts(same, ["cat", "dog", "car"])
    assert str(sentence) == "this map does not depend on the prompt (mean correlation 1.00 between 3 prompts)"
    assert flag_prompts(torch.rand(3, 4, 6), ["cat", "dog", "car"]) == []


def test_a_constant_map_is_flagged() -> None:
    maps = torch.stack([torch.ones(4, 6), torch.rand(4, 6)])
    (sentence,) = flag_prompts(maps, ["cat", "dog"])
    assert str(sentence) == "this map is uninformative: it has the same value everywhere for 'cat'"


def test_one_prompt_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="at least 2 prompts"):
        flag_prompts(torch.rand(1, 4, 6), ["cat"])
