"""The tokenizer that belongs to a text tower of open_clip or transformers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitkit.convert import config_slots
from vitkit.convert.config_slots import part
from vitkit.convert.hub_download import fetched
from vitkit.data.tokenizer import CLIP, FILE, BytePairs, Tokenizer, byte_pairs
from vitkit.nn import Last
from vitkit.support.errors import blaming
from vitkit.support.files import read_json

FILES = (FILE, "tokenizer_config.json", "special_tokens_map.json", "vocab.json")
ENDS = {"<|startoftext|>", "<|endoftext|>", "<start_of_text>", "<end_of_text>"}  # one id, two names


def read_openclip_tokenizer(
    source: str, folder: Path | None, text: Mapping[str, Any], tower: Mapping[str, Any]
) -> Tokenizer:
    """Args: text: a text_cfg; tower: the config of the TextTower.

    Raises: ValueError for tokenizers that are not had here, or are of another model.
    """
    options = text.get("tokenizer_kwargs") or {}
    name, clean, other = text.get("hf_tokenizer_name"), options.get("clean"), sorted(options.keys() - {"clean"})
    checks = {
        f"tokenizer_kwargs may hold clean, got {', '.join(other)}": not other,
        f"tokenizer_mode must be left out, got {text.get('tokenizer_mode')!r:.80}": not text.get("tokenizer_mode"),
        f"clean must be lower for CLIP's vocabulary, got clean={clean!r:.80}": name or clean in (None, "lower"),
    }
    config_slots.refuse_problems(f"the tokenizer of {source}", config_slots.failing(checks))
    if not name:
        return fitting(source, Tokenizer(**sizes(tower)), tower)
    if folder is None or not (folder / FILE).is_file():
        folder = fetched(f"the tokenizer of {source}", str(name), [FILES])
    return fitting(source, of_file(source, folder, tower, clean or "whitespace"), tower)


def of_hf(source: str, folder: Path, tower: Mapping[str, Any]) -> tuple[Tokenizer, tuple[str, ...]]:
    """The tokenizer of a folder of transformers, and what was assumed. Args: tower: the config of the TextTower.

    Raises: ValueError where there is none, or another model's.
    """
    words = vocabulary(folder)
    if words is None and not sizes(tower)["whole"] and part(tower).args["vocabulary"] == 49408:
        note = "texts are read by CLIP's vocabulary: the folder has none, and the model is for as many ids"
        return fitting(source, Tokenizer(**sizes(tower)), tower), (note,)
    if words is not None and is_clip(words):
        return fitting(source, Tokenizer(**sizes(tower)), tower), ()
    kind = str(read(folder / "tokenizer_config.json").get("tokenizer_class"))
    if not sizes(tower)["whole"]:
        return fitting(source, of_file(source, folder, tower, None), tower), ()
    # transformers' SiglipTokenizer does so outside of the file; of SigLIP2 texts were lower-cased in training.
    clean = "canonicalize" if kind.startswith("Siglip") and not kind.startswith("Siglip2") else "lower"
    note = f"texts are cleaned by {clean} before {FILE} is asked, as in training; text.json holds it"
    return fitting(source, of_file(source, folder, tower, clean), tower), (note,)


def of_file(source: str, folder: Path, tower: Mapping[str, Any], clean: str | None) -> Tokenizer:
    if not (folder / FILE).is_file():
        raise ValueError(
            f"{source} must hold {FILE} for its text tower, got none; or import the other by --tower image"
        )
    with blaming(folder / FILE) as path:
        held = read(path)
        pad = read(folder / "tokenizer_config.json").get("pad_token", read(folder / FILES[2]).get("pad_token"))
        name = pad["content"] if isinstance(pad, Mapping) else pad
        ids = {token["content"]: token["id"] for token in held.get("added_tokens", ())}
    return Tokenizer(**sizes(tower), vocabulary=folder / FILE, clean=clean, pad=ids.get(name))


def sizes(tower: Mapping[str, Any]) -> dict[str, Any]:
    """Of a TextTower, the arguments of its Tokenizer."""
    args = part(tower).args
    return {"context": args["context"], "whole": part(args["pool"]).kind is Last}


def fitting(source: str, tokenizer: Tokenizer, tower: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer itself. Raises: ValueError where it is of another model than the tower."""
    args, vocabulary = part(tower).args, tokenizer.vocabulary
    end = part(args["pool"]).args.get("end", vocabulary.end)
    if vocabulary.size > args["vocabulary"] or end != vocabulary.end:
        raise ValueError(
            f"the tokenizer of {source} must be its model's, got {vocabulary.size:,} ids with {vocabulary.end} at the "
            f"end of each text, for {args['vocabulary']:,} and {end}"
        )
    return tokenizer


def vocabulary(folder: Path) -> Mapping[str, int] | None:
    """The words of a folder, and their ids; of a vocabulary that is a list none."""
    if (folder / "vocab.json").is_file():
        return read(folder / "vocab.json")
    if not (folder / FILE).is_file():
        return None
    with blaming(folder / FILE) as path:
        words = read(path)["model"]["vocab"]
    return words if isinstance(words, Mapping) else {}


def is_clip(words: Mapping[str, int]) -> bool:
    """Whether these are CLIP's own, whatever its ends are called."""
    match own := byte_pairs():
        case BytePairs():
            known = own.pairs.encoder
            return {**words, **dict.fromkeys(ENDS, 0)} == {**known, **dict.fromkeys(ENDS, 0)}
    return False


def read(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def convert_tokenizer(tokenizer: Tokenizer) -> dict[str, str]:
    """The texts of files with which transformers' AutoTokenizer reads the same ids, and what each is called."""
    if tokenizer.name != CLIP:
        held, vocabulary = Path(tokenizer.name).read_text("utf-8"), tokenizer.vocabulary
        names = {token["id"]: token["content"] for token in json.loads(held).get("added_tokens", ())}
        told = {"eos_token": names.get(vocabulary.end), "pad_token": names.get(vocabulary.pad)}
        told = {name: value for name, value in told.items() if value}
        told |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": tokenizer.context}
        return {FILE: held, "tokenizer_config.json": dumped(told)}
    pairs: Any = byte_pairs()
    words = {**pairs.pairs.encoder}
    words |= {"<|startoftext|>": words.pop("<start_of_text>"), "<|endoftext|>": words.pop("<end_of_text>")}
    merges = "\n".join(["#version: 0.2", *(" ".join(pair) for pair in pairs.pairs.bpe_ranks)])
    told = {"tokenizer_class": "CLIPTokenizer", "model_max_length": tokenizer.context}
    told |= {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    told["pad_token"] = "<|endoftext|>"
    return {"vocab.json": dumped(words), "merges.txt": merges + "\n", "tokenizer_config.json": dumped(told)}


def dumped(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"
