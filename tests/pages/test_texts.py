"""The texts of the pages in every language: the same keys, placeholders and tags, and all of them translated."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from vitkit.interpret.measure.flags import PACKAGE as FLAGS
from vitkit.pages.explain.content import PACKAGE as EXPLAIN
from vitkit.pages.learn.position_table import PACKAGE as LEARN
from vitkit.support.texts import ENGLISH, list_languages, read_texts

LANGUAGES = [(package, language) for package in (EXPLAIN, LEARN, FLAGS) for language in list_languages(package)]
# Names and symbols, which are the same in every language; so are formulas (*.formula) without words.
SAME = {"CLS", "MLP", "logit", "ViT-Ti/16", "ViT-S/16", "ViT-B/16", "ViT-L/16", "a · b", "m − n", "12 L d² + V d"}
SAME |= {"{name} {share}", "{letters} = {shape}"}


def flatten(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the strings and numbers of texts with their paths."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in items:
            yield from flatten(part, f"{name}/{key}")
    else:
        yield name, value


def find_marks(text: str) -> list[str]:
    """Return placeholders with their formats, tags and options of commands."""
    return sorted(re.findall(r"{[^}]*}|<[^>]*>|--\w+", text))


@pytest.mark.parametrize(("package", "language"), LANGUAGES)
def test_languages_have_the_same_keys_placeholders_and_numbers(package: str, language: str) -> None:
    english, texts = (dict(flatten(read_texts(name, package))) for name in (ENGLISH, language))
    assert list(texts) == list(english)
    for name, text in english.items():
        if isinstance(text, str):
            assert find_marks(texts[name]) == find_marks(text), name
        else:
            assert texts[name] == text, name


@pytest.mark.parametrize(("package", "language"), [pair for pair in LANGUAGES if pair[1] != ENGLISH])
def test_every_text_is_translated(package: str, language: str) -> None:
    english, texts = (dict(flatten(read_texts(name, package))) for name in (ENGLISH, language))
    same = {name for name, text in texts.items() if isinstance(text, str) and text == english[name]}
    assert {name for name in same if english[name] not in SAME and not name.endswith(".formula")} == set()


@pytest.mark.parametrize("package", [EXPLAIN, LEARN, FLAGS])
def test_chinese_sentences_have_full_width_punctuation(package: str) -> None:
    half_width = re.compile(r"[\u4e00-\u9fff] ?[,;:?!.]|[,;:?!] ?[\u4e00-\u9fff]")
    texts = {name: text for name, text in flatten(read_texts("zh", package)) if not name.endswith(".formula")}
    assert [name for name, text in texts.items() if half_width.search(str(text))] == []
