"""The vocabulary of a tokenizer.json of Hugging Face's library `tokenizers`."""

import json
import secrets
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vitkit.data.vocabularies.openclip_tokenizers import import_openclip_tokenizers
from vitkit.data.vocabularies.token_spelling import Spelling, map_byte_characters, read_spelling
from vitkit.data.vocabularies.tokenizer_schema import (
    FileState,
    find_state,
    parse_tokenizer_json,
    read_text,
    walk_parts,
)
from vitkit.data.vocabularies.vocabulary import Margin, Vocabulary, VocabularyOptions, is_number
from vitkit.support.errors import format_few


@contextmanager
def summarise_errors(rule: str) -> Iterator[None]:
    """Raise any error inside as a ValueError of one line. A panic of Rust code is no Exception."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        raise ValueError(f"{rule}: {textwrap.shorten(str(error), 300)}") from None


class TokenizerJson(Vocabulary):
    """The vocabulary of a tokenizer.json.

    No text can spell special tokens and the tokens around texts: the library gets other names for them, which hold 64
    random bits.

    Args: source: the name of the file in errors.
    Raises: ValueError, one line, for a file that is malformed, has unknown parts or might take exponential time.
    """

    def __init__(self, text: str, source: str, options: VocabularyOptions) -> None:
        if find_spec("tokenizers") is None:
            raise ValueError(f'{source} must be read by tokenizers, which is missing; pip install "vitkit[tokenizers]"')
        import tokenizers

        self.source, self.clean = source, _find_cleaning(options.clean)
        with summarise_errors(f"{source} must be a tokenizer.json of tokenizers"):
            content = parse_tokenizer_json(text)
            names = find_names(content)
            begin, finish = find_surrounding_ids(content.get("post_processor"))
            self.begin = begin if options.begin is None else (find_id(names, options.begin, "begin"),)
            self.finish = finish if options.end is None else (find_id(names, options.end, "end"),)
            around = (*self.begin, *self.finish)
            _check_around(content, names, around, {*begin, *finish})
            special = {token["content"] for token in content["added_tokens"] if token["special"]}
            special |= {name for name, number in names.items() if number in around}
            padding = content.get("padding") or {"pad_id": names.get("<pad>")}
            self.names, self.size = names, max(names.values(), default=-1) + 1
            self.decoder, self.unknown = content.get("decoder"), _find_unknown(content["model"])
            if self.unknown in around:
                _drop_unknown(content, special, "end" if self.unknown in self.finish else "begin")
                self.unknown = None
            content |= {"truncation": None, "padding": None, "post_processor": None}
            _hide_tokens(content, special)
            self.file = tokenizers.Tokenizer.from_str(json.dumps(content, ensure_ascii=False))
            _check_ids(self.file, content)
        if not self.finish:
            known = ", ".join(sorted(special)[:5]) or "none"
            raise ValueError(
                f"{source} must put an id after each text, got none; name one by end, such as a special token ({known})"
            )
        self.special = {name: names[name] for name in special if names[name] != self.unknown}
        self.hidden = {*self.special.values(), *around}
        self.pad = next(number for number in (options.pad, padding["pad_id"], self.end) if number is not None)
        outside = [number for number in (*around, self.pad) if not 0 <= number < self.size]
        if outside:
            raise ValueError(f"{source} must hold the ids around texts, below {self.size:,}, got {outside[0]}")

    def encode(self, text: str) -> list[int]:
        """Encode one text at a time: the library's threads do not go together with the processes that load data."""
        with summarise_errors(f"{self.source} must read any text, and failed at {text!r:.40}"):
            return self.file.encode(self.clean(text), add_special_tokens=False).ids

    @cached_property
    def spelling(self) -> Spelling:
        with summarise_errors(f"{self.source} must be decoded"):
            return read_spelling(self.decoder)

    @property
    def margin(self) -> Margin:
        return self.spelling.margin

    def has_name(self, name: str) -> bool:
        return name in self.names

    def spell(self, number: int) -> bytes:
        if number in self.hidden:
            return b""
        token = self.file.id_to_token(number)
        if token is None:
            raise ValueError(f"ids must be of {self.source}, which has no token for {number}")
        return self.spelling.spell("\ufffd" if number == self.unknown else token)


def _find_cleaning(clean: str | None) -> Callable[[str], str]:
    if clean is None:
        return str
    return import_openclip_tokenizers().get_clean_fn(clean)


def find_names(content: Mapping[str, Any]) -> dict[str, int]:
    """Return the id of each token, added tokens included."""
    vocab = content["model"]["vocab"]
    names = dict(vocab) if isinstance(vocab, dict) else {piece: place for place, (piece, _) in enumerate(vocab)}
    for token in content["added_tokens"]:
        if names.setdefault(token["content"], token["id"]) != token["id"]:
            raise ValueError(f"added_tokens must have the ids of vocab, got another for {token['content']!r:.40}")
    return names


def find_id(names: Mapping[str, int], token: str | int, option: str) -> int:
    number = token if isinstance(token, int) else names.get(token)
    if number is None or isinstance(number, bool):
        raise ValueError(f"{option} must be a token of it, or an id, got {option}={token!r:.40}")
    return number


def _check_around(content: Mapping[str, Any], names: Mapping[str, int], around: Sequence[int], known: Set[int]) -> None:
    """Check that no token around texts is a word or character of texts, which could then not spell it.

    Args: known: the ids that the file puts around texts.
    Raises: ValueError.
    """
    added = {token["content"]: token["id"] for token in content["added_tokens"]}
    for name, number in names.items():
        if number in around and (len(name) < 2 or number not in {*known, *added.values()}):
            rule = "added tokens of several characters, which no text can spell"
            raise ValueError(f"begin and end must be {rule} ({format_few(added) or 'there is none'}), got {name!r:.40}")


def _drop_unknown(content: dict[str, Any], special: Set[str], side: str) -> None:
    """Drop the token of unknown characters, which is put around texts, from a model that knows all characters.

    Raises: ValueError for another model. Args: special: tokens that no text can spell. side: begin or end.
    """
    model = content["model"]
    if not _covers_bytes(content, special):
        name = model.get("unk_token", model.get("unk_id"))
        raise ValueError(f"unk_token must not be the {side} of texts, got {name!r:.40}; name another by {side}")
    model["unk_token"] = None


def _covers_bytes(content: Mapping[str, Any], special: Set[str]) -> bool:
    """Return whether the model has a token for each byte of a text."""
    model, splits = content["model"], [*walk_parts("pre_tokenizer", content.get("pre_tokenizer"))]
    if model["type"] != "BPE":
        return False
    words = model["vocab"].keys() - special
    if model.get("byte_fallback"):
        return {f"<0x{byte:02X}>" for byte in range(256)} <= words
    if not splits or splits[-1]["type"] != "ByteLevel":
        return False
    prefix, suffix = (model.get(name) or "" for name in ("continuing_subword_prefix", "end_of_word_suffix"))
    return {
        before + sign + behind for sign in map_byte_characters() for before in {"", prefix} for behind in {"", suffix}
    } <= words


def find_surrounding_ids(processor: Mapping[str, Any] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids that a post-processor puts in front of and behind a text."""
    begin: tuple[int, ...] = ()
    finish: tuple[int, ...] = ()
    for part in walk_parts("post_processor", processor):
        match part:
            case {"type": "TemplateProcessing", "single": [*single], "special_tokens": {} as tokens}:
                before, after = _find_template(single, tokens)
                begin, finish = (*before, *begin), (*finish, *after)
            case {"type": "BertProcessing" | "RobertaProcessing", "cls": [_, first], "sep": [_, last]} if is_number(
                first
            ) and is_number(last):
                begin, finish = (first, *begin), (*finish, last)
            case {"type": "ByteLevel" | "Sequence"}:
                continue
            case _:
                raise ValueError(f"post_processor must hold the ids around a text, got {part!r:.160}")
    return begin, finish


def _find_template(single: list[Any], tokens: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    sides: list[list[int]] = [[]]
    for item in single:
        match item:
            case {"Sequence": {"id": "A"}} if len(sides) == 1:
                sides.append([])
            case {"SpecialToken": {"id": str(name)}} if is_template_token(tokens.get(name)):
                sides[-1] += tokens[name]["ids"]
            case _:
                raise ValueError(f"post_processor must hold one text and known tokens, got {single!r:.160}")
    if len(sides) == 1:
        raise ValueError(f"post_processor must hold one text and known tokens, got {single!r:.160}")
    return sides[0], sides[1]


def is_template_token(token: Any) -> bool:
    match token:
        case {"ids": [*ids]}:
            return all(map(is_number, ids))
    return False


def _find_unknown(model: Mapping[str, Any]) -> int | None:
    """Return the id of unknown characters."""
    if model["type"] != "Unigram":
        return model["vocab"].get(model.get("unk_token"))
    unknown = model.get("unk_id")
    if unknown is not None and not (is_number(unknown) and unknown < len(model["vocab"])):
        raise ValueError(f"unk_id must be a place in vocab, got {unknown!r:.40}")
    return unknown


def _hide_tokens(content: dict[str, Any], special: set[str]) -> None:
    """Rename tokens everywhere to names that no text can hold."""
    model, mark = content["model"], f"\0{secrets.token_hex(8)}"
    hidden = {name: f"{name}{mark}" for name in special}
    for token in content["added_tokens"]:
        token["content"] = hidden.get(token["content"], token["content"])
    if model.get("unk_token") in hidden:
        model["unk_token"] = hidden[model["unk_token"]]
    if isinstance(model["vocab"], list):
        model["vocab"] = [[hidden.get(piece, piece), score] for piece, score in model["vocab"]]
        return
    model["vocab"] = {hidden.get(name, name): number for name, number in model["vocab"].items()}
    if "merges" in model:
        merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        model["merges"] = [merge for merge in merges if "".join(merge) not in hidden and not hidden.keys() & {*merge}]


def _check_ids(file: Any, content: Mapping[str, Any]) -> None:
    for token in content["added_tokens"]:
        if (number := file.token_to_id(token["content"])) != token["id"]:
            name = token["content"].partition("\0")[0]
            raise ValueError(
                f"added_tokens must continue the ids of vocab, got {token['id']} for {name!r:.40}, not {number}"
            )


def open_tokenizer_json(path: Path, options: VocabularyOptions) -> TokenizerJson:
    """Return the vocabulary of a file, which is read again only if it changes."""
    with summarise_errors(f"{path} must be a tokenizer.json of tokenizers"):
        state = find_state(path)
    return _open_state(state, str(path), options)


@lru_cache(maxsize=8)
def _open_state(state: FileState, source: str, options: VocabularyOptions) -> TokenizerJson:
    with summarise_errors(f"{source} must be a tokenizer.json of tokenizers"):
        text = read_text(state.path)
    return TokenizerJson(text, source, options)


@lru_cache(maxsize=8)
def parse_vocabulary(text: str, source: str, options: VocabularyOptions) -> TokenizerJson:
    """Return the vocabulary of a tokenizer.json that is not a file yet."""
    return TokenizerJson(text, source, options)
