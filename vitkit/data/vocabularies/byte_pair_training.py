"""Byte-level byte-pair encoding, trained on the texts of a data set. https://aclanthology.org/P16-1162

Its ids spell any text exactly, since they include the 256 bytes.
"""

import json
from collections.abc import Iterable, Sequence
from importlib.util import find_spec

from vitkit.data.vocabularies.tokenizer_format import format_byte_pairs
from vitkit.data.vocabularies.vocabulary import END, check_names
from vitkit.support.errors import format_few

RAREST = 2  # times that a pair must occur: one that occurs once would only be memorised


def train_byte_pairs(texts: Iterable[str], size: int, special: Sequence[str] = ()) -> str:
    """Return the text of a tokenizer.json with at most `size` ids, those of `<|end|>` and `special` among them.

    Equal texts give equal files, whatever their order. There are fewer ids if no more pairs occur twice.

    Args: special: names of further ids that no text can spell.
    Raises: ValueError for a size that leaves no pairs, and for names that are words of the texts.
    """
    if find_spec("tokenizers") is None:
        raise ValueError('a vocabulary is trained by tokenizers, which is missing; pip install "vitkit[tokenizers]"')
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    names = [END, *special]
    check_names(names)
    if size <= 256 + len(names):
        raise ValueError(f"vocabulary must be more than 256 bytes and {', '.join(names)}, got vocabulary={size}")
    file = Tokenizer(models.BPE())
    file.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=RAREST,
        special_tokens=names,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    file.train_from_iterator(texts, trainer)
    model = json.loads(file.to_str())["model"]
    if words := {*names} & {"".join(merge) for merge in model["merges"]}:
        raise ValueError(f"special must hold names that are no words of the texts, got {format_few(sorted(words))}")
    return format_byte_pairs(model["vocab"], model["merges"], names, end=END)
