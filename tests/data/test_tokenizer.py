"""Texts as ids, beside the tokenizers of open_clip and transformers."""

import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from open_clip.tokenizer import HFTokenizer, SimpleTokenizer
from tokenizers import Tokenizer as Rust
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers
from torch.testing import assert_close

from vitkit.data.tokenizer import CLEANS, CLIP, FILE, TEXT, Tokenizer, format_tokenizer
from vitkit.data.vocabularies.clip_byte_pairs import load_clip_vocabulary
from vitkit.data.vocabularies.vocabulary import Vocabulary

WORDS = ["a photo of a cat", "the quick brown fox", "jumps over the lazy dog", "cats, dogs & owls", "s < / s >"]
SPELLED = ["a </s> cat", "</S>", "<pad>a<unk>", "x</s></s>", "&lt;/s&gt; a"]


@pytest.fixture
def unigram(tmp_path: Path) -> Path:
    """As T5 and SigLIP have it: "</s>" after each text, and among the words."""
    file = Rust(models.Unigram())
    file.normalizer = normalizers.NFKC()
    file.pre_tokenizer = pre_tokenizers.Metaspace()
    specials = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=specials, unk_token="<unk>", show_progress=False)
    file.train_from_iterator(WORDS * 4, trainer)
    file.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    file.enable_truncation(4)
    file.enable_padding(length=5, pad_id=0, pad_token="<pad>")
    (tmp_path / "unigram").mkdir()
    file.save(str(tmp_path / "unigram" / FILE))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "</s>",
        "pad_token": "</s>",
        "unk_token": "<unk>",
    }
    (tmp_path / "unigram" / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path / "unigram" / FILE


@pytest.fixture
def pieces(tmp_path: Path) -> Path:
    """As BERT has it: an id before and one after each text."""
    file = Rust(models.WordPiece(unk_token="[UNK]"))
    file.normalizer, file.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    file.train_from_iterator(
        WORDS * 4, trainers.WordPieceTrainer(vocab_size=80, special_tokens=specials, show_progress=False)
    )
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    file.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    file.save(str(tmp_path / FILE))
    return tmp_path / FILE


def strings() -> list[str]:
    """About 10,000: names of emoji in many languages, punctuation, HTML, and characters of every plane."""
    from emoji import EMOJI_DATA, config

    languages = ["en", "es", "ja", "ko", "pt", "it", "fr", "de", "fa", "id", "zh", "ru", "tr", "ar"]
    config.load_language(languages)
    names = [str(data[language]) for data in EMOJI_DATA.values() for language in languages if language in data]
    names = [name.strip(":").replace("_", " ") for name in names[::20]]
    planes = [chr(code) * 3 + "x" for code in range(32, 0x1FFFF, 61) if not 0xD800 <= code < 0xE000]
    generator = torch.Generator().manual_seed(0)
    signs = "".join(map(chr, range(32, 127))) + " \t\n&amp;lt;'s'RE 1½²"
    drawn = torch.randint(len(signs), (1500, 12), generator=generator).tolist()
    html = [f"{name} &amp; <b>{name.upper()}</b> &eacute;&#233;&amp;quot; Ã©" for name in names[::40]]
    return [*names, *EMOJI_DATA, *planes, *("".join(signs[i] for i in row) for row in drawn), *html, "", " ", "a" * 300]


def open_vocabulary(path: Path, clean: str | None = None) -> Vocabulary:
    return Tokenizer(50, vocabulary=path, clean=clean).vocabulary


def test_byte_pairs_equal_open_clip() -> None:
    texts = strings()
    assert len(texts) > 10_000
    theirs = SimpleTokenizer()
    rows, cut = Tokenizer(77).encode_and_cut(texts)
    expected = [[49406, *theirs.encode(text), 49407] for text in texts]
    wrong = [
        text for text, row, other in zip(texts, rows, expected, strict=True) if row != [*other[:76], 49407][: len(row)]
    ]
    assert not wrong
    assert cut == tuple(row for row, ids in enumerate(expected) if len(ids) > 77)


def test_texts_cannot_spell_clip_special_tokens() -> None:
    for text in ("a <end_of_text> b", "<START_OF_TEXT>", "<|endoftext|>", "&lt;end_of_text&gt;", "< end_of_text >"):
        row = Tokenizer()(text)[0].tolist()
        assert (row[0], row[-1]) == (49406, 49407)
        assert not {49406, 49407} & {*row[1:-1]}
        assert len(row) > 4


@pytest.mark.parametrize("clean", CLEANS)
def test_tokenizer_json_equals_open_clip(clean: str, unigram: Path) -> None:
    theirs = HFTokenizer(str(unigram.parent), context_length=9, clean=clean)
    ours = Tokenizer(9, whole=True, vocabulary=unigram, clean=clean, pad=1, overflow="truncate")
    texts = [*WORDS, "", "A_Cat,  the\tDOG's\n&amp; fox!", "ｆｕｌｌ width", "x" * 40, "é ü ß 漢字"]
    assert_close(ours(texts), theirs(texts), rtol=0, atol=0)


def test_tokenizer_json_equals_transformers(unigram: Path, pieces: Path) -> None:
    transformers = pytest.importorskip("transformers")
    for path in (unigram, pieces):
        theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
        rows, _ = Tokenizer(50, vocabulary=path).encode_and_cut(WORDS)
        assert rows == theirs(WORDS, padding=False, truncation=False).input_ids


def test_only_the_pad_id_of_a_file_is_used(unigram: Path, pieces: Path) -> None:
    longest = Tokenizer(50, vocabulary=unigram)(["a cat", *WORDS])
    assert longest.shape[1] > 5
    assert longest[0, -1] == 0  # as its padding says
    assert Tokenizer(50, vocabulary=unigram, pad=1)(["a", "a cat"])[0, -1] == 1
    assert open_vocabulary(pieces).pad == open_vocabulary(pieces).end == 3  # neither padding nor <pad>
    with pytest.warns(UserWarning, match="1 of 2 texts do not fit into 4 ids"):
        ids = Tokenizer(4, vocabulary=pieces)(["a cat", "the quick brown fox"])
    assert ids[1].tolist()[0::3] == [2, 3]


@pytest.mark.parametrize("text", SPELLED)
def test_texts_cannot_spell_special_tokens_of_a_file(text: str, unigram: Path, pieces: Path) -> None:
    for clean in (None, *CLEANS):
        row = Tokenizer(50, vocabulary=unigram, clean=clean).encode_and_cut([text])[0][0]
        assert row[-1] == 1
        assert not {0, 1} & {*row[:-1]}
        assert len(row) > 2  # of ordinary characters
    row = Tokenizer(50, vocabulary=pieces).encode_and_cut([f"[SEP] {text} [CLS] [PAD]"])[0][0]
    assert (row[0], row[-1]) == (2, 3)
    assert not {0, 2, 3} & {*row[1:-1]}
    bare = Rust.from_file(str(unigram))  # would read them
    assert 1 in bare.encode("a </s>", add_special_tokens=False).ids
    bare.encode_special_tokens = True
    assert 1 in bare.encode("a</s>", add_special_tokens=False).ids


def test_pickled_tokenizer_is_equal_and_file_is_read_once(unigram: Path) -> None:
    ours = Tokenizer(40, vocabulary=unigram, clean="lower")
    expected = ours(WORDS)
    again = pickle.loads(pickle.dumps(ours))
    assert_close(again(WORDS), expected, rtol=0, atol=0)
    assert again.vocabulary is ours.vocabulary
    assert ours.vocabulary is not Tokenizer(9, vocabulary=unigram).vocabulary


def test_model_folder_round_trips_file_and_options(unigram: Path, tmp_path: Path) -> None:
    ours = Tokenizer(30, whole=True, vocabulary=unigram, clean="canonicalize", pad=1)
    for name, text in format_tokenizer(ours).items():
        (tmp_path / name).write_text(text, "utf-8")
    again = Tokenizer.from_folder(tmp_path)
    assert again is not None
    assert again.name == tmp_path / FILE
    assert_close(again(WORDS), ours(WORDS), rtol=0, atol=0)
    content = json.loads((tmp_path / TEXT).read_text())
    for wrong in ({"pad": "a"}, {"clean": 1}, {"more": 1}, {"vocabulary": CLIP}):
        (tmp_path / TEXT).write_text(json.dumps({**content, **wrong}))
        with pytest.raises(ValueError, match="must hold vocabulary"):
            Tokenizer.from_folder(tmp_path)


def test_text_json_is_stable(unigram: Path) -> None:
    """The fingerprints of models hold it, so later options must not change it."""
    clip = '{\n  "vocabulary": "clip",\n  "context": 77,\n  "whole": false\n}\n'
    assert format_tokenizer(Tokenizer()) == {TEXT: clip}
    file = (
        '{\n  "vocabulary": "tokenizer.json",\n  "context": 30,\n  "whole": true,\n  "clean": null,\n  "pad": null\n}\n'
    )
    ours = Tokenizer(30, whole=True, vocabulary=unigram)
    assert format_tokenizer(ours) == {TEXT: file, FILE: unigram.read_text("utf-8")}
    assert list(Tokenizer(30, vocabulary=unigram, pad=1, clean="lower", end="</s>", special=["<x>"]).to_dict()) == [
        *("vocabulary", "context", "whole", "clean", "pad", "end", "special")
    ]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: Tokenizer(clean="lower"), "clean must be left out for a vocabulary of clip, got clean=lower"),
        (lambda path: Tokenizer(vocabulary=path, clean="upper"), "clean must be left out or one of whitespace"),
        (lambda path: Tokenizer(vocabulary=path.parent / "x.json")("a"), "x.json must be a tokenizer.json"),
        (lambda path: Tokenizer(vocabulary=path.parent / "tokenizer_config.json")("a"), "must be a tokenizer.json"),
    ],
)
def test_invalid_vocabulary_is_one_line(make: Callable[[Path], Any], said: str, unigram: Path) -> None:
    with pytest.raises(ValueError, match=said) as raised:
        make(unigram)
    assert "\n" not in str(raised.value)


def test_file_without_end_is_refused(unigram: Path) -> None:
    file = Rust.from_file(str(unigram))
    file.post_processor = processors.TemplateProcessing(single="</s> $A", special_tokens=[("</s>", 1)])
    file.save(str(unigram))
    with pytest.raises(ValueError, match="must put an id after each text, got none; name one by end"):
        Tokenizer(9, vocabulary=unigram)("a")


def test_missing_library_names_the_install_command(unigram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tokenizers.__spec__ is not None
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.setattr("vitkit.data.vocabularies.tokenizer_json.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install \"vitkit\[tokenizers\]\""):
        Tokenizer(9, vocabulary=unigram)("a")


def test_time_is_linear_in_word_length() -> None:
    """The pairs of 16,000 letters in a row took seconds, and of 64,000 minutes."""
    pairs = load_clip_vocabulary()
    assert pairs.encode("ab" * 1500) == pairs.encode("ab" * 500) * 3


def test_words_known_only_as_bytes_are_named() -> None:
    trained = Tokenizer(16, vocabulary=300).train(["a red square", "a green circle"] * 9)
    with pytest.warns(
        UserWarning, match="vocabulary knows 'zebu', '猫' only as bytes or as unknown: scores mean littl"
    ):
        trained.check_words(["a red zebu, 猫"])
    assert trained.find_unknown_words(["a green square", "a 12 red !!"]) == []
    assert Tokenizer(16, vocabulary="bytes").find_unknown_words(["zebu"]) == []
    assert Tokenizer().find_unknown_words(["a Przewalski horse", "ꙮꙮ"]) == ["ꙮꙮ"]


def test_single_text_is_refused_where_a_list_is_needed() -> None:
    """Each of its letters was one."""
    with pytest.raises(ValueError, match="texts must be a list, got one text: 'a dog'"):
        Tokenizer().encode_and_cut("a dog")
    assert Tokenizer()("a dog").shape == (1, 4)
