from pathlib import Path

import pytest

from vitkit.support.files import UNFINISHED, create_folder, fill_folder, require_new


def test_files_of_the_same_names_are_replaced_and_others_stay(tmp_path: Path) -> None:
    for name in ("model.bin", "notes.txt", "text.json"):
        (tmp_path / name).write_text("before")
    refusal = "holds model.bin, notes.txt, text.json; choose another, or add --overwrite"
    with pytest.raises(ValueError, match=refusal), create_folder(tmp_path):
        pytest.fail("refused before the work")
    with create_folder(tmp_path, overwrite=True, outdated=["text.json", "absent"]) as folder:
        (folder / "model.bin").write_text("after")
        assert (tmp_path / "model.bin").read_text() == "before"
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"model.bin": "after", "notes.txt": "before"}


def test_folder_of_a_stopped_command_is_filled_again(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    with pytest.raises(KeyboardInterrupt), fill_folder(require_new(out, folder=True)):
        raise KeyboardInterrupt
    assert not out.exists()  # nothing was written
    with pytest.raises(KeyboardInterrupt), fill_folder(out):
        (out / "0.png").touch()
        raise KeyboardInterrupt
    assert {path.name for path in out.iterdir()} == {"0.png", UNFINISHED}
    (out / "mine.txt").touch()
    with fill_folder(require_new(out, folder=True)):
        (out / "1.png").touch()
    assert {path.name for path in out.iterdir()} == {"1.png", "mine.txt"}  # none of the stopped command
    with pytest.raises(KeyboardInterrupt), fill_folder(require_new(out, True, folder=True)):
        raise KeyboardInterrupt
    with pytest.raises(ValueError, match="add --overwrite"):
        require_new(out, folder=True)
    (tmp_path / "outside").touch()
    (out / UNFINISHED).write_bytes(b"1.png\0../../outside\0..\0maps")
    (out / "maps").mkdir()
    with create_folder(require_new(out, folder=True)) as folder:
        (folder / "2.png").touch()
    assert {path.name for path in out.iterdir()} == {"2.png", "mine.txt", "maps"}
    assert (tmp_path / "outside").exists()


def test_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (link := tmp_path / "link").symlink_to(tmp_path / "real")
    with create_folder(link) as folder:
        (folder / "a").touch()
    assert link.is_symlink() and (tmp_path / "real" / "a").exists()


def test_folder_with_the_name_of_a_file_is_refused_before_any_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "c").write_text("before")
    with pytest.raises(ValueError, match="got b; rename it, or"), create_folder(tmp_path, True, ["c"]) as folder:
        for name in "ab":
            (folder / name).touch()
    assert {path.name for path in tmp_path.iterdir()} == {"b", "c"}


@pytest.mark.parametrize(("folder", "name"), [(False, ""), (True, "file"), (True, "file/in"), (False, "no/file")])
def test_path_that_cannot_be_written_is_refused_even_to_overwrite(folder: bool, name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="json must be a f"):
        require_new(tmp_path / name, True, folder=folder, option="json")
