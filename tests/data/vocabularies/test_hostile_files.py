"""Files of strangers that are no vocabularies, or might hold up whoever reads them: one line, at once."""

import base64
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import normalizers

from vitkit.data.tokenizer import Tokenizer, read_tokenizer_files
from vitkit.data.vocabularies.byte_pair_training import train_byte_pairs
from vitkit.data.vocabularies.text_growth import FORMS, check_growth, find_charsmap, measure_charsmap
from vitkit.data.vocabularies.tokenizer_schema import PARTS

VOCAB = {"<unk>": 0, "a": 1, "</s>": 2}
SLOW = {"type": "Split", "pattern": {"Regex": "(a+)+b"}, "behavior": "Isolated", "invert": False}
REPLACE = {"type": "Replace", "pattern": {"Regex": "(a|a)*b"}, "content": ""}
END = {"id": "</s>", "ids": [2], "tokens": ["</s>"]}


def describe(**changes: Any) -> dict[str, Any]:
    """A small tokenizer.json, with changes."""
    around = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}]
    template = {"type": "TemplateProcessing", "single": around, "pair": around, "special_tokens": {"</s>": END}}
    model = {"type": "WordLevel", "vocab": VOCAB, "unk_token": "<unk>"}
    return {"version": "1.0", "added_tokens": [], "post_processor": template, "model": model} | changes


def add(number: Any, content: str = "<x>", **fields: Any) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return describe(added_tokens=[{"id": number, "content": content, "special": True, **flags, **fields}])


def change_model(**changes: Any) -> dict[str, Any]:
    return describe(model={**describe()["model"], **changes})


def change_template(**changes: Any) -> dict[str, Any]:
    return describe(post_processor={**describe()["post_processor"], **changes})


def unigram(charsmap: bytes) -> dict[str, Any]:
    pieces = [["<unk>", 0.0], ["a", -1.0], ["</s>", 0.0]]
    normalizer = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}
    return describe(normalizer=normalizer, model={"type": "Unigram", "unk_id": 0, "vocab": pieces})


def double(sign: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": sign}, "content": content}


def sequence(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": parts}


def nest(depth: int) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "Lowercase"}
    for _ in range(depth):
        part = {"type": "Sequence", "normalizers": [part]}
    return describe(normalizer=part)


CONTENTS: dict[str, tuple[Any, str]] = {
    "empty": (b"", "must be a tokenizer.json of tokenizers: Expecting value"),
    "no JSON": (b"#version", "must be a tokenizer.json of tokenizers: Expecting value"),
    "cut": (json.dumps(describe()).encode()[:-20], "must be a tokenizer.json of tokenizers"),
    "no text": (b"\xff\xfe{}", "must be a tokenizer.json of tokenizers: 'utf-8' codec"),
    "a list": ([1], "must hold a model, got"),
    "no model": ({"version": "1.0"}, "must hold a model, got"),
    "nested": (b"[" * 200_000, "must not be nested so deeply"),
    "nested in a field": (b'{"model": {"vocab": ' + b'{"a":' * 100_000, "must not be nested so deeply"),
    "nested parts": (nest(9), "nested at most 8 deep"),
    "an unknown field": (describe(plugin="x"), "got plugin"),
    "an unknown field of a part": (describe(pre_tokenizer={"type": "Whitespace", "run": 1}), "got run"),
    "an unknown part": (describe(normalizer={"type": "Shell"}), "normalizer must be one of BertNormalizer"),
    "a part of another place": (describe(decoder={"type": "Whitespace"}), "decoder must be one of BPEDecoder"),
    "a part without a kind": (describe(normalizer=[1]), "normalizer must be one of"),
    "an unknown model": (change_model(type="GPT"), "model must be one of BPE"),
    "an unknown field of the model": (change_model(scores=[1]), "got scores"),
    "no vocab": (change_model(vocab=None), "vocab must hold the tokens of a WordLevel model"),
    "a list of tokens": (change_model(vocab=["a"]), "vocab must hold the tokens of a WordLevel model"),
    "a huge id": (change_model(vocab=VOCAB | {"b": 2**40}), "ids must be whole numbers in [0, 4,194,304)"),
    "a negative id": (change_model(vocab=VOCAB | {"b": -1}), "ids must be whole numbers in [0, 4,194,304)"),
    "a fraction": (change_model(vocab=VOCAB | {"b": 1.5}), "ids must be whole numbers in [0, 4,194,304)"),
    "a truth": (change_model(vocab=VOCAB | {"b": True}), "ids must be whole numbers in [0, 4,194,304)"),
    "one id twice": (change_model(vocab=VOCAB | {"b": 1}), "ids must differ"),
    "no unknown": (change_model(unk_token="<none>"), "unk_token must be in vocab, got"),
    "random ids": (change_model(type="BPE", merges=[], dropout=0.5), "dropout must be none"),
    "long words": (change_model(type="WordPiece", max_input_chars_per_word=10**9), "must be at most 1,000"),
    "other merges": (change_model(type="BPE", merges=[["a", "z"]]), "must be a tokenizer.json of tokenizers"),
    "odd merges": (change_model(type="BPE", merges=[["a"]]), "must be a tokenizer.json of tokenizers"),
    "merges of numbers": (change_model(type="BPE", merges=[1]), "must be a tokenizer.json of tokenizers"),
    "odd pieces": (describe(model={"type": "Unigram", "unk_id": 0, "vocab": [["a"]]}), "pairs of a piece and its"),
    "an unknown elsewhere": (describe(model={"type": "Unigram", "unk_id": 9, "vocab": [["a", 0]]}), "a place in vocab"),
    "a huge added id": (add(2**40), "an id in [0, 4,194,304)"),
    "a far added id": (add(4000), "must continue the ids of vocab, got 4000 for '<x>', not 3"),
    "the id of another": (add(1, "</s>"), "added_tokens must have the ids of vocab, got another for '</s>'"),
    "an added id of another": (add(1), "added_tokens must"),
    "an unknown field of a token": (add(3, run=1), "got run"),
    "odd tokens": (describe(added_tokens={"<x>": 3}), "added_tokens must be a list"),
    "slow": (describe(pre_tokenizer=SLOW), "a group must not be repeated"),
    "slow, in a sequence": (
        describe(pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}, SLOW]}),
        "a group must not be repeated",
    ),
    "slow, without groups": (
        describe(pre_tokenizer={**SLOW, "pattern": {"Regex": r"\w*\w*\w*;"}}),
        "at most 1 repetition",
    ),
    "slow normaliser": (describe(normalizer=REPLACE), "a group must not be repeated"),
    "slow decoder": (describe(decoder=REPLACE), "a group must not be repeated"),
    "an end outside": (
        change_template(special_tokens={"</s>": {**END, "ids": [3]}}),
        "must hold the ids around texts, below 3, got 3",
    ),
    "a huge end": (change_template(special_tokens={"</s>": {**END, "ids": [2**40]}}), "one text and known tokens"),
    "an unknown end": (change_template(special_tokens={}), "one text and known tokens"),
    "two texts": (change_template(single=[{"Sequence": {"id": "A"}}] * 2), "one text and known tokens"),
    "no text at all": (change_template(single=[]), "one text and known tokens"),
    "no end": (describe(post_processor=None), "must put an id after each text, got none"),
    "an unknown that is the end": (
        change_model(unk_token="</s>"),
        "unk_token must not be the end of texts, got '</s>'; name another by end",
    ),
    "an end that texts spell": (
        change_template(special_tokens={"</s>": {**END, "ids": [1]}}),
        "begin and end must be added tokens of several characters, which no text can spell (there is none), got 'a'",
    ),
    "odd ends": (describe(post_processor={"type": "BertProcessing", "cls": 1, "sep": 2}), "the ids around a text"),
    "padding outside": (describe(padding={"pad_id": 7}), "must hold the ids around texts, below 3, got 7"),
    "a truth as padding": (describe(padding={"pad_id": True}), "padding must hold a pad_id, got"),
    "a truth as score": (describe(model={"type": "Unigram", "unk_id": 0, "vocab": [["a", True]]}), "piece and its"),
    "a truth as unknown": (
        describe(model={"type": "Unigram", "unk_id": False, "vocab": [["a", 0]]}),
        "a place in vocab",
    ),
    "truths around texts": (
        describe(post_processor={"type": "BertProcessing", "cls": ["a", True], "sep": ["</s>", 2]}),
        "must hold the ids around a text",
    ),
    "a truth as length": (change_model(type="WordPiece", max_input_chars_per_word=True), "must be at most 1,000"),
    "odd padding": (describe(padding=[1]), "must be a tokenizer.json of tokenizers"),
    "no table of characters": (unigram(b""), "must be a tokenizer.json of tokenizers"),
    "a table without end": (unigram(b"\xff" * 40), "must be a tokenizer.json of tokenizers"),
    "a table that points outside": (unigram(b"\x08\0\0\0" + b"\xff" * 8 + b"abc"), "must read any text, and failed at"),
    "an empty table": (unigram(b"\0\0\0\0"), "must read any text, and failed at"),
    "a text that doubles": (describe(normalizer=sequence([double("a", "aa")] * 30)), "grow 600 times at most"),
    "a text that grows in normal forms": (
        describe(
            normalizer=sequence([double("a", "\ufdfa"), {"type": "NFKC"}, double(" ", "\ufdfa"), {"type": "NFKD"}])
        ),
        "grow 600 times at most by all parts together, got 1.09e+03 times",
    ),
    "a text that grows at each place": (describe(normalizer=double("", "x" * 100)), "grow 64 times at most"),
    "a long prefix": (describe(normalizer={"type": "Prepend", "prepend": "x" * 100}), "grow 64 times at most"),
    "bytes of bytes": (describe(normalizer=sequence([{"type": "ByteLevel"}] * 30)), "grow 600 times at most"),
    "bytes of bytes, in words": (
        describe(pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}] * 30}),
        "grow 600 times at most",
    ),
    "many parts": (describe(normalizer=sequence([{"type": "StripAccents"}] * 1000)), "at most 64 parts, got 1,001"),
    "a long text in a table": (unigram(b"\4\0\0\0" * 2 + b"x" * 5000 + b"\0"), "grow 64 times at most"),
    "a table that is no base 64": (
        describe(normalizer={"type": "Precompiled", "precompiled_charsmap": "\u00e9"}),
        "must be a tokenizer.json of tokenizers",
    ),
    "no words at all": (describe(pre_tokenizer={"type": "FixedLength", "length": 0}), "must "),
}


@pytest.mark.parametrize(
    "name", sorted(PARTS["normalizer"].keys() - {"Sequence", "Precompiled", "Replace", "Prepend", "Strip"})
)
def test_growth_bounds_hold_for_all_characters(name: str) -> None:
    normalizer, growth = getattr(normalizers, name)(), max(1.0, FORMS.get(name, 2.0 if name == "ByteLevel" else 1.0))
    signs = [chr(place) for place in range(1, 0x30000) if not 0xD800 <= place < 0xF900]
    assert all(len(normalizer.normalize_str(sign).encode()) <= growth * len(sign.encode()) for sign in signs)


def test_the_normalisers_of_known_tokenizers_are_read() -> None:
    albert = [
        *(double(sign * 2, '"') for sign in "`'"),
        *({"type": kind} for kind in ("NFKD", "StripAccents", "Lowercase")),
    ]
    clip = [{"type": "NFC"}, double("  ", " "), {"type": "Lowercase"}, {"type": "ByteLevel"}]
    table = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(bytes(4) + b"x" * 33).decode()}
    check_growth([*albert, table])
    check_growth(clip)


def refuse(use: Callable[[], Any], message: str) -> None:
    start = time.monotonic()
    with pytest.raises(ValueError, match="must") as raised:
        use()
    assert time.monotonic() - start < 2
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 700


@pytest.mark.parametrize("name", CONTENTS)
def test_a_hostile_tokenizer_json_is_refused(name: str, tmp_path: Path) -> None:
    content, message = CONTENTS[name]
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    refuse(lambda: Tokenizer(9, vocabulary=path).encode_and_cut(["a b é"]), message)


def test_the_unchanged_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    for content in (describe(), add(3), nest(7), describe(padding={"pad_id": 1})):
        path = tmp_path / f"{len([*tmp_path.iterdir()])}.json"
        path.write_text(json.dumps(content))
        assert Tokenizer(9, vocabulary=path).encode_and_cut(["a"])[0] == [[1, 2]]


@pytest.mark.parametrize("name", ["tokenizer.json", "spiece.model", "vocab.txt"])
def test_a_gigantic_file_is_refused_before_it_is_read(name: str, tmp_path: Path) -> None:
    if name == "spiece.model":
        pytest.importorskip("sentencepiece")
    with (tmp_path / name).open("wb") as file:
        file.truncate(2**36)
    refuse(lambda: Tokenizer(9, vocabulary=tmp_path / name).encode(["a"]), "bytes, got 68,719,476,736")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("[PAD] [UNK] [CLS] [SEP] cat dog cat", "tokens must differ, got 'cat' twice"),
        ("[PAD] [UNK] [CLS] [SEP]  cat", "every line must hold a token, got none in line 5"),
        ("  ", "every line must hold a token, got none in line 1, 2"),
        ("[PAD] [UNK] [CLS] cat", "got none of [SEP]"),
        ("cat \udcff", "'utf-8' codec"),
    ],
)
def test_a_hostile_vocab_txt_is_refused(lines: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(lines.replace(" ", "\n").encode("utf-8", "surrogateescape"))
    refuse(lambda: Tokenizer(9, vocabulary=path), message)


@pytest.fixture(scope="module")
def model() -> bytes:
    sentencepiece = pytest.importorskip("sentencepiece")
    proto = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a photo of a cat"] * 9),
        model_writer=proto,
        vocab_size=40,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=3,
    )
    return proto.getvalue()


def test_a_hostile_sentencepiece_model_is_refused(model: bytes, tmp_path: Path) -> None:
    """Cut at many places, other bytes, and pieces that are no text."""
    contents = [b"", b"\x00", b"\xff" * 1000, *(model[:end] for end in range(1, len(model), 997))]
    assert len(contents) > 100
    for place, content in enumerate(contents):
        path = tmp_path / f"{place}.model"
        path.write_bytes(content)
        refuse(lambda path=path: Tokenizer(9, vocabulary=path).encode(["a"]), "must be a SentencePiece model")
    (tmp_path / "altered.model").write_bytes(model.replace("▁".encode(), b"\xff" * 3))
    refuse(lambda: Tokenizer(9, vocabulary=tmp_path / "altered.model").encode(["a"]), "must be a SentencePiece model")


def test_charsmap_with_long_replacements_is_refused(model: bytes, tmp_path: Path) -> None:
    table = find_charsmap(model)
    assert 20 < measure_charsmap(table) < 64  # of NFKC
    path = tmp_path / "a.model"
    settings = b"\x12" + write_varint(20_000) + b"\0\0\0\0" + b"x" * 19_995 + b"\0"
    path.write_bytes(model + b"\x1a" + write_varint(len(settings)) + settings)
    refuse(lambda: Tokenizer(9, vocabulary=path).encode(["a"]), "a character must become 64 bytes at most, got")


def write_varint(value: int) -> bytes:
    groups = [value >> shift & 127 for shift in range(0, max(1, value.bit_length()), 7)]
    return bytes([*(group | 128 for group in groups[:-1]), groups[-1]])


def test_an_end_that_a_text_could_spell_is_refused(model: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.model"
    path.write_bytes(model)
    for end in ("▁", 0):
        refuse(
            lambda end=end: Tokenizer(9, vocabulary=path, end=end).encode(["a"]),
            "must be control pieces, which no text",
        )


def test_missing_sentencepiece_names_the_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.model").write_bytes(b"")
    monkeypatch.setattr("vitkit.data.vocabularies.sentencepiece_model.find_spec", lambda name: None)
    refuse(lambda: Tokenizer(9, vocabulary=tmp_path / "a.model").encode(["a"]), 'pip install "vitkit[sentencepiece]"')


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (b"[1]", "must hold the id of each piece: it must hold names and values"),
        (b"{", "must hold the id of each piece"),
        (b'{"a": 1}', "must have the numbers of its pieces: unknown must be a token of it, or an id, got unknown"),
        (b'{"<unk>": 0, "</s>": -1}', "ids must be whole numbers"),
        (b'{"<unk>": 0, "</s>": 0}', "ids must differ"),
        (b'{"<unk>": 0}', "end must be a token of it"),
    ],
)
def test_hostile_numbers_are_refused(numbers: bytes, message: str, model: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.model").write_bytes(model)
    (tmp_path / "vocab.json").write_bytes(numbers)
    path = tmp_path / "vocab.json"
    refuse(lambda: Tokenizer(9, vocabulary=tmp_path / "a.model", numbers=path).encode(["a"]), message)


@pytest.mark.parametrize(
    "content",
    [
        {"vocabulary": "bytes", "context": 9, "whole": False, "clean": None},
        {"vocabulary": "bytes", "context": 9, "whole": False, "end": 3},
        {"vocabulary": "tokenizer.json", "context": 9, "whole": False},
        {"vocabulary": "tokenizer.json", "context": 9, "whole": False, "clean": None, "pad": None, "end": [1]},
        {"vocabulary": "tokenizer.json", "context": 9, "whole": False, "clean": None, "pad": None, "numbers": "x"},
        {"vocabulary": "tokenizer.json", "context": 9, "whole": False, "clean": None, "pad": None, "special": "ab"},
        {"vocabulary": "spiece.model", "context": 9, "whole": False, "numbers": "../vocab.json"},
        {"vocabulary": "../x.json", "context": 9, "whole": False, "clean": None, "pad": None},
        {"vocabulary": "vocab.txt", "context": 9, "whole": False},
        {"vocabulary": 4096, "context": 9, "whole": False},
        {"vocabulary": "bytes", "context": "9", "whole": False},
        {"vocabulary": "bytes", "context": 9},
        {"vocabulary": "bytes", "context": True, "whole": False},
        {"vocabulary": ["bytes"], "context": 9, "whole": False},
        {"vocabulary": "tokenizer.json", "context": 9, "whole": False, "clean": None, "pad": True},
        {"vocabulary": "spiece.model", "context": 9, "whole": False, "end": True},
        {"vocabulary": "spiece.model", "context": 9, "whole": False, "begin": False},
        {"vocabulary": "spiece.model", "context": 9, "whole": False, "pad": 1.0},
        ["bytes"],
    ],
)
def test_another_text_json_is_refused(content: Any, tmp_path: Path) -> None:
    (tmp_path / "text.json").write_text(json.dumps(content))
    refuse(lambda: Tokenizer.from_folder(tmp_path), "must hold vocabulary (clip, bytes, tokenizer.json, spiece.model)")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocabulary": "bytes", "end": "x"}, "end must be left out for a vocabulary of bytes, got end=x"),
        ({"vocabulary": "clip", "cased": True}, "cased must be left out for a vocabulary of clip, got cased=True"),
        ({"vocabulary": 4096, "pad": 0}, "pad must be left out for a vocabulary of a number, got pad=0"),
        ({"vocabulary": "clp"}, "or a file: tokenizer.json, .model, .spm or vocab.txt, got vocabulary=clp"),
        ({"vocabulary": "bytes", "special": ["<|end|>"]}, "names that are new to the vocabulary, got <|end|>"),
        ({"vocabulary": "bytes", "special": ["<a>", "<a>"]}, "different names of several characters, got '<a>', '<a>'"),
        ({"vocabulary": "bytes", "special": ["a"]}, "different names of several characters, got 'a'"),
        ({"vocabulary": 300, "special": ["<a>", ""]}, "different names of several characters, got '<a>', ''"),
    ],
)
def test_options_of_another_kind_are_refused(options: dict[str, Any], message: str) -> None:
    refuse(lambda: Tokenizer(9, **options).encode(["a"]), message)


def test_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    refuse(lambda: Tokenizer(9, vocabulary=tmp_path), "vocabulary must be a model folder with text.json")


@pytest.mark.parametrize("name", ["<end>", "cat</w>"])
def test_special_name_of_a_clip_token_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"names that are new to the vocabulary, got {name}"):
        Tokenizer(9, special=[name]).encode(["a"])


def test_special_name_of_a_token_is_refused(model: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(change_model(vocab=VOCAB | {"hi": 3})))
    (tmp_path / "a.model").write_bytes(model)
    for name, special in (("a.json", "hi"), ("a.json", "</s>"), ("a.model", "<s>"), ("a.model", "<unk>")):
        known = Tokenizer(9, vocabulary=tmp_path / name, special=[special])
        refuse(lambda known=known: known.encode(["a"]), f"names that are new to the vocabulary, got {special}")


def test_a_link_is_followed(tmp_path: Path) -> None:
    """The links of a folder are trusted as the folder is."""
    trained = Tokenizer(9, vocabulary=270).train(["a cat"] * 9)
    (tmp_path / "elsewhere.json").write_text(train_byte_pairs(["a cat"] * 9, 270))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer.json").symlink_to(tmp_path / "elsewhere.json")
    (tmp_path / "model" / "text.json").write_bytes(read_tokenizer_files(trained)["text.json"])
    opened = Tokenizer.from_folder(tmp_path / "model")
    assert opened is not None
    assert opened.encode_and_cut(["a cat"]) == trained.encode_and_cut(["a cat"])
