"""Texts to ids and back, whole and in pieces, for each kind of vocabulary."""

import io
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Rust
from tokenizers import decoders, models, pre_tokenizers, processors

from vitkit.data.tokenizer import Tokenizer, read_tokenizer_files
from vitkit.data.vocabularies.byte_pair_training import train_byte_pairs
from vitkit.data.vocabularies.token_spelling import map_byte_characters
from vitkit.data.vocabularies.tokenizer_json import parse_vocabulary
from vitkit.data.vocabularies.vocabulary import END, name_id

WORDS = ["a photo of a cat", "the quick brown fox", "jumps over the lazy dog", "cats, dogs & owls, don't"] * 3
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "cat", "##s", "dog", ",", "don", "'", "t", "cafe", "Cat", "n't", "漢"]
EMOJI = "👨‍👩‍👧"


def draw_texts(count: int) -> list[str]:
    """Characters of all planes, combining marks, control characters, white space, and special tokens."""
    generator = random.Random(0)
    spaces = "\r\n\t \x00\x0b\x0c\x1b\x85\u00a0\u2003\u2028\u3000\ufeff"
    spelled = [END, "<image>", "</s>", "[SEP]", "\r\n", EMOJI, "e\u0301", "\ufffd", "🇫🇷", "  "]
    texts = []
    for _ in range(count):
        signs = [
            generator.choice(
                [
                    chr(generator.randrange(32, 127)),
                    generator.choice(spaces),
                    generator.choice(spelled),
                    chr(generator.randrange(0xA0, 0xD800)),
                    chr(generator.randrange(0xE000, 0x110000)),
                    chr(generator.randrange(0x300, 0x370)),
                ]
            )
            for _ in range(generator.randrange(20))
        ]
        texts.append("".join(signs))
    return texts


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    return Tokenizer(50, vocabulary=320, special=("<image>",)).train(WORDS)


@pytest.fixture(scope="module")
def vocab_txt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bert") / "vocab.txt"
    path.write_text("\n".join(VOCAB) + "\n", "utf-8")
    return path


def train_sentencepiece(folder: Path, **options: object) -> Path:
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(WORDS),
        model_writer=model,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **options,
    )
    (folder / "spiece.model").write_bytes(model.getvalue())
    return folder / "spiece.model"


@pytest.fixture(scope="module")
def unigram(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    return train_sentencepiece(tmp_path_factory.mktemp("unigram"), model_type="unigram", vocab_size=60, **ids)


@pytest.fixture(scope="module")
def fallback(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True}
    return train_sentencepiece(tmp_path_factory.mktemp("bpe"), model_type="bpe", vocab_size=320, **options)


@pytest.fixture
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    match request.param:
        case "clip" | "bytes" as vocabulary:
            return Tokenizer(50, vocabulary=vocabulary)
        case "trained":
            return request.getfixturevalue("trained")
        case "wordpiece":
            return Tokenizer(50, vocabulary=request.getfixturevalue("vocab_txt"))
    return Tokenizer(50, vocabulary=request.getfixturevalue(request.param))


exact = pytest.mark.parametrize("tokenizer", ["bytes", "trained", "fallback"], indirect=True)
KINDS = ["clip", "bytes", "trained", "unigram", "fallback", "wordpiece"]
each_kind = pytest.mark.parametrize("tokenizer", KINDS, indirect=True)


@exact
def test_decode_inverts_encode(tokenizer: Tokenizer) -> None:
    texts = draw_texts(1000)
    rows, vocabulary = tokenizer.encode(texts), tokenizer.vocabulary
    expected = texts
    if tokenizer.kind == "spiece.model":  # its sign for a space is a space
        expected = [text.replace("▁", " ") for text in texts]
    assert [tokenizer.decode(row) for row in rows] == expected
    assert [tokenizer.decode([*vocabulary.begin, *row, *vocabulary.finish]) for row in rows] == expected
    assert not {*vocabulary.special.values()} & {number for row in rows for number in row}


@each_kind
def test_joined_pieces_equal_decode(tokenizer: Tokenizer) -> None:
    """The property holds for ids of texts and for random ids, which are no UTF-8."""
    generator = random.Random(1)
    drawn = [[generator.randrange(tokenizer.vocabulary.size) for _ in range(12)] for _ in range(300)]
    for row in [*tokenizer.encode_and_cut(draw_texts(200))[0], *drawn]:
        pieces = [*tokenizer.decode_pieces(iter(row))]
        assert all(pieces)
        assert "".join(pieces) == tokenizer.decode(row)


@exact
def test_incomplete_character_is_held_back(tokenizer: Tokenizer) -> None:
    ids, taken = tokenizer.encode(["é漢"])[0], []

    def feed() -> Iterator[int]:
        for number in ids:
            taken.append(number)
            yield number

    pieces = [(piece, len(taken)) for piece in tokenizer.decode_pieces(feed())]
    assert [piece for piece, _ in pieces if piece.strip()] == ["é", "漢"]
    assert pieces[-1][1] == len(ids)
    assert [*tokenizer.decode_pieces(ids[:-1])][-1] == "\ufffd"


@exact
def test_bytes_that_are_no_utf8_are_replacement_characters(tokenizer: Tokenizer) -> None:
    vocabulary = tokenizer.vocabulary
    byte = {vocabulary.spell(number): number for number in range(vocabulary.size)}
    for raw in (b"\xff", b"a\xc3", b"\xc3a", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\x80\xe2\x82\xac"):
        assert tokenizer.decode([byte[bytes([value])] for value in raw]) == raw.decode("utf-8", "replace")


@each_kind
def test_a_lone_surrogate_is_a_replacement_character(tokenizer: Tokenizer) -> None:
    texts = ["cat \ud83d dog", "\udfff", "\ud83d\ude00"]
    assert tokenizer.encode(texts) == tokenizer.encode(["cat \ufffd dog", "\ufffd", "\ufffd\ufffd"])


@each_kind
def test_special_ids_are_left_out_and_others_refused(tokenizer: Tokenizer) -> None:
    vocabulary = tokenizer.vocabulary
    assert tokenizer.decode([*vocabulary.special.values()]) == ""
    row = tokenizer.encode_and_cut(["cat"])[0][0]
    assert tokenizer.decode([*row, vocabulary.end, vocabulary.end]) == "cat"
    for number in (-1, vocabulary.size, 10**12):
        with pytest.raises(ValueError, match=rf"ids must be in \[0, {vocabulary.size:,}\), got {number}"):
            tokenizer.decode([row[0], number])


@each_kind
def test_each_id_has_a_name(tokenizer: Tokenizer) -> None:
    vocabulary = tokenizer.vocabulary
    for name, number in vocabulary.special.items():
        assert name_id(vocabulary, number) == name
    words = [name_id(vocabulary, number) for number in tokenizer.encode(["cats, dogs"])[0]]
    assert "".join(words).replace(" ", "") == "cats,dogs"


@pytest.mark.parametrize(
    ("tokenizer", "text", "expected"),
    [
        ("clip", "A  PHOTO of\ta cat &amp; 2 dogs!", "a photo of a cat & 2 dogs !"),
        ("clip", EMOJI, EMOJI),
        ("wordpiece", "Cats,  dogs", "cats, dogs"),
        ("wordpiece", "café 漢 don't owl", "cafe 漢 don ' t \ufffd"),
        ("unigram", "  a  photo\tof ", "a photo of"),
        ("unigram", "a 漢 cat", "a \ufffd cat"),
        ("fallback", "  a  photo ", "  a  photo "),
    ],
    indirect=["tokenizer"],
)
def test_decode_returns_the_text_as_read(tokenizer: Tokenizer, text: str, expected: str) -> None:
    assert tokenizer.decode(tokenizer.encode([text])[0]) == expected
    if "\ufffd" not in expected:  # which T5 and BERT read as nothing
        assert tokenizer.decode(tokenizer.encode([expected])[0]) == expected


def test_ids_of_bytes_are_their_values() -> None:
    tokenizer = Tokenizer(5, vocabulary="bytes", overflow="truncate")
    assert tokenizer.encode(["aé\x00"]) == [[97, 195, 169, 0]]
    assert tokenizer(["a", "abcdef"]).tolist() == [[97, 256, 256, 256, 256], [97, 98, 99, 100, 256]]
    assert tokenizer.vocabulary.size == 257
    assert read_tokenizer_files(tokenizer).keys() == {"text.json"}


def test_cased_keeps_the_case_of_a_vocab_txt(vocab_txt: Path) -> None:
    assert Tokenizer(9, vocabulary=vocab_txt).encode_and_cut(["Cat café"])[0] == [[2, 4, 11, 3]]
    assert Tokenizer(9, vocabulary=vocab_txt, cased=True).encode_and_cut(["Cat café"])[0] == [[2, 12, 1, 3]]


def test_vocab_txt_is_saved_as_tokenizer_json(vocab_txt: Path, tmp_path: Path) -> None:
    ours = Tokenizer(9, vocabulary=vocab_txt, cased=True)
    for name, content in read_tokenizer_files(ours).items():
        (tmp_path / name).write_bytes(content)
    again = Tokenizer.from_folder(tmp_path)
    assert again is not None
    assert (again.kind, again.vocabulary.pad) == ("tokenizer.json", 0)
    assert again.encode_and_cut(["Cat, dog"]) == ours.encode_and_cut(["Cat, dog"])


def test_decoder_across_tokens_is_refused(tmp_path: Path) -> None:
    """Texts are still read."""
    file = Rust(models.WordLevel({"a": 0, "</s>": 1}, unk_token="a"))
    file.add_special_tokens(["</s>"])
    for decoder in (decoders.CTC(), decoders.Sequence([decoders.Fuse(), decoders.Replace("a", "b")])):
        file.decoder = decoder
        file.save(str(tmp_path / "tokenizer.json"))
        ours = Tokenizer(9, vocabulary=tmp_path / "tokenizer.json", end="</s>", special=[decoder.__class__.__name__])
        assert ours.encode_and_cut(["a"])[0] == [[0, 1]]
        with pytest.raises(ValueError, match="decoder must spell texts token by token to be decoded with, got {'type'"):
            ours.decode([0])


@pytest.mark.parametrize("decoder", [None, decoders.BPEDecoder(), decoders.Metaspace(), decoders.WordPiece()])
def test_decoders_of_each_kind_are_as_in_tokenizers(decoder: object, tmp_path: Path) -> None:
    vocab = {"a": 0, "▁b": 1, "##c": 2, "d</w>": 3, ".": 4, "n't": 5, "</s>": 6, "▁": 7, "[UNK]": 8}
    file = Rust(models.WordLevel(vocab, unk_token="[UNK]"))
    file.add_special_tokens(["</s>"])
    if decoder is not None:
        file.decoder = decoder
    path = tmp_path / "tokenizer.json"
    file.save(str(path))
    ours = Tokenizer(9, vocabulary=path, end="</s>")
    for row in ([1, 0, 4, 3, 2, 5], [0, 1, 7, 3], [3, 3], [4, 2, 1], []):
        assert ours.decode(row) == file.decode(row)


def write_clip_json(path: Path) -> Path:
    """A file as CLIP's in transformers: its end stands for unknown characters too, of which there are none."""
    signs = [sign + suffix for suffix in ("", "</w>") for sign in map_byte_characters()]
    vocab = {token: number for number, token in enumerate([*signs, "<|startoftext|>", "<|endoftext|>"])}
    file = Rust(models.BPE(vocab, [], unk_token="<|endoftext|>", end_of_word_suffix="</w>"))
    file.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    file.decoder = decoders.ByteLevel()
    file.add_special_tokens(["<|startoftext|>", "<|endoftext|>"])
    file.post_processor = processors.RobertaProcessing(("<|endoftext|>", 513), ("<|startoftext|>", 512))
    file.save(str(path))
    return path


def test_an_end_that_stands_for_unknown_bytes_is_special_where_all_bytes_are_known(tmp_path: Path) -> None:
    path = write_clip_json(tmp_path / "tokenizer.json")
    ours = Tokenizer(30, vocabulary=path)
    assert (ours.vocabulary.begin, ours.vocabulary.finish) == ((512,), (513,))
    for text in ("é漢 <|endoftext|>", "\x00 a"):
        assert not {512, 513} & {*ours.encode([text])[0]}
    assert ours.decode([512, 513]) == ""
    content = json.loads(path.read_text())
    content["model"]["vocab"]["Ā0"] = content["model"]["vocab"].pop("Ā</w>")  # one byte is unknown
    with pytest.raises(
        ValueError, match=r"unk_token must not be the end of texts, got '<\|endoftext\|>'; name another"
    ):
        Tokenizer.from_text(json.dumps(content)).encode(["a"])


def test_texts_cannot_spell_the_end(trained: Tokenizer) -> None:
    assert trained.text is not None
    for end in ("!", "a", "he"):
        with pytest.raises(ValueError, match=rf"which no text can spell \(<\|end\|>, <image>\), got '{end}'"):
            Tokenizer.from_text(trained.text, end=end).encode(["a"])
    assert Tokenizer.from_text(trained.text, end="<image>").encode_and_cut(["<image>"])[0][0][-1] == 1


def test_a_rewritten_file_is_read_again(trained: Tokenizer, unigram: Path, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    for texts in (WORDS, ["zebra zebra"]):
        path.write_text(train_byte_pairs(texts, 320))
        ours = Tokenizer(50, vocabulary=path)
        assert ours.encode(["zebra cat"]) == Tokenizer.from_text(path.read_text()).encode(["zebra cat"])
        assert read_tokenizer_files(ours)["tokenizer.json"].decode() == path.read_text()
    model, numbers = tmp_path / "a.model", tmp_path / "vocab.json"
    model.write_bytes(unigram.read_bytes())
    spellings = Tokenizer(50, vocabulary=unigram).vocabulary
    names = ["<unk>", "</s>", *(f"{spellings.spell(n).decode().replace(' ', '▁')}" for n in range(3, spellings.size))]
    rows = []
    for order in (names, names[:2] + names[:1:-1]):
        numbers.write_text(json.dumps({name: number for number, name in enumerate(order)}))
        rows.append(Tokenizer(50, vocabulary=model, numbers=numbers).encode(["a cat"]))
        os.utime(numbers, ns=(1, 1))  # the same size; clocks may be coarse
    assert rows[0] != rows[1]


def test_relative_path_survives_a_change_of_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, tokenizers = [], []
    for name, texts in (("one", WORDS), ("two", ["zebra zebra"])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text(train_byte_pairs(texts, 320))
        monkeypatch.chdir(tmp_path / name)
        tokenizers.append(Tokenizer(50, vocabulary="tokenizer.json"))
        rows.append(tokenizers[-1].encode(["zebra cat"]))
    assert rows[0] != rows[1]
    assert [tokenizer.encode(["zebra cat"]) for tokenizer in tokenizers] == rows


def test_vocabulary_cache_is_bounded(trained: Tokenizer) -> None:
    for place in range(20):
        Tokenizer.from_text(train_byte_pairs([f"{place} {place}"] * 2, 320)).encode(["a"])
    assert parse_vocabulary.cache_info().currsize <= 8
