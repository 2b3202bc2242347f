import pytest
import torch
from torch import Tensor

from vitkit.interpret.maps.layout import Layout
from vitkit.interpret.measure.flags import flag_prompts, flag_statistics
from vitkit.interpret.measure.moments import Moments
from vitkit.interpret.measure.statistics import Statistics, compute_patch_distances, group_tokens, measure_weights

LAYOUT = Layout(("cls",), (4, 6), (8, 8))
T, H = 25, 3


def found(*layers: Tensor) -> Statistics:
    """Of weights (B, H, T, T)."""
    names = tuple(f"layer {place}" for place in range(len(layers)))
    columns: dict[str, list[Moments]] = {}
    for weights in layers:
        for name, values in measure_weights(weights, group_tokens(LAYOUT), 1, compute_patch_distances(LAYOUT)).items():
            columns.setdefault(name, []).append(Moments())
            columns[name][-1].add(values)
    similarity = tuple(one.mean for one in columns.pop("similarity"))
    measures = {name: tuple(moments.summarise() for moments in column) for name, column in columns.items()}
    return Statistics(names, 2, measures, similarity, LAYOUT)


def sentences(*layers: Tensor) -> list[str]:
    return [*map(str, flag_statistics(found(*layers)))]


@pytest.fixture
def random() -> Tensor:
    return (2 * torch.randn(2, H, T, T, dtype=torch.float64)).softmax(-1)


def test_nothing_is_said_where_nothing_is_odd(random: Tensor) -> None:
    assert sentences(random, random) == []


def test_heads_that_look_alike_are_told(random: Tensor) -> None:
    alike = random[:, :1] * torch.ones(1, H, 1, 1, dtype=torch.float64)
    assert sentences(random, alike) == ["all heads of layer 1 look alike (mean cosine 1.00)"]


def test_a_layer_that_only_looks_at_itself_is_told(random: Tensor) -> None:
    itself = 0.95 * torch.eye(T, dtype=torch.float64) + 0.05 * random
    assert "layer 0 only looks at itself (diagonal share 0.95)" in sentences(itself)


def test_a_head_that_looks_at_one_token_is_told(random: Tensor) -> None:
    random = random.clone()
    random[:, 2] *= 0.3
    random[:, 2, :, 7] += 0.7
    assert sentences(random) == ["head 2 of layer 0 looks at one token of a picture (sink 0.71)"]


def test_a_layer_that_looks_everywhere_alike_is_told() -> None:
    even = (0.1 * torch.randn(2, H, T, T, dtype=torch.float64)).softmax(-1)
    told = sentences(even)
    assert told[0].startswith("all heads of layer 0 look alike (mean cosine 0.99)")
    assert told[1] == "layer 0 looks everywhere alike (entropy 99.9% of the most)"


def test_a_single_head_is_not_alike_itself(random: Tensor) -> None:
    assert sentences(random[:, :1]) == []


def test_a_map_that_is_the_same_for_every_prompt_is_told() -> None:
    map = torch.rand(4, 6)
    same = torch.stack([map, map + 0.01 * torch.rand(4, 6), 2 * map])
    (told,) = flag_prompts(same, ["cat", "dog", "car"])
    assert str(told) == "this map does not depend on the prompt (mean correlation 1.00 between 3 prompts)"
    assert flag_prompts(torch.rand(3, 4, 6), ["cat", "dog", "car"]) == []


def test_a_map_without_differences_says_nothing() -> None:
    maps = torch.stack([torch.ones(4, 6), torch.rand(4, 6)])
    (told,) = flag_prompts(maps, ["cat", "dog"])
    assert str(told) == "this map says nothing: it is the same everywhere for 'cat'"


def test_one_prompt_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="at least 2 prompts"):
        flag_prompts(torch.rand(1, 4, 6), ["cat"])
