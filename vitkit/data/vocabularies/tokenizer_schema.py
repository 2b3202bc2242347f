"""The known parts of a tokenizer.json and their fields; a file with others is refused.

`tokenizers` ignores unknown fields, gives other ids to added tokens whose id is taken, and panics on some files.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vitkit.data.vocabularies.split_patterns import EQUAL, check_pattern
from vitkit.data.vocabularies.text_growth import check_growth
from vitkit.data.vocabularies.vocabulary import LARGEST_ID, is_number
from vitkit.support.errors import format_few

LARGEST_FILE = 64 * 2**20  # bytes; Gemma 3's, of 262,145 tokens, has 33 MB
BYTE_LEVEL = {"add_prefix_space", "trim_offsets", "use_regex"}
METASPACE = {"replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"}  # the last two of old files
TOP = {
    *("version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder"),
    "model",
}
ADDED = {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}
PARTS: Mapping[str, Mapping[str, set[str]]] = {
    "normalizer": {
        "Sequence": {"normalizers"},
        "BertNormalizer": {"clean_text", "handle_chinese_chars", "strip_accents", "lowercase"},
        "Strip": {"strip_left", "strip_right"},
        "Precompiled": {"precompiled_charsmap"},
        "Replace": {"pattern", "content"},
        "Prepend": {"prepend"},
        **dict.fromkeys(("StripAccents", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Nmt", "ByteLevel"), set()),
    },
    "pre_tokenizer": {
        "Sequence": {"pretokenizers"},
        "ByteLevel": BYTE_LEVEL,
        "CharDelimiterSplit": {"delimiter"},
        "Metaspace": METASPACE,
        "Split": {"pattern", "behavior", "invert"},
        "Punctuation": {"behavior"},
        "Digits": {"individual_digits"},
        "FixedLength": {"length"},
        **dict.fromkeys(("BertPreTokenizer", "Whitespace", "WhitespaceSplit", "UnicodeScripts"), set()),
    },
    "post_processor": {
        "Sequence": {"processors"},
        "TemplateProcessing": {"single", "pair", "special_tokens"},
        "BertProcessing": {"sep", "cls"},
        "RobertaProcessing": {"sep", "cls", "trim_offsets", "add_prefix_space"},
        "ByteLevel": BYTE_LEVEL,
    },
    "decoder": {
        "Sequence": {"decoders"},
        "ByteLevel": BYTE_LEVEL,
        "WordPiece": {"prefix", "cleanup"},
        "Metaspace": METASPACE,
        "BPEDecoder": {"suffix"},
        "CTC": {"pad_token", "word_delimiter_token", "cleanup"},
        "Replace": {"pattern", "content"},
        "Strip": {"content", "start", "stop"},
        **dict.fromkeys(("Fuse", "ByteFallback"), set()),
    },
}
MODELS = {
    "BPE": {
        *("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback"),
        *("ignore_merges", "vocab", "merges"),
    },
    "Unigram": {"unk_id", "vocab", "byte_fallback"},
    "WordPiece": {"unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"},
    "WordLevel": {"vocab", "unk_token"},
}


class FileState(NamedTuple):
    """The state of a file, by which a cache notices that it has changed."""

    path: Path
    modified: int  # nanoseconds
    size: int


def find_state(path: Path) -> FileState:
    stat = path.stat()
    return FileState(path.resolve(), stat.st_mtime_ns, stat.st_size)


def read_text(path: Path, largest: int = LARGEST_FILE) -> str:
    """Return the text of a file. Raises: ValueError for a larger one, before it is read."""
    return read_bytes(path, largest).decode("utf-8")


def read_bytes(path: Path, largest: int = LARGEST_FILE) -> bytes:
    if (size := path.stat().st_size) > largest:
        raise ValueError(f"it must have at most {largest:,} bytes, got {size:,}")
    return path.read_bytes()


def parse_tokenizer_json(text: str) -> dict[str, Any]:
    """Return the content of a tokenizer.json.

    Raises: ValueError for unknown parts and invalid ids.
    """
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("its values must not be nested so deeply") from None
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise ValueError(f"it must hold a model, got {content!r:.80}")
    refuse_fields("it", content, TOP)
    for slot, kinds in PARTS.items():
        for part in walk_parts(slot, content.get(slot)):
            refuse_fields(slot, part, {"type", *kinds[part["type"]]})
            match part.get("pattern"):
                case {"Regex": str(pattern)}:
                    part["pattern"] = {"Regex": EQUAL.get(pattern, pattern)}
                    check_pattern(part["pattern"]["Regex"])
    slots = ("normalizer", "pre_tokenizer")
    check_growth([part for slot in slots for part in walk_parts(slot, content.get(slot))])
    match content.get("padding"):
        case None:
            pass
        case {"pad_id": number} if is_number(number):
            pass
        case padding:
            raise ValueError(f"padding must hold a pad_id, got {padding!r:.80}")
    _check_model(content["model"])
    _check_tokens(content)
    return content


def refuse_fields(place: str, content: Mapping[str, Any], fields: set[str]) -> None:
    if unknown := sorted(content.keys() - fields):
        raise ValueError(f"{place} must hold {', '.join(sorted(fields))}, got {format_few(unknown)[:80]}")


def walk_parts(slot: str, part: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the parts of a slot in order, including those in sequences."""
    if part is None:
        return
    if not isinstance(part, dict) or part.get("type") not in PARTS[slot] or depth > 8:
        kinds = ", ".join(sorted(PARTS[slot]))
        raise ValueError(f"{slot} must be one of {kinds}, nested at most 8 deep, got {part!r:.80}")
    yield part
    if part["type"] == "Sequence":
        (name,) = PARTS[slot]["Sequence"]
        if not isinstance(part.get(name), list):
            raise ValueError(f"{slot} must hold a list of {name}, got {part!r:.80}")
        for inner in part[name]:
            yield from walk_parts(slot, inner, depth + 1)


def _check_model(model: dict[str, Any]) -> None:
    kind = model.setdefault("type", _guess_kind(model))
    if kind not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {kind!r:.80}")
    refuse_fields("model", model, {"type", *MODELS[kind]})
    if model.get("dropout"):
        raise ValueError(f"dropout must be none, as a text has one list of ids, got dropout={model['dropout']!r:.40}")
    longest = model.get("max_input_chars_per_word", 100)
    if not is_number(longest) or longest > 1000:  # the time grows with its square
        raise ValueError(f"max_input_chars_per_word must be at most 1,000, got {longest!r:.40}")
    vocab = model.get("vocab")
    match kind, vocab:
        case "Unigram", [*pieces]:
            if wrong := [piece for piece in pieces if not _is_piece(piece)]:
                raise ValueError(f"vocab must hold pairs of a piece and its score, got {wrong[0]!r:.80}")
            if len(pieces) > LARGEST_ID:
                raise ValueError(f"vocab must hold at most {LARGEST_ID:,} pieces, got {len(pieces):,}")
        case (("BPE" | "WordPiece" | "WordLevel"), {}):
            check_numbers(model["vocab"])
        case _:
            raise ValueError(f"vocab must hold the tokens of a {kind} model, got {vocab!r:.80}")
    unknown = model.get("unk_token")
    if isinstance(vocab, dict) and unknown is not None and unknown not in vocab:
        raise ValueError(f"unk_token must be in vocab, got {unknown!r:.80}")


def _guess_kind(model: Mapping[str, Any]) -> str:
    """Return the kind of a model in an old file that does not name it."""
    if "merges" in model:
        return "BPE"
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return "WordPiece" if "max_input_chars_per_word" in model else "WordLevel"


def _is_piece(piece: Any) -> bool:
    match piece:
        case [str(), score]:
            return isinstance(score, int | float) and not isinstance(score, bool)
    return False


def check_numbers(vocab: Mapping[str, Any]) -> None:
    """Check that every token has an id of its own, below LARGEST_ID. Raises: ValueError."""
    wrong = [(token, number) for token, number in vocab.items() if not is_number(number)]
    if wrong:
        token, number = wrong[0]
        raise ValueError(f"ids must be whole numbers in [0, {LARGEST_ID:,}), got {number!r:.40} for {token!r:.40}")
    if len(set(vocab.values())) < len(vocab):
        raise ValueError("ids must differ, got one for two tokens")


def _check_tokens(content: dict[str, Any]) -> None:
    tokens = content.setdefault("added_tokens", [])
    if not isinstance(tokens, list):
        raise ValueError(f"added_tokens must be a list, got {tokens!r:.80}")
    for token in tokens:
        match token:
            case {"content": str(text), "id": number, "special": bool()} if text and is_number(number):
                refuse_fields("added_tokens", token, ADDED)
            case _:
                rule = f"a text, whether it is special, and an id in [0, {LARGEST_ID:,})"
                raise ValueError(f"added_tokens must hold {rule}, got {token!r:.160}")
    check_numbers({token["content"]: token["id"] for token in tokens})
