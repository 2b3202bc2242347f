"""Every kind of vocabulary gives the same ids in transformers, here, and in files converted for AutoTokenizer.

The vocabularies are trained on names of emoji, in Latin, Cyrillic, Arabic, and Chinese, Japanese and Korean letters.
"""

import io
import json
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Rust
from tokenizers import models, normalizers, pre_tokenizers, trainers

from vitkit.convert.tokenizer_files import convert_tokenizer, read_hf_tokenizer
from vitkit.data.tokenizer import Tokenizer, read_tokenizer_files

transformers = pytest.importorskip("transformers")
SCRIPTS = (("en", "es", "fr", "de"), ("ru",), ("ar", "fa"), ("zh", "ja", "ko"))
# Special tokens, one of each kind of vocabulary.
SPELLED = [
    "a <|end|> b",
    "a</s>",
    "[SEP] a [PAD]",
    "<image>",
    "<|endoftext|>",
    "<s>",
    "x<extra_id_0>",
    "<unk>",
    "<pad>",
]


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """Return 1,000 lines of one to four names, 250 of each script."""
    from emoji import EMOJI_DATA, config

    config.load_language([*chain(*SCRIPTS)])
    rows: list[str] = []
    for languages in SCRIPTS:
        names = [str(data[language]) for data in EMOJI_DATA.values() for language in languages if language in data]
        names = [name.strip(":").replace("_", " ") for name in names]
        rows += [", ".join(names[7 * row : 7 * row + 1 + row % 4]) for row in range(250)]
    assert len({*rows}) > 990
    return rows


def write_files(folder: Path, files: dict[str, Any]) -> Path:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return folder


def train_sentencepiece(lines: list[str], **options: Any) -> bytes:
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=2000,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def unigram(lines: list[str]) -> bytes:
    """Return a SentencePiece unigram model with T5's special ids."""
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    return train_sentencepiece(lines, model_type="unigram", character_coverage=0.995, **ids)


@pytest.fixture(scope="module")
def gpt2(lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = Rust(models.BPE())
    file.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=2000, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    file.train_from_iterator(lines, trainer)
    folder = write_files(
        tmp_path_factory.mktemp("hub") / "gpt2", {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer"}}
    )
    file.model.save(str(folder))
    return folder


@pytest.fixture(scope="module")
def llama(lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = {"model_type": "bpe", "byte_fallback": True, "character_coverage": 0.99, "split_digits": True}
    options |= {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    files = {"tokenizer.model": train_sentencepiece(lines, **options)}
    files["tokenizer_config.json"] = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "add_bos_token": True}
    return write_files(tmp_path_factory.mktemp("hub") / "llama", files)


@pytest.fixture(scope="module")
def t5(unigram: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = {"spiece.model": unigram, "tokenizer_config.json": {"tokenizer_class": "T5Tokenizer"}}
    return write_files(tmp_path_factory.mktemp("hub") / "t5", files)


@pytest.fixture(scope="module")
def marian(unigram: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder whose vocab.json renumbers the pieces, drops some, and adds tokens that are no pieces."""
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_proto=unigram)
    pieces = [model.id_to_piece(place) for place in range(model.vocab_size())]
    names = ["</s>", "<unk>", *reversed(pieces[3:-50]), "▁autre", ">>fra<<", "<pad>"]
    files = {"source.spm": unigram, "target.spm": unigram, "vocab.json": {name: n for n, name in enumerate(names)}}
    files["tokenizer_config.json"] = {"tokenizer_class": "MarianTokenizer"}
    return write_files(tmp_path_factory.mktemp("hub") / "marian", files)


def train_bert(lines: list[str], folder: Path, lower: bool) -> Path:
    file = Rust(models.WordPiece(unk_token="[UNK]"))
    file.normalizer, file.pre_tokenizer = normalizers.BertNormalizer(lowercase=lower), pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=2000, limit_alphabet=900, special_tokens=special, show_progress=False
    )
    file.train_from_iterator(lines, trainer)
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": lower}
    write_files(folder, {"tokenizer_config.json": config})
    file.model.save(str(folder))
    return folder


@pytest.fixture(scope="module")
def bert(lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_bert(lines, tmp_path_factory.mktemp("hub") / "bert", lower=True)


@pytest.fixture(scope="module")
def bert_cased(lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_bert([line.title() for line in lines], tmp_path_factory.mktemp("hub") / "bert_cased", lower=False)


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


KINDS = ("gpt2", "llama", "t5", "marian", "bert", "bert_cased")
each_kind = pytest.mark.parametrize("folder", KINDS, indirect=True)
# MarianTokenizer saves no tokenizer.json, and takes its ids from vocab.json alone.
each_but_marian = pytest.mark.parametrize("folder", [kind for kind in KINDS if kind != "marian"], indirect=True)
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")


def read_theirs(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder)


@each_kind
def test_ids_of_a_folder_equal_those_of_transformers(folder: Path, lines: list[str]) -> None:
    texts = [*lines, *(line.title() for line in lines[:250])]
    ours, theirs = read_hf_tokenizer(folder, 1000), read_theirs(folder)
    assert ours.encode(texts) == theirs(texts, add_special_tokens=False).input_ids
    end = [] if theirs("a").input_ids[-1] == ours.vocabulary.end else [ours.vocabulary.end]
    assert ours.encode_and_cut(texts)[0] == [[*row, *end] for row in theirs(texts).input_ids]


@each_but_marian
def test_ids_of_a_saved_tokenizer_json_equal_those_of_transformers(
    folder: Path, lines: list[str], tmp_path: Path
) -> None:
    read_theirs(folder).save_pretrained(tmp_path)
    for name in ("vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model"):
        assert not (tmp_path / name).exists()
    ours = read_hf_tokenizer(tmp_path, 1000)
    assert ours.kind == "tokenizer.json"
    assert ours.encode(lines) == read_hf_tokenizer(folder, 1000).encode(lines)
    assert ours.encode_and_cut(lines)[0] == read_hf_tokenizer(folder, 1000).encode_and_cut(lines)[0]


def write_folder(tokenizer: Tokenizer, folder: Path) -> Path:
    folder.mkdir()
    for name, content in convert_tokenizer(tokenizer).items():
        (folder / name).write_bytes(content)
    return folder


@each_kind
def test_transformers_gives_the_same_ids_with_converted_files(
    folder: Path, lines: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    ours = read_hf_tokenizer(folder, 1000)
    theirs = read_theirs(write_folder(ours, tmp_path / "out"))
    texts = lines if folder.name in ("t5", "marian") else [*lines, *SPELLED]  # see convert_tokenizer
    assert theirs(texts).input_ids == ours.encode_and_cut(texts)[0]
    again = read_hf_tokenizer(tmp_path / "out", 1000)
    assert again.encode_and_cut(lines)[0] == ours.encode_and_cut(lines)[0]


@pytest.mark.parametrize("special", [(), ("<image>", "<mask>")])
@pytest.mark.parametrize("vocabulary", ["bytes", 1000])
def test_transformers_gives_the_same_ids_with_vocabularies_trained_here(
    vocabulary: str | int, special: tuple[str, ...], lines: list[str], tmp_path: Path
) -> None:
    ours = Tokenizer(1000, vocabulary=vocabulary, special=special).train(lines)
    theirs = read_theirs(write_folder(ours, tmp_path / "out"))
    texts = [*lines, *SPELLED]
    assert theirs(texts).input_ids == ours.encode_and_cut(texts)[0]
    assert theirs.convert_tokens_to_ids(["<|end|>", *special]) == [
        ours.vocabulary.special[name] for name in ("<|end|>", *special)
    ]


@each_but_marian
def test_further_special_tokens_have_the_same_ids_in_transformers(
    folder: Path, lines: list[str], tmp_path: Path
) -> None:
    known = read_hf_tokenizer(folder, 1000)
    files = {**read_tokenizer_files(known)}
    (source,) = [write_files(tmp_path / "ours", files) / name for name in files if name != "text.json"]
    names = ("<image>", "<audio>")
    options = {"begin": known.begin, "end": known.end}
    ours = Tokenizer(1000, vocabulary=source, special=(*known.special, *names), **options)
    theirs = read_theirs(write_folder(ours, tmp_path / "out"))
    assert theirs.convert_tokens_to_ids([*names]) == [ours.vocabulary.special[name] for name in names]
    assert ours.vocabulary.special["<audio>"] == known.vocabulary.size + 1
    assert theirs(lines[::10]).input_ids == known.encode_and_cut(lines[::10])[0]
    assert "<image>" not in ours.decode([ours.vocabulary.special["<image>"]])


def test_ids_that_a_layout_cannot_represent_raise(marian: Path, llama: Path) -> None:
    clip = Tokenizer(9, vocabulary="clip", special=["<image>"])
    with pytest.raises(ValueError, match=r"special must be left out .* CLIPTokenizer.*, got special=\('<image>',\)"):
        convert_tokenizer(clip)
    known = read_hf_tokenizer(marian, 9)
    for options in ({"special": ["<image>"]}, {"begin": "<pad>"}, {"begin": 0}):
        ours = Tokenizer(9, vocabulary=Path(known.name), numbers=known.numbers, end=known.end, **options)
        with pytest.raises(ValueError, match=r"special and begin must be left out .* MarianTokenizer.*, got \w+="):
            convert_tokenizer(ours)
    with pytest.raises(ValueError, match="must be control pieces to be written, got pad_token=300"):
        convert_tokenizer(Tokenizer(9, vocabulary=llama / "tokenizer.model", pad=300))


@each_kind
def test_special_tokens_in_a_text_are_ordinary_characters(folder: Path) -> None:
    ours = read_hf_tokenizer(folder, 1000)
    vocabulary = ours.vocabulary
    for text in SPELLED:
        ids = ours.encode([text])[0]
        assert not {*vocabulary.special.values()} & {*ids}
        assert len(ids) > 1
        letters = [sign for sign in ours.decode(ids) if sign.isalnum()]
        assert "".join(letters).casefold() in "".join(sign for sign in text if sign.isalnum()).casefold()
        assert letters


@each_kind
def test_decoded_texts_equal_those_of_transformers(folder: Path, lines: list[str]) -> None:
    ours, theirs = read_hf_tokenizer(folder, 1000), read_theirs(folder)
    unknown = theirs.unk_token_id if folder.name != "gpt2" else None
    rows = [row for row in ours.encode_and_cut(lines)[0] if unknown not in row]
    assert len(rows) > 400
    expected = theirs.batch_decode(rows, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert [ours.decode(row) for row in rows] == expected


def test_model_folders_and_other_processes_give_the_same_ids(
    lines: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    tokenizers, expected = [], []
    for kind in KINDS:
        ours = read_hf_tokenizer(request.getfixturevalue(kind), 1000)
        folder = write_files(tmp_path / kind, {**read_tokenizer_files(ours)})
        again = Tokenizer.from_folder(folder)
        assert again is not None
        assert again.to_dict() == ours.to_dict()
        assert read_tokenizer_files(again) == read_tokenizer_files(ours)
        tokenizers += [ours, again, Tokenizer(1000, vocabulary=folder)]
        expected += [ours.encode_and_cut(lines[::20])] * 3
    for method in ("fork", "spawn"):
        with get_context(method).Pool(1) as pool:
            assert pool.map(partial(read_rows, lines[::20]), tokenizers) == expected


def read_rows(texts: list[str], tokenizer: Tokenizer) -> Any:
    return tokenizer.encode_and_cut(texts)


def test_end_of_a_gpt2_is_its_eos_token(gpt2: Path, tmp_path: Path) -> None:
    """GPT-2's tokenizer.json appends nothing to a text."""
    theirs = read_theirs(gpt2)
    theirs.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"must put an id after each text, got none; name one by end, .*endoftext"):
        Tokenizer(9, vocabulary=tmp_path / "tokenizer.json").encode(["a"])
    end = theirs.eos_token_id
    for name in ("<|endoftext|>", end):
        ours = Tokenizer(9, vocabulary=tmp_path / "tokenizer.json", end=name)
        assert ours.encode_and_cut(["a cat"])[0] == [[*theirs("a cat").input_ids, end]]
    assert read_hf_tokenizer(tmp_path, 9).end == "<|endoftext|>"
    with pytest.raises(ValueError, match="end must be a token of it, or an id, got end='<end>'"):
        Tokenizer(9, vocabulary=tmp_path / "tokenizer.json", end="<end>").encode(["a"])
    with pytest.raises(ValueError, match="must hold the ids around texts, below 2,000, got 5000"):
        Tokenizer(9, vocabulary=tmp_path / "tokenizer.json", end=5000).encode(["a"])


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        (
            "vocab.txt",
            {"tokenizer_class": "TapasTokenizer"},
            "takes its ids from vocab.txt, one of Bert",
        ),
        ("spiece.model", {"tokenizer_class": "AlbertTokenizer"}, "takes its ids from spiece.model"),
        ("spiece.model", {"tokenizer_class": "T5Tokenizer", "extra_ids": 10**9}, "0 to 1,000 extra_ids, got"),
        ("tokenizer.model", {}, "got None; save it with a tokenizer.json"),
        ("else.txt", {}, r"must hold a vocabulary \(tokenizer.json, source.spm"),
    ],
)
def test_unsupported_folder_raises(name: str, config: Any, message: str, tmp_path: Path) -> None:
    write_files(tmp_path / "hub", {name: b"", "tokenizer_config.json": config})
    with pytest.raises(ValueError, match=message):
        read_hf_tokenizer(tmp_path / "hub", 9)
