from pathlib import Path

import pytest
from open_clip import IMAGENET_CLASSNAMES
from torch.testing import assert_close

from vitkit.convert.open import open_pair_model
from vitkit.inference import prompts
from vitkit.inference.embeddings import encode_classes
from vitkit.inference.prompts import (
    PHOTO,
    embed_classes,
    get_cache_folder,
    parse_class_names,
    parse_templates,
    split_words,
)
from vitkit.interpret.see.edits import Head, edit
from vitkit.support.names import number_duplicates


def test_class_names_are_given_or_read_from_a_file(tmp_path: Path) -> None:
    assert parse_class_names(["cat", "red heart"]) == ("cat", "red heart")
    (tmp_path / "names.txt").write_text("\ufeffcat\n\n  red heart \r\ntwo\n", "utf-8")
    assert parse_class_names([str(tmp_path / "names.txt")]) == ("cat", "red heart", "two")
    (tmp_path / "names.txt").write_text("a\u2028b\x0cc\nd\n", "utf-8")
    assert parse_class_names([str(tmp_path / "names.txt")]) == ("a\u2028b\x0cc", "d")
    assert parse_class_names(["imagenet"]) == tuple(IMAGENET_CLASSNAMES)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (
            ["RedSquare", "green_square", "golden-retriever", "USBStick", "iPod", "3-1", "_"],
            ["red square", "green square", "golden retriever", "USB stick", "iPod", "3-1", "_"],
        ),
        (["T-shirt", "red_wine", "iPod", "a RedBox"], ["T-shirt", "red wine", "iPod", "a RedBox"]),
    ],
)
def test_names_of_folders_are_split_into_words(names: list[str], words: list[str]) -> None:
    assert split_words(names) == tuple(words)


def test_names_of_imagenet_stay() -> None:
    assert split_words(IMAGENET_CLASSNAMES) == tuple(IMAGENET_CLASSNAMES)


def test_templates_are_given_or_read_from_a_file_or_from_clip(tmp_path: Path) -> None:
    assert parse_templates(["{}"]) == ("{}",)
    assert parse_templates(["a {}", "the {}"]) == ("a {}", "the {}")
    (tmp_path / "templates").write_text("a {}\nthe {}\n")
    assert parse_templates([str(tmp_path / "templates")]) == ("a {}", "the {}")
    assert (len(parse_templates(["imagenet"])), len(parse_templates(["simple"]))) == (80, 7)
    assert parse_templates(["imagenet"])[0] == "a bad photo of a {}."


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["cat"], "classes must be at least two names, a file with one a line, or imagenet, got 'cat' (No such file"),
        (["cat", " "], "classes must be at least two names, none of them empty, got ['cat', ' ']"),
    ],
)
def test_invalid_class_names_are_a_one_line_error(given: list[str], message: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_class_names(given)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "message"),
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
def test_invalid_templates_are_a_one_line_error(given: list[str], message: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_templates(given)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_misspelt_name_of_templates_gets_a_suggestion() -> None:
    with pytest.raises(ValueError, match="did you mean imagenet"):
        parse_templates(["imagnet"])


def test_binary_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "names").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not UTF-8"):
        parse_class_names([str(tmp_path / "names")])


def test_equal_names_are_numbered() -> None:
    assert number_duplicates(("a", "b", "a", "a")) == ("a", "b", "a (2)", "a (3)")
    assert number_duplicates(("a", "a", "a (2)")) == ("a", "a (2)", "a (2) (2)")
    assert number_duplicates(("\xe9", "e\u0301", "a  b", "a b ")) == ("\xe9", "e\u0301 (2)", "a  b", "a b (2)")


def test_class_embeddings_are_cached_for_the_same_model_and_prompts(
    clip_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, names = open_pair_model(clip_folder), ("cat", "an emoji with a very very very long name indeed")
    expected = encode_classes(bundle.model, bundle.tokenizer, names, PHOTO)
    assert expected.cut == 1
    assert embed_classes(bundle, names, PHOTO, cache=False).cut == 1 and not get_cache_folder().exists()
    embed_classes(bundle, names, PHOTO)
    (file,) = get_cache_folder().iterdir()
    monkeypatch.setattr(prompts, "encode_classes", None)  # a call would fail
    moved = clip_folder.rename(clip_folder.with_name("moved"))
    classes = embed_classes(open_pair_model(moved), names, PHOTO)
    assert_close(classes.embeddings, expected.embeddings)
    assert classes.cut == 1
    with pytest.raises(TypeError, match="not callable"):
        embed_classes(bundle, names[::-1], PHOTO)
    assert [*get_cache_folder().iterdir()] == [file]


def test_edited_model_neither_writes_nor_reads_the_cache(clip_folder: Path) -> None:
    bundle, names = open_pair_model(clip_folder), ("cat", "dog")
    with edit(bundle.model, Head("text.encoder.blocks.0.attn.f", 0)):
        edited = embed_classes(bundle, names, PHOTO).embeddings
    bundle.model.train()
    embed_classes(bundle, names, PHOTO)
    bundle.model.eval()
    assert not get_cache_folder().exists()
    embeddings = embed_classes(bundle, names, PHOTO).embeddings
    assert (embeddings - edited).abs().max() > 1e-2
    with edit(bundle.model, Head("text.encoder.blocks.0.attn.f", 0)):
        assert_close(embed_classes(bundle, names, PHOTO).embeddings, edited)


@pytest.mark.parametrize("content", [b"", b"\x08\0\0\0\0\0\0\0{}      ", b"junk" * 99])
def test_damaged_cache_file_is_replaced(clip_folder: Path, content: bytes) -> None:
    bundle, names = open_pair_model(clip_folder), ("cat", "dog")
    expected = embed_classes(bundle, names, PHOTO)
    (file,) = get_cache_folder().iterdir()
    file.write_bytes(content)
    assert_close(embed_classes(bundle, names, PHOTO), expected)
    assert len(file.read_bytes()) > len(content) or content == b"junk" * 99
    assert_close(embed_classes(bundle, names, PHOTO), expected)
