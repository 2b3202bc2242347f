"""Byte pairs trained on texts."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from vitkit.data.tokenizer import Tokenizer, read_tokenizer_files
from vitkit.data.vocabularies.byte_pair_training import train_byte_pairs
from vitkit.data.vocabularies.vocabulary import END

TEXTS = ["a red heart", "a red cat", "red red wine", "a cat", "ein roter Hund", "красный кот", "赤い猫 赤い"]


def test_training_is_the_same_in_any_order_process_and_number_of_threads() -> None:
    generator, expected = Random(0), train_byte_pairs(TEXTS * 20, 300)
    assert train_byte_pairs(generator.sample(TEXTS * 20, 140), 300) == expected
    code = "import sys; from vitkit.data.vocabularies.byte_pair_training import train_byte_pairs as train; "
    code += f"sys.stdout.buffer.write(train({TEXTS!r} * 20, 300).encode())"
    for threads in "14":
        environment = {**os.environ, "RAYON_NUM_THREADS": threads}
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=environment)
        assert run.stdout.decode() == expected


def test_the_size_counts_bytes_and_special_tokens() -> None:
    file = json.loads(train_byte_pairs(TEXTS * 20, 300, ["<image>"]))
    assert len(file["model"]["vocab"]) == 300
    assert [token["content"] for token in file["added_tokens"]] == [END, "<image>"]
    assert len(file["model"]["merges"]) == 300 - 256 - 2


def test_pairs_that_occur_once_are_not_merged() -> None:
    file = json.loads(train_byte_pairs(["abcdef", "xyxy"], 1000))
    assert [list(merge) for merge in file["model"]["merges"]] == [["x", "y"]]


def test_special_tokens_cannot_be_spelled() -> None:
    tokenizer = Tokenizer(50, vocabulary=300, special=["<image>"]).train([*TEXTS, END, "<image>"] * 20)
    assert tokenizer.vocabulary.special == {END: 0, "<image>": 1}
    for text in (END, "a<image>b", f"{END}{END}", "<image"):
        ids = tokenizer.encode([text])[0]
        assert not {0, 1} & {*ids}
        assert tokenizer.decode(ids) == text


def test_trained_vocabulary_is_saved_in_a_model_folder(tmp_path: Path) -> None:
    trained = Tokenizer(50, vocabulary=300, special=["<image>"]).train(TEXTS * 20)
    for name, content in read_tokenizer_files(trained).items():
        (tmp_path / name).write_bytes(content)
    again = Tokenizer.from_folder(tmp_path)
    assert again is not None
    assert again.encode_and_cut(TEXTS) == trained.encode_and_cut(TEXTS)
    assert again.vocabulary.special == trained.vocabulary.special
    assert again.train(["another"]) is again
    assert trained.train(["another"]) is trained


def test_five_megabytes_take_seconds() -> None:
    """4,096 ids took 2 CPU seconds; the bound leaves room for a busy machine."""
    generator = Random(0)
    words = ["".join(generator.choices("etaoinshrdlu", k=generator.randrange(1, 9))) for _ in range(50_000)]
    texts = [" ".join(generator.choices(words, k=20)) for _ in range(50_000)]
    assert sum(map(len, texts)) > 5e6
    start = time.process_time()
    train_byte_pairs(texts, 4096)
    assert time.process_time() - start < 20


def test_a_vocabulary_without_room_for_pairs_is_refused() -> None:
    with pytest.raises(ValueError, match=r"vocabulary must be more than 256 bytes and <\|end\|>, got vocabulary=257"):
        train_byte_pairs(TEXTS, 257)
    with pytest.raises(ValueError, match="special must hold different names"):
        train_byte_pairs(TEXTS, 300, [END])
    with pytest.raises(ValueError, match="special must hold names that are no words of the texts, got red"):
        train_byte_pairs(TEXTS * 20, 300, ["<image>", "red"])
    with pytest.raises(ValueError, match="vocabulary must be trained before texts are read, got vocabulary=300"):
        Tokenizer(50, vocabulary=300).encode(["a"])
    with pytest.raises(ValueError, match="vocabulary must be trained before it is written, got vocabulary=300"):
        read_tokenizer_files(Tokenizer(50, vocabulary=300))
