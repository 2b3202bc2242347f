from pathlib import Path

import pytest
from open_clip import IMAGENET_CLASSNAMES
from torch.testing import assert_close

from vitkit.convert.open import open_pair_model
from vitkit.inference import prompts
from vitkit.inference.embeddings import encode_classes
from vitkit.inference.prompts import PHOTO, cache_folder, distinct, embedded, parse_class_names, templates_of
from vitkit.interpret.see.edits import Head, edit


def test_classes_are_named_or_listed_in_a_file(tmp_path: Path) -> None:
    assert parse_class_names(["cat", "red heart"]) == ("cat", "red heart")
    (tmp_path / "names.txt").write_text("\ufeffcat\n\n  red heart \r\ntwo\n", "utf-8")
    assert parse_class_names([str(tmp_path / "names.txt")]) == ("cat", "red heart", "two")
    assert parse_class_names(["imagenet"]) == tuple(IMAGENET_CLASSNAMES)


def test_templates_are_given_or_listed_or_clip_s(tmp_path: Path) -> None:
    assert templates_of(["{}"]) == ("{}",)
    assert templates_of(["a {}", "the {}"]) == ("a {}", "the {}")
    (tmp_path / "templates").write_text("a {}\nthe {}\n")
    assert templates_of([str(tmp_path / "templates")]) == ("a {}", "the {}")
    assert (len(templates_of(["imagenet"])), len(templates_of(["simple"]))) == (80, 7)
    assert templates_of(["imagenet"])[0] == "a bad photo of a {}."


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["cat"], "classes must be at least two names, a file with one a line, or imagenet, got 'cat' (No such file"),
        (["cat", " "], "classes must be at least two names, none of them empty, got ['cat', ' ']"),
    ],
)
def test_what_names_no_classes_is_one_line(given: list[str], told: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_class_names(given)
    assert str(error.value).startswith(told) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            ["a {}", "a cat", "{} {}"],
            "templates must hold exactly one {}, which stands for the class, got ['a cat', '{} {}']",
        ),
        (["a {name}"], "templates must hold exactly one {}, which stands for the class, got ['a {name}']"),
        (
            ["imagnet"],
            "templates must hold {} for the class, or be a file of such lines, imagenet or simple, got 'imagnet' ",
        ),
    ],
)
def test_what_is_no_template_is_one_line(given: list[str], told: str) -> None:
    with pytest.raises(ValueError) as error:
        templates_of(given)
    assert str(error.value).startswith(told) and "\n" not in str(error.value)


def test_a_misspelt_set_of_templates_is_told() -> None:
    with pytest.raises(ValueError, match="did you mean imagenet"):
        templates_of(["imagnet"])


def test_a_file_that_is_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "names").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not UTF-8"):
        parse_class_names([str(tmp_path / "names")])


def test_equal_names_are_told_apart() -> None:
    assert distinct(("a", "b", "a", "a")) == ("a", "b", "a (2)", "a (3)")
    assert distinct(("a", "a", "a (2)")) == ("a", "a (2)", "a (2) (2)")


def test_classes_are_kept_for_the_same_model_and_prompts(clip_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, names = open_pair_model(clip_folder), ("cat", "an emoji with a very very very long name indeed")
    expected = encode_classes(opened.model, opened.tokenizer, names, PHOTO)
    assert expected.cut == 1
    assert embedded(opened, names, PHOTO, cache=False).cut == 1 and not cache_folder().exists()
    embedded(opened, names, PHOTO)
    (file,) = cache_folder().iterdir()
    monkeypatch.setattr(prompts, "encode_classes", None)  # would be called
    moved = clip_folder.rename(clip_folder.with_name("moved"))
    found = embedded(open_pair_model(moved), names, PHOTO)
    assert_close(found.embeddings, expected.embeddings)
    assert found.cut == 1
    with pytest.raises(TypeError, match="not callable"):
        embedded(opened, names[::-1], PHOTO)
    assert [*cache_folder().iterdir()] == [file]


def test_what_a_changed_model_makes_of_classes_is_not_kept_for_the_model(clip_folder: Path) -> None:
    opened, names = open_pair_model(clip_folder), ("cat", "dog")
    with edit(opened.model, Head("text.encoder.blocks.0.attn.f", 0)):
        changed = embedded(opened, names, PHOTO).embeddings
    opened.model.train()
    embedded(opened, names, PHOTO)
    opened.model.eval()
    assert not cache_folder().exists()
    found = embedded(opened, names, PHOTO).embeddings
    assert (found - changed).abs().max() > 1e-2
    with edit(opened.model, Head("text.encoder.blocks.0.attn.f", 0)):
        assert_close(embedded(opened, names, PHOTO).embeddings, changed)  # and not what is kept


@pytest.mark.parametrize("content", [b"", b"\x08\0\0\0\0\0\0\0{}      ", b"junk" * 99])
def test_a_damaged_file_is_made_again(clip_folder: Path, content: bytes) -> None:
    opened, names = open_pair_model(clip_folder), ("cat", "dog")
    expected = embedded(opened, names, PHOTO)
    (file,) = cache_folder().iterdir()
    file.write_bytes(content)
    assert_close(embedded(opened, names, PHOTO), expected)
    assert len(file.read_bytes()) > len(content) or content == b"junk" * 99
    assert_close(embedded(opened, names, PHOTO), expected)
