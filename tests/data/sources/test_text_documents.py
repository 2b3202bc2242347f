"""Sources of texts: the same texts in every form are the same samples."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from vitkit.data.annotations.documents import DOCUMENTS
from vitkit.data.sources.open import open_source

TEXTS = ("one\ntwo\n", "naïve 🙂", " three")


def write_folder(root: Path) -> Path:
    for number, text in enumerate(TEXTS):
        (root / f"{number}.txt").write_text(text, "utf-8")
    (root / "picture.png").write_bytes(b"")
    return root


def write_jsonl(root: Path) -> Path:
    (root / "x.jsonl").write_text("".join(json.dumps({"id": 1, "text": text}) + "\n" for text in TEXTS), "utf-8")
    return root / "x.jsonl"


def write_parquet(root: Path) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": TEXTS}), root / "x.parquet")
    return root / "x.parquet"


def write_shard(root: Path) -> Path:
    with tarfile.open(root / "x.tar", "w") as file:
        for number, text in enumerate(TEXTS):
            for suffix, content in (("txt", text.encode()), ("json", b"{}")):
                member = tarfile.TarInfo(f"{number}.{suffix}")
                member.size = len(content)
                file.addfile(member, io.BytesIO(content))
    return root / "x.tar"


@pytest.mark.parametrize("write", [write_folder, write_jsonl, write_parquet, write_shard])
def test_texts_of_every_form_are_the_samples(write: Callable[[Path], Path], tmp_path: Path) -> None:
    source = open_source(str(write(tmp_path)), DOCUMENTS)
    assert [source.read_content(sample).decode() for sample in range(len(source))] == [*TEXTS]
    assert len({source.get_name(sample) for sample in range(3)}) == 3


def test_rows_of_a_data_set_are_the_samples(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"text": [*TEXTS]}).save_to_disk(tmp_path / "set")
    source = open_source(f"hf:{tmp_path / 'set'}", DOCUMENTS)
    assert [source.read_content(sample).decode() for sample in range(3)] == [*TEXTS]


def test_one_file_is_one_text(tmp_path: Path) -> None:
    write_folder(tmp_path)
    assert len(open_source(str(tmp_path / "1.txt"), DOCUMENTS)) == 1


def test_topics_of_the_manual_need_no_download() -> None:
    source = open_source("python", DOCUMENTS)
    assert len(source) > 70 and b"assert" in source.read_content(0)


def test_other_files_of_a_folder_are_counted(tmp_path: Path) -> None:
    (omission,) = open_source(str(write_folder(tmp_path)), DOCUMENTS).omissions
    assert (omission.reason, omission.count) == ("files other than texts", 1)


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        ("absent.txt", None, "a text that exists"),
        ("pithon", None, "did you mean python"),
        ("x.jsonl", ("body",), "columns must be among id, text, got body; name them by columns=[NAME]"),
        ("x.jsonl", ("id",), "every row must hold a text, got others in line 1 (1)"),
        ("x.jsonl", ("id", "text", "x"), "columns must be one, of the text"),
        ("empty", None, "source must hold texts (.txt)"),
    ],
)
def test_errors_say_what_a_source_of_texts_is(
    name: str, columns: tuple[str, ...] | None, message: str, tmp_path: Path
) -> None:
    write_jsonl(tmp_path)
    (tmp_path / "empty").mkdir()
    path = tmp_path / name if (tmp_path / name).exists() else name
    with pytest.raises(ValueError) as error:
        open_source(str(path), DOCUMENTS, columns)
    assert message in str(error.value)
