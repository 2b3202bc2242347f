"""Warnings about unusual attention, as sentences of texts_LANGUAGE.json beside this file.

P prompts.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vitkit.interpret.measure.ablation import Ablation
from vitkit.interpret.measure.effects import EFFECT_TITLES
from vitkit.interpret.measure.statistics import Statistics
from vitkit.support.texts import Sentence

PACKAGE = "vitkit.interpret.measure"  # of the texts
# Maps of independent softmaxes of normal scores have a mean cosine of 0.38 (scores of deviation 1, 197 tokens): heads
# above this all do the same, or nothing.
SIMILAR = 0.95
DIAGONAL = 0.9  # share of a token's attention on itself, where 1 / T is chance
SINK = 0.5  # one key gets more than all others together
UNIFORM = 0.98  # of ln T, the entropy of equal weights; that of scores of deviation 0.5 is 0.976 at 197 tokens
NEGLIGIBLE = 0.005  # half a percent of probability, or a cosine distance: an angle of 6 degrees
PROMPTS = 0.95  # mean correlation between the maps of two prompts


def flag_statistics(statistics: Statistics) -> list[Sentence]:
    """Return the warnings about each layer, none for usual ones."""
    return [sentence for index in range(len(statistics.layers)) for sentence in flag_layer(statistics, index)]


def flag_layer(statistics: Statistics, index: int) -> list[Sentence]:
    """Return the warnings about a layer; one about all of its heads replaces those about each."""
    layer = statistics.layers[index]
    sentences: list[Sentence] = []
    matrix = statistics.similarity[index]
    H = len(matrix)
    if H > 1 and (mean := (matrix.sum() - matrix.trace()).item() / (H * H - H)) > SIMILAR:
        sentences.append(Sentence("flagAlike", {"layer": layer, "mean": mean}, PACKAGE))
    max_entropy = math.log(statistics.layout.num_tokens)
    for name, limit, scale, text in (
        ("diagonal", DIAGONAL, 1.0, "flagItself"),
        ("entropy", UNIFORM, max_entropy, "flagEverywhere"),
        ("sink", SINK, 1.0, "flagSink"),
    ):
        values = statistics.measures[name][index].mean / scale if scale else torch.zeros(H)
        unusual = (values > limit).nonzero().flatten().tolist()
        if len(unusual) == H:
            sentences.append(Sentence(text, {"layer": layer, "value": values.mean().item()}, PACKAGE))
        else:
            for head in unusual:
                facts = {"layer": layer, "head": head, "value": values[head].item()}
                sentences.append(Sentence(f"{text}Head", facts, PACKAGE))
    return sentences


def flag_ablation(ablation: Ablation) -> list[Sentence]:
    """Return a warning for each layer where, with 95 % confidence, no head has an effect above NEGLIGIBLE."""
    sentences: list[Sentence] = []
    effect = ablation.main_effect
    for layer, summary in zip(ablation.layers, ablation.removed[effect], strict=True):
        most = max(summary.low.abs().max().item(), summary.high.abs().max().item())
        if most < NEGLIGIBLE:  # false for nan, the interval of a single image
            facts = {"layer": layer, "effect": EFFECT_TITLES[effect], "most": most}
            sentences.append(Sentence("flagNegligible", facts, PACKAGE))
    return sentences


def flag_prompts(maps: Float[Tensor, "P ..."], prompts: Sequence[str]) -> list[Sentence]:
    """Return a warning if an image's maps for several prompts are all the same, by their mean correlation.

    The cosines of maps are always high. Raises: ValueError for fewer than two maps.
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
