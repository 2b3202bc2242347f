"""What is odd about how a model attends, in sentences of texts_LANGUAGE.json beside this file.

P prompts.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vitkit.interpret.measure.ablation import Ablation
from vitkit.interpret.measure.statistics import Statistics
from vitkit.support.texts import Sentence

PACKAGE = "vitkit.interpret.measure"  # where the sentences are
# Maps of independent softmaxes of normal scores have a mean cosine of 0.38 (scores of deviation 1, 197 tokens): so
# alike are heads that all do the same, or nothing.
ALIKE = 0.95
ITSELF = 0.9  # of a token's attention, where 1 / T is chance
SINK = 0.5  # one key gets more than all others together
EVERYWHERE = 0.98  # of ln T, the entropy of equal weights; that of scores of deviation 0.5 is 0.976 at 197 tokens
NEGLIGIBLE = 0.005  # half a percent of probability, or 1 - cosine of a vector: a turn of 6 degrees
PROMPTS = 0.95  # correlation of the maps of any two prompts on average


def flags(statistics: Statistics) -> list[Sentence]:
    """Layer by layer; none where nothing is odd."""
    return [sentence for place in range(len(statistics.layers)) for sentence in of_layer(statistics, place)]


def of_layer(statistics: Statistics, place: int) -> list[Sentence]:
    """A layer that is called odd as a whole is not called so head by head."""
    layer = statistics.layers[place]
    found: list[Sentence] = []
    matrix = statistics.similarity[place]
    H = len(matrix)
    if H > 1 and (mean := (matrix.sum() - matrix.trace()).item() / (H * H - H)) > ALIKE:
        found.append(Sentence("flagAlike", {"layer": layer, "mean": mean}, PACKAGE))
    most = math.log(statistics.layout.tokens)
    for name, limit, scale, text in (
        ("diagonal", ITSELF, 1.0, "flagItself"),
        ("entropy", EVERYWHERE, most, "flagEverywhere"),
        ("sink", SINK, 1.0, "flagSink"),
    ):
        values = statistics.measures[name][place].mean / scale if scale else torch.zeros(H)
        odd = (values > limit).nonzero().flatten().tolist()
        if len(odd) == H:
            found.append(Sentence(text, {"layer": layer, "value": values.mean().item()}, PACKAGE))
        else:
            heads = [{"layer": layer, "head": head, "value": values[head].item()} for head in odd]
            found += [Sentence(f"{text}Head", one, PACKAGE) for one in heads]
    return found


def ablation_flags(ablation: Ablation) -> list[Sentence]:
    """Layers whose maps explain nothing of the answer: with 95 % no head changes it by more than NEGLIGIBLE."""
    found: list[Sentence] = []
    name = "probability" if "probability" in ablation.removed else "turn"
    for layer, summary in zip(ablation.layers, ablation.removed[name], strict=True):
        most = max(summary.low.abs().max().item(), summary.high.abs().max().item())
        if most < NEGLIGIBLE:  # not for nan, of one picture
            found.append(Sentence("flagNegligible", {"layer": layer, "effect": name, "most": most}, PACKAGE))
    return found


def prompt_flags(maps: Float[Tensor, "P ..."], prompts: Sequence[str]) -> list[Sentence]:
    """Whether maps of one picture for several prompts are one map; correlation, as cosines of maps are always high.

    Raises: ValueError for fewer than two.
    """
    if len(maps) < 2 or len(maps) != len(prompts):
        raise ValueError(f"maps must be of at least 2 prompts, one each, got {len(maps)} for {len(prompts)} prompts")
    flat = maps.flatten(1).double()
    flat = flat - flat.mean(1, keepdim=True)
    norms = flat.norm(dim=1)
    if constant := [prompt for prompt, norm in zip(prompts, norms.tolist(), strict=True) if norm == 0]:
        return [Sentence("flagConstant", {"prompts": ", ".join(map(repr, constant))}, PACKAGE)]
    unit = flat / norms[:, None]
    P = len(maps)
    mean = ((unit @ unit.mT).sum() - P).item() / (P * P - P)
    if mean <= PROMPTS:
        return []
    return [Sentence("flagPrompts", {"mean": mean, "prompts": P}, PACKAGE)]
