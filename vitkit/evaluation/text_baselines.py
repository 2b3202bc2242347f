"""Bits per byte of texts without a network: a compressor, and counts of the bytes that follow others.

n bytes of held-out texts, L bytes of training texts.
"""

import lzma
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, UInt64

from vitkit.support.errors import format_count

MOST = 2**26  # bytes of training texts that baselines read: as many as the compressor looks back
ORDERS = 6


def compress_primed(training: bytes, held_out: bytes) -> float:
    """Return the bits per byte of held-out texts for `xz -9e` that has compressed the training texts before."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": MOST}]
    before, after = (
        len(lzma.compress(content, lzma.FORMAT_XZ, filters=filters)) for content in (training, training + held_out)
    )
    return 8 * (after - before) / len(held_out)


def score_ngrams(training: bytes, held_out: bytes, orders: int = ORDERS) -> list[float]:
    """Return the bits per byte of held-out texts for each n-gram of bytes from 1 to `orders`, at most 8.

    The n-gram of n bytes gives the last of them a weight of (count + kinds * p) / (total + kinds) behind the others,
    where p is the probability of the shorter n-gram and `kinds` the number of different bytes there (Witten and Bell,
    https://doi.org/10.1109/18.87000, method C). Behind bytes that no training text has, p stays.
    """
    probability = np.full(len(held_out), 1 / 256)
    bits: list[float] = []
    for order in range(1, orders + 1):
        grams, counts = np.unique(pack_grams(training, order), return_counts=True)
        contexts, firsts = np.unique(grams >> np.uint64(8), return_index=True)
        kinds = np.diff(np.append(firsts, len(grams)))
        totals = np.add.reduceat(counts, firsts) if len(grams) else counts
        asked = pack_grams(held_out, order)
        total, kind = (look_up_counts(contexts, values, asked >> np.uint64(8)) for values in (totals, kinds))
        shorter = probability[order - 1 :]  # the first bytes have no longer n-gram
        longer = (look_up_counts(grams, counts, asked) + kind * shorter) / np.maximum(total + kind, 1)
        probability[order - 1 :] = np.where(total > 0, longer, shorter)
        bits.append(float(-np.log2(probability).mean()))
    return bits


def pack_grams(content: bytes, order: int) -> UInt64[np.ndarray, " grams"]:
    """Return each `order` consecutive bytes as a number."""
    values = np.frombuffer(content, np.uint8).astype(np.uint64)
    count = max(0, len(values) - order + 1)
    grams = np.zeros(count, np.uint64)
    for place in range(order):
        grams = grams << np.uint64(8) | values[place : place + count]
    return grams


def look_up_counts(
    keys: UInt64[np.ndarray, " keys"], values: np.ndarray, asked: UInt64[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Return the value of each asked key, 0 for those that are not among the sorted keys."""
    if not len(keys):
        return np.zeros(len(asked))
    places = np.searchsorted(keys, asked).clip(max=len(keys) - 1)
    return np.where(keys[places] == asked, values[places], 0).astype(float)


def score_text_baselines(training: bytes, held_out: bytes) -> dict[str, float]:
    """Return the bits per byte of all baselines by their names."""
    part = ""
    if len(training) > MOST:
        training, part = training[-MOST:], f", last {format_count(MOST, 'bytes')}"
    ngrams = score_ngrams(training, held_out)
    names = [f"{order}-grams{part}" for order in range(1, len(ngrams) + 1)]
    return {**dict(zip(names, ngrams, strict=True)), f"xz -9e{part}": compress_primed(training, held_out)}


def list_lower_baselines(bits: float, baselines: Mapping[str, float]) -> list[str]:
    """Return a sentence that names the baselines that need fewer bits per byte than the model; none if none does."""
    lower = [f"{name} ({baseline:.3f})" for name, baseline in baselines.items() if baseline < bits]
    return [f"bits per byte: {bits:.3f}, worse than {', '.join(lower)}"] if lower else []


def join_texts(texts: Sequence[str]) -> bytes:
    return "\n".join(texts).encode()
