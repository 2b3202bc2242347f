"""The tokenizer that belongs to a text tower of open_clip or transformers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitkit.convert import config_slots
from vitkit.convert.config_slots import read_part
from vitkit.convert.hub_download import fetch_repository
from vitkit.data.tokenizer import FILE, NUMBERS, PIECES, Tokenizer, find_misfits, read_tokenizer_files
from vitkit.data.vocabularies.clip_byte_pairs import load_clip_vocabulary
from vitkit.data.vocabularies.tokenizer_format import (
    format_byte_pairs,
    format_raw_bytes,
    format_special,
    format_template,
)
from vitkit.data.vocabularies.tokenizer_json import find_names, find_surrounding_ids
from vitkit.data.vocabularies.tokenizer_schema import read_text
from vitkit.data.vocabularies.wordpiece import format_wordpieces, read_wordpieces
from vitkit.nn import Last
from vitkit.support.errors import prefix_errors
from vitkit.support.files import read_json
from vitkit.support.names import split_lines

# Files with a vocabulary, in the order in which one of them is read.
VOCABULARIES = (FILE, "source.spm", "spiece.model", "tokenizer.model", "vocab.txt", "merges.txt")
# Classes of transformers whose ids of pieces are those of the SentencePiece model.
SENTENCEPIECE = ("T5Tokenizer", "LlamaTokenizer", "GemmaTokenizer", "PreTrainedTokenizer", "TokenizersBackend")
GPT2_END = "<|endoftext|>"
FILES = (FILE, "tokenizer_config.json", "special_tokens_map.json", "vocab.json")
ENDS = {"<|startoftext|>", "<|endoftext|>", "<start_of_text>", "<end_of_text>"}  # transformers' and open_clip's names


def read_openclip_tokenizer(
    source: str, folder: Path | None, text_cfg: Mapping[str, Any], tower: Mapping[str, Any]
) -> Tokenizer:
    """Return the tokenizer of a text_cfg. Args: tower: the config of the TextTower.

    Raises: ValueError for a tokenizer that is not supported, or of another model.
    """
    options = text_cfg.get("tokenizer_kwargs") or {}
    name, clean, others = text_cfg.get("hf_tokenizer_name"), options.get("clean"), sorted(options.keys() - {"clean"})
    checks = {
        f"tokenizer_kwargs may hold clean, got {', '.join(others)}": not others,
        f"tokenizer_mode must be left out, got {text_cfg.get('tokenizer_mode')!r:.80}": not text_cfg.get(
            "tokenizer_mode"
        ),
        f"clean must be lower for CLIP's vocabulary, got clean={clean!r:.80}": name or clean in (None, "lower"),
    }
    config_slots.refuse_problems(f"the tokenizer of {source}", config_slots.list_failures(checks))
    if not name:
        return check_tokenizer(source, Tokenizer(**get_tokenizer_arguments(tower)), tower)
    if folder is None or not (folder / FILE).is_file():
        folder = fetch_repository(f"the tokenizer of {source}", str(name), [FILES])
    return check_tokenizer(source, read_tower_tokenizer(source, folder, tower, clean or "whitespace"), tower)


def choose_hf_tokenizer(source: str, folder: Path, tower: Mapping[str, Any]) -> tuple[Tokenizer, tuple[str, ...]]:
    """Return the tokenizer of a folder of transformers, and notes on assumptions. Args: tower: the TextTower's config.

    Raises: ValueError if the folder has no tokenizer, or one of another model.
    """
    words, args = read_words(folder), read_part(tower).args
    if words is None and "pool" in args and not get_tokenizer_arguments(tower)["whole"] and args["vocabulary"] == 49408:
        note = "texts are read by CLIP's vocabulary: the folder has none, and the model is for as many ids"
        return check_tokenizer(source, Tokenizer(**get_tokenizer_arguments(tower)), tower), (note,)
    if words is not None and is_clip_vocabulary(words):
        return check_tokenizer(source, Tokenizer(**get_tokenizer_arguments(tower)), tower), ()
    kind = str(read_optional_json(folder / "tokenizer_config.json").get("tokenizer_class"))
    if not get_tokenizer_arguments(tower)["whole"]:
        return check_tokenizer(source, read_tower_tokenizer(source, folder, tower, None), tower), ()
    # transformers' SiglipTokenizer cleans texts in its code, not by the file; SigLIP2 was trained on lower-case texts.
    clean = "canonicalize" if kind.startswith("Siglip") and not kind.startswith("Siglip2") else "lower"
    note = f"texts are cleaned by {clean} before {FILE} reads them, as in training; text.json holds it"
    return check_tokenizer(source, read_tower_tokenizer(source, folder, tower, clean), tower), (note,)


def read_tower_tokenizer(source: str, folder: Path, tower: Mapping[str, Any], clean: str | None) -> Tokenizer:
    """Return the tokenizer of a folder for a TextTower. Raises: ValueError if there is none."""
    if not any((folder / name).is_file() for name in VOCABULARIES):
        raise ValueError(
            f"{source} must hold {FILE} for its texts, got none; or import a CLIP's image tower alone by --tower image"
        )
    return read_hf_tokenizer(folder, clean=clean, **get_tokenizer_arguments(tower))


def read_hf_tokenizer(folder: Path, context: int, *, whole: bool = False, clean: str | None = None) -> Tokenizer:
    """Return the tokenizer of a folder of transformers, with the begin and end of its texts.

    The end is the folder's eos_token unless the file of the vocabulary appends one.

    Args: clean: the cleaning of texts before a tokenizer.json reads them.
    Raises: ValueError for a folder without a vocabulary, and for a class that does not take its ids from that file.
    """
    settings = HFSettings(folder)
    if (folder / FILE).is_file():
        return settings.read_json(context, whole, clean)
    if (path := folder / "source.spm").is_file():
        settings.require_kind(("MarianTokenizer",), path.name)
        end = settings.get_token("eos_token") or "</s>"
        return Tokenizer(context, whole=whole, vocabulary=path, numbers=folder / NUMBERS, end=end)
    for path in (folder / "spiece.model", folder / "tokenizer.model"):
        if path.is_file():
            settings.require_kind(SENTENCEPIECE, path.name)
            return settings.read_sentencepiece(path, context, whole)
    if (path := folder / "vocab.txt").is_file():
        settings.require_kind(("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"), path.name)
        return Tokenizer.from_text(settings.format_wordpieces(), context, whole=whole)
    if (path := folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        settings.require_kind(("GPT2Tokenizer",), path.name)
        return Tokenizer.from_text(settings.format_byte_pairs(), context, whole=whole, begin=settings.get_begin())
    raise ValueError(f"{folder} must hold a vocabulary ({', '.join(VOCABULARIES)}), got none")


class HFSettings:
    """The settings in tokenizer_config.json and special_tokens_map.json for the vocabulary next to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = config = read_optional_json(folder / "tokenizer_config.json")
        self.names = read_optional_json(folder / "special_tokens_map.json")
        self.names |= {name: config[name] for name in config if name.endswith("_token")}
        kind = config.get("tokenizer_class", read_optional_json(folder / "config.json").get("tokenizer_class"))
        self.kind = str(kind).removesuffix("Fast")

    def require_kind(self, kinds: Sequence[str], name: str) -> None:
        """Raise ValueError unless the tokenizer_class is one of `kinds`, which take their ids from the file `name`."""
        if self.kind not in kinds:
            raise ValueError(
                f"{self.folder} must have a tokenizer_class that takes its ids from {name}, one of "
                f"{', '.join(kinds)}, got {self.kind}; save it with a {FILE}"
            )

    def get_token(self, token: str) -> str | None:
        """Return the text of a special token such as eos_token."""
        value = self.names.get(token)
        value = value.get("content") if isinstance(value, Mapping) else value
        return value if isinstance(value, str) else None

    def get_begin(self) -> str | None:
        """Return the token that transformers puts before texts, None if add_bos_token is off."""
        return self.get_token("bos_token") if self.config.get("add_bos_token") else None

    def read_sentencepiece(self, path: Path, context: int, whole: bool) -> Tokenizer:
        begin, end = self.get_begin(), self.get_token("eos_token")
        special = self.list_sentinels() if self.kind == "T5Tokenizer" else ()
        return Tokenizer(context, whole=whole, vocabulary=path, begin=begin, end=end, special=special)

    def list_sentinels(self) -> list[str]:
        """Return T5's sentinel tokens, whose ids follow those of the SentencePiece model, the last one first."""
        count = self.config.get("extra_ids", 100)
        if not isinstance(count, int) or not 0 <= count <= 1000:
            raise ValueError(f"{self.folder} must have 0 to 1,000 extra_ids, got extra_ids={count!r:.40}")
        return [f"<extra_id_{place}>" for place in reversed(range(count))]

    def read_json(self, context: int, whole: bool, clean: str | None) -> Tokenizer:
        with prefix_errors(self.folder / FILE) as path:
            content = read_optional_json(path)
            ids = {token["content"]: token["id"] for token in content.get("added_tokens", ())}
            begin, finish = find_surrounding_ids(content.get("post_processor"))
        # The settings' tokens count only where the file has none.
        first = None if begin else self.get_begin()
        last = None if finish else self.get_token("eos_token")
        pad = ids.get(self.get_token("pad_token"))
        vocabulary = self.folder / FILE
        return Tokenizer(context, whole=whole, vocabulary=vocabulary, clean=clean, pad=pad, begin=first, end=last)

    def format_wordpieces(self) -> str:
        lower, accents = self.config.get("do_lower_case", True), self.config.get("strip_accents")
        chinese = self.config.get("tokenize_chinese_chars", True)
        tokens = read_wordpieces(self.folder / "vocab.txt")
        return format_wordpieces(tokens, lower=bool(lower), strip_accents=accents, chinese=bool(chinese))

    def format_byte_pairs(self) -> str:
        """Return a tokenizer.json of a GPT-2 vocab.json and merges.txt. Raises: ValueError without an eos_token."""
        vocab, end = read_optional_json(self.folder / "vocab.json"), self.get_token("eos_token") or GPT2_END
        with prefix_errors(self.folder / "merges.txt") as path:
            lines = split_lines(read_text(path))
            merges = [line.split(" ") for line in lines if line and not line.startswith("#version")]
            if others := [merge for merge in merges if len(merge) != 2]:
                raise ValueError(f"every line must hold two parts, got {' '.join(others[0])!r:.80}")
        if end not in vocab:
            raise ValueError(f"{self.folder / 'vocab.json'} must hold the end of texts, got no {end!r:.40}")
        special = {end, *(name for name in map(self.get_token, self.names) if name in vocab)}
        prefixed = bool(self.config.get("add_prefix_space", False))
        return format_byte_pairs(vocab, merges, sorted(special), end=end, prefixed=prefixed)


def get_tokenizer_arguments(tower: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the Tokenizer of a text model."""
    args = read_part(tower).args
    return {"context": args["context"], "whole": "pool" in args and read_part(args["pool"]).kind is Last}


def check_tokenizer(source: str, tokenizer: Tokenizer, tower: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer. Raises: ValueError if its ids are not the tower's."""
    args = read_part(tower).args
    end = read_part(args["pool"]).args.get("end") if "pool" in args else None
    if problems := find_misfits(tokenizer.vocabulary, args["vocabulary"], end):
        raise ValueError(f"the tokenizer of {source} must be its model's, got another: {'; '.join(problems)}")
    return tokenizer


def read_words(folder: Path) -> Mapping[str, int] | None:
    """Return the id of each token in a folder's vocabulary: None without one, empty for a vocabulary that is a list."""
    if (folder / "vocab.json").is_file():
        return read_optional_json(folder / "vocab.json")
    if not (folder / FILE).is_file():
        return None
    with prefix_errors(folder / FILE) as path:
        words = read_optional_json(path)["model"]["vocab"]
    return words if isinstance(words, Mapping) else {}


def is_clip_vocabulary(words: Mapping[str, int]) -> bool:
    """Return whether this is CLIP's vocabulary, under either name of its begin and end tokens."""
    known = load_clip_vocabulary().pairs.encoder
    return {**words, **dict.fromkeys(ENDS, 0)} == {**known, **dict.fromkeys(ENDS, 0)}


def read_optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def convert_tokenizer(tokenizer: Tokenizer) -> dict[str, bytes]:
    """Return files, by name, with which transformers' AutoTokenizer returns the same ids.

    By their settings, the name of a special token within a text is encoded as plain text. Unigram models, in a
    tokenizer.json or of SentencePiece, ignore this setting and encode it as the special token.

    Raises: ValueError for ids that the files cannot represent.
    """
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": tokenizer.context}
    config["split_special_tokens"] = True
    match tokenizer.kind:
        case "clip":
            refuse_options("CLIPTokenizer", {"special": tokenizer.special})
            return _format_clip(tokenizer.context)
        case "spiece.model":
            return _format_sentencepiece(tokenizer, config)
        case "bytes":
            content = format_raw_bytes(tokenizer.special)
        case _:
            content = _format_json(tokenizer)
    names = {number: name for name, number in find_names(json.loads(content)).items()}
    vocabulary = tokenizer.vocabulary
    tokens = {"eos_token": names.get(vocabulary.end), "pad_token": names.get(vocabulary.pad)}
    config = {name: value for name, value in tokens.items() if value} | config
    return {FILE: content.encode(), "tokenizer_config.json": dump_json(config).encode()}


def refuse_options(layout: str, options: Mapping[str, object]) -> None:
    """Raise ValueError for options of a tokenizer that a layout does not have."""
    if given := [f"{name}={value}" for name, value in options.items() if value not in (None, ())]:
        raise ValueError(
            f"{' and '.join(options)} must be left out of a tokenizer for {layout}, which has no place for them, got "
            f"{', '.join(given)}; or take a vocabulary in a {FILE}"
        )


def _format_json(tokenizer: Tokenizer) -> str:
    """Return the tokenizer.json, completed by the ids around texts and the further special tokens."""
    content = read_tokenizer_files(tokenizer)[FILE].decode("utf-8")
    if tokenizer.begin is None and tokenizer.end is None and not tokenizer.special:
        return content
    parts, vocabulary = json.loads(content), tokenizer.vocabulary
    known = {token["content"] for token in parts.get("added_tokens", ())}
    names = find_names({**parts, "added_tokens": parts.get("added_tokens", [])}) | dict(vocabulary.special)
    tokens = {number: name for name, number in names.items()}
    around = [tokens[number] for number in (*vocabulary.begin, *vocabulary.finish)]
    special = {name: names[name] for name in (*around, *tokenizer.special) if name not in known}
    parts["added_tokens"] = sorted(
        [*parts.get("added_tokens", ()), *format_special(special)], key=lambda token: token["id"]
    )
    parts["post_processor"] = format_template(
        [(tokens[number], number) for number in vocabulary.begin],
        [(tokens[number], number) for number in vocabulary.finish],
    )
    return json.dumps(parts, ensure_ascii=False)


def _format_sentencepiece(tokenizer: Tokenizer, config: dict[str, Any]) -> dict[str, bytes]:
    files, vocabulary = read_tokenizer_files(tokenizer), tokenizer.vocabulary
    names = {number: name for name, number in vocabulary.special.items()}
    around = {"eos_token": vocabulary.end, "pad_token": vocabulary.pad}
    around |= {"bos_token": vocabulary.begin[0]} if vocabulary.begin else {}
    if ordinary := [f"{name}={number}" for name, number in around.items() if number not in names]:
        raise ValueError(f"ids around texts must be control pieces to be written, got {', '.join(ordinary)}")
    config |= {name: names[number] for name, number in around.items()}
    if tokenizer.numbers is not None:
        refuse_options("MarianTokenizer", {"special": tokenizer.special, "begin": tokenizer.begin})
        config["tokenizer_class"] = "MarianTokenizer"
        model = dict.fromkeys(("source.spm", "target.spm"), files[PIECES])
        return {**model, NUMBERS: files[NUMBERS], "tokenizer_config.json": dump_json(config).encode()}
    config |= {"tokenizer_class": "TokenizersBackend", "add_eos_token": True}
    config |= {"add_bos_token": bool(vocabulary.begin), "extra_special_tokens": [*tokenizer.special]}
    return {"tokenizer.model": files[PIECES], "tokenizer_config.json": dump_json(config).encode()}


def _format_clip(context: int) -> dict[str, bytes]:
    pairs = load_clip_vocabulary().pairs
    words = {**pairs.encoder}
    words |= {"<|startoftext|>": words.pop("<start_of_text>"), "<|endoftext|>": words.pop("<end_of_text>")}
    merges = "\n".join(["#version: 0.2", *(" ".join(pair) for pair in pairs.bpe_ranks)])
    config = {"tokenizer_class": "CLIPTokenizer", "model_max_length": context}
    config |= {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    config["pad_token"] = "<|endoftext|>"
    texts = {"vocab.json": dump_json(words), "merges.txt": merges + "\n", "tokenizer_config.json": dump_json(config)}
    return {name: text.encode() for name, text in texts.items()}


def dump_json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"
