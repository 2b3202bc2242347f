"""Baselines of texts against their definitions, byte by byte."""

import math
import random
from collections import Counter, defaultdict

import pytest

from vitkit.evaluation.text_baselines import compress_primed, list_lower_baselines, score_ngrams


def make_text(seed: int, size: int) -> bytes:
    generator = random.Random(seed)
    return b" ".join(generator.choice([b"ab", b"abba", b"cab", b"\xff"]) for _ in range(size))


@pytest.mark.parametrize(("training", "held_out"), [(make_text(0, 200), make_text(1, 60)), (b"a", b"ab"), (b"", b"xy")])
def test_ngrams_are_those_of_a_loop_over_bytes(training: bytes, held_out: bytes) -> None:
    counts: defaultdict[bytes, Counter[int]] = defaultdict(Counter)
    for length in range(4):
        for place in range(length, len(training)):
            counts[training[place - length : place]][training[place]] += 1
    expected = []
    for longest in range(4):
        bits = 0.0
        for place, byte in enumerate(held_out):
            probability = 1 / 256
            for length in range(min(longest, place) + 1):
                following = counts.get(held_out[place - length : place], Counter())
                kinds, total = len(following), following.total()
                if total:
                    probability = (following[byte] + kinds * probability) / (total + kinds)
            bits -= math.log2(probability)
        expected.append(bits / len(held_out))
    assert score_ngrams(training, held_out, 4) == pytest.approx(expected, abs=1e-12)


def test_compressor_knows_the_training_texts() -> None:
    text = make_text(2, 400)
    assert compress_primed(text, text) < 0.2 * compress_primed(b"", text)


def test_baselines_that_win_are_named_in_one_sentence() -> None:
    assert list_lower_baselines(2.5, {"1-grams": 4.0, "xz": 2.25, "6-grams": 2.0}) == [
        "bits per byte: 2.500, worse than xz (2.250), 6-grams (2.000)"
    ]
    assert list_lower_baselines(2.0, {"xz": 2.25}) == []
