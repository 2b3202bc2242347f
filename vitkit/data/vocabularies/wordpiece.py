"""BERT's WordPiece vocabularies, from the lines of a vocab.txt. https://arxiv.org/abs/1810.04805"""

from collections import Counter
from pathlib import Path

from vitkit.data.vocabularies.tokenizer_format import format_tokenizer_json
from vitkit.data.vocabularies.tokenizer_json import summarise_errors
from vitkit.data.vocabularies.tokenizer_schema import read_text
from vitkit.data.vocabularies.vocabulary import LARGEST_ID
from vitkit.support.errors import format_few

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LARGEST_FILE = 2**24  # bytes; that of multilingual BERT, of 119,547 lines, has 1 MB


def read_wordpieces(path: Path) -> list[str]:
    """Return the tokens in the lines of a vocab.txt; their places are their ids.

    Raises: ValueError, one line, for empty lines, tokens that occur twice, and files without BERT's special tokens.
    """
    with summarise_errors(f"{path} must be a vocab.txt"):
        tokens = read_text(path, LARGEST_FILE).removesuffix("\n").split("\n")
        tokens = [token.removesuffix("\r") for token in tokens]
        if empty := [place for place, token in enumerate(tokens, 1) if not token]:
            raise ValueError(f"every line must hold a token, got none in line {format_few(empty)}")
        if len(tokens) > LARGEST_ID:
            raise ValueError(f"it must hold at most {LARGEST_ID:,} tokens, got {len(tokens):,}")
        if twice := [token for token, count in Counter(tokens).items() if count > 1]:
            raise ValueError(f"tokens must differ, got {format_few(map(repr, twice))} twice")
        if absent := [token for token in SPECIAL[:4] if token not in tokens]:
            raise ValueError(f"it must hold {', '.join(SPECIAL[:4])}, got none of {', '.join(absent)}")
    return tokens


def format_wordpieces(
    tokens: list[str], *, lower: bool = True, strip_accents: bool | None = None, chinese: bool = True
) -> str:
    """Return the text of a tokenizer.json that reads texts as BERT does.

    Args:
        lower: read texts in lower case (do_lower_case).
        strip_accents: remove accents; by default if texts are read in lower case.
        chinese: separate CJK ideographs (tokenize_chinese_chars).
    """
    vocab = {token: place for place, token in enumerate(tokens)}
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
    model |= {"max_input_chars_per_word": 100, "vocab": vocab}
    cleaning = {"clean_text": True, "handle_chinese_chars": chinese, "strip_accents": strip_accents, "lowercase": lower}
    parts = {
        "normalizer": {"type": "BertNormalizer", **cleaning},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    }
    special = {name: vocab[name] for name in SPECIAL if name in vocab}
    return format_tokenizer_json(model, parts, special, begin="[CLS]", finish="[SEP]", pad="[PAD]")
