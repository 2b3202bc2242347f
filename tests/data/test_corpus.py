"""Windows of texts, on both sides of a split."""

from collections import Counter
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from vitkit.data import token_stream
from vitkit.data.corpus import IGNORED, Corpus, WindowBatch, Windows, number_documents
from vitkit.data.order import Pick, TrainingOrder
from vitkit.data.sample_record import SampleRecord
from vitkit.data.tokenizer import Tokenizer
from vitkit.support.errors import InputWarning

START = 256


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Nine texts of unequal lengths, in (number + 3) different bytes."""
    (tmp_path / "texts").mkdir()
    for number in range(9):
        (tmp_path / "texts" / f"{number}.txt").write_text(chr(65 + number) * (3 + 2 * number) + "\n")
    return tmp_path / "texts"


def make_corpus(folder: Path, context: int = 8, **options: Any) -> Corpus:
    return Corpus(str(folder), tokenizer=Tokenizer(context, vocabulary="bytes"), **options)


def read_windows(windows: object, epoch: int = 0) -> WindowBatch:
    assert isinstance(windows, Windows)
    return windows[[Pick(epoch, number) for number in range(len(windows))]]


@pytest.mark.parametrize("context", [3, 7, 8, 64, 500])
def test_validation_counts_every_id_once_with_half_a_context_before_it(folder: Path, context: int) -> None:
    corpus = make_corpus(folder, context)
    batch = read_windows(corpus.validation_samples)
    texts = b"".join(text.encode() for text in corpus.read_texts(held_out=True))
    counted = batch.targets[batch.targets != IGNORED]
    assert Counter(counted.tolist()) == Counter([*texts, *[START] * len(corpus.validation)])
    _, positions = number_documents(batch.ids, -1), torch.arange(batch.ids.shape[1]).expand_as(batch.ids)
    late = (batch.targets != IGNORED)[1:] & (positions[1:] < context - context // 2 - 1)
    assert not late.any()
    assert corpus.bytes_per_target == len(texts) / len(counted)


def test_every_id_is_a_target_in_every_epoch(folder: Path) -> None:
    corpus = make_corpus(folder)
    texts = b"".join(text.encode() for text in corpus.read_texts(held_out=False))
    needed = Counter([*texts, *[START] * len(corpus.training)])
    epochs = [read_windows(corpus.training_samples, epoch).targets for epoch in range(3)]
    for targets in epochs:
        assert not needed - Counter(targets.flatten().tolist())
        assert targets.numel() - needed.total() < 8
    assert not torch.equal(epochs[0], epochs[1])


def test_targets_follow_ids_and_documents_are_numbered_from_their_starts(folder: Path) -> None:
    batch = read_windows(make_corpus(folder).training_samples)
    assert torch.equal(batch.ids[:, 1:], batch.targets[:, :-1])
    assert batch.positions is not None and batch.documents is not None
    starts = batch.ids == START
    assert (batch.positions[starts] == 0).all() and torch.equal(starts.cumsum(1), batch.documents)
    assert (batch.positions[:, 1:, 0][~starts[:, 1:]] == batch.positions[:, :-1, 0][~starts[:, 1:]] + 1).all()
    whole = number_documents(batch.ids.clamp(max=255), START)
    assert whole == (None, None)


def test_order_is_that_of_a_resumed_run(folder: Path) -> None:
    corpus, again = make_corpus(folder, batch=2), make_corpus(folder, batch=2)
    whole, part = corpus.train_dataloader(), again.train_dataloader()
    batches = [batch.ids for batch in whole]
    cast(TrainingOrder, part.sampler).done = (0, 3)
    assert torch.equal(torch.stack([batch.ids for batch in part]), torch.stack(batches[3:]))
    assert len(whole) == corpus.count_batches(1) == -(-len(corpus.training_items) // 2)


def test_whole_texts_are_held_out(folder: Path) -> None:
    sides = [{*make_corpus(folder, fold=fold, folds=3).validation} for fold in range(3)]
    assert set.union(*sides) == set(range(9)) and sum(map(len, sides)) == 9
    corpus = Corpus(str(folder), str(folder / "3.txt"), tokenizer=Tokenizer(8, vocabulary="bytes"))
    assert len(corpus.training) == 9 and corpus.find_duplicates() == [(3, 0)]


def test_texts_that_cannot_be_read_are_counted(folder: Path) -> None:
    (folder / "1.txt").write_bytes(b"caf\xe9")
    (folder / "2.txt").write_text(" \n")
    corpus = make_corpus(folder)
    lines = corpus.omissions.format(9, "texts")
    assert lines[0] == f"left out: 1 text without characters, such as {folder}/2.txt"
    assert lines[1] == f"error: text must be in UTF-8, got byte 0xe9 at 3 in {folder}/1.txt"
    assert {1, 2}.isdisjoint({*corpus.training, *corpus.validation})


def test_line_ends_and_a_byte_order_mark_are_read_alike(folder: Path) -> None:
    (folder / "0.txt").write_bytes(b"\xef\xbb\xbfa\r\nb\rc")
    assert "a\nb\nc" in [*make_corpus(folder).read_texts(False), *make_corpus(folder).read_texts(True)]


@pytest.mark.parametrize(
    ("contents", "message"),
    [((), "source must hold texts"), ((b"a",), "two texts"), ((b"\xff", b" "), "must hold a text that can be read")],
)
def test_corpus_without_two_texts_is_refused(contents: tuple[bytes, ...], message: str, tmp_path: Path) -> None:
    for number, content in enumerate(contents):
        (tmp_path / f"{number}.txt").write_bytes(content)
    with pytest.raises(ValueError) as error:
        make_corpus(tmp_path)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_number_trains_a_vocabulary_on_the_training_texts_alone(folder: Path) -> None:
    pytest.importorskip("tokenizers")
    corpus = Corpus(str(folder), tokenizer=Tokenizer(8, vocabulary=300))
    (held_out, *_) = corpus.read_texts(held_out=True)
    ids, other = corpus.tokenizer.encode([held_out, next(corpus.read_texts(held_out=False))])
    assert len(ids) == len(held_out) and len(other) < 4
    assert corpus.bytes_per_target < 1


def test_ids_of_a_large_corpus_are_mapped_from_one_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    whole = make_corpus(folder)
    monkeypatch.setattr(token_stream, "MAPPED", 1)
    mapped = make_corpus(folder)
    files = [*(tmp_path / "vitkit" / "tokens").iterdir()]
    assert len(files) == 2 and isinstance(cast(Windows, mapped.training_samples).stream.ids, np.memmap)
    one, two = read_windows(whole.training_samples), read_windows(mapped.training_samples)
    assert torch.equal(one.ids, two.ids) and torch.equal(one.indices, two.indices)
    times = {file: file.stat().st_mtime_ns for file in files}
    make_corpus(folder, seed=1)
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "vitkit" / "tokens").iterdir()} == times
    (folder / "0.txt").write_text("changed")
    make_corpus(folder)
    assert len([*(tmp_path / "vitkit" / "tokens").iterdir()]) == 3


def test_renamed_text_stays_held_out(folder: Path) -> None:
    corpus = make_corpus(folder)
    corpus.start_log(SampleRecord(folds=5))
    assert corpus.log is not None
    record, (text, *_) = corpus.log.make_record(), corpus.validation
    (folder / f"{text}.txt").rename(folder / "zz.txt")
    (folder / "aa.txt").write_text("another text")
    changed = make_corpus(folder)
    changed.start_log(record)
    names = {Path(changed.name_validation_sample(sample)).name for sample in changed.validation}
    assert "zz.txt" in names and len(names & {f"{sample}.txt" for sample in corpus.validation}) == len(names) - 1
    assert [*map(len, (changed.validation_items, changed.training_items))] == [
        len(read_windows(windows).ids) for windows in (changed.validation_samples, changed.training_samples)
    ]


def test_vocabulary_that_changes_texts_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("open_clip")
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(f"Upper CASE {name}")
    with pytest.warns(InputWarning, match="does not keep texts exactly"):
        Corpus(str(tmp_path), tokenizer=Tokenizer(8, vocabulary="clip"), folds=2)


def test_run_whose_held_out_texts_are_gone_is_refused(folder: Path) -> None:
    corpus = make_corpus(folder)
    corpus.start_log(SampleRecord(folds=5))
    assert corpus.log is not None
    for sample in corpus.validation:
        (folder / f"{sample}.txt").unlink()
    changed = make_corpus(folder)
    changed.start_log(corpus.log.make_record())
    with pytest.raises(ValueError, match="the validation set must hold windows for each rank, got 0"):
        changed.val_dataloader()
