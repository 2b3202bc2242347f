"""Texts of pages and flags in texts_LANGUAGE.json, apart from the code, so that languages can be added."""

import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, NamedTuple


def read_asset(name: str, package: str) -> str:
    """Return the text of a file in a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


ENGLISH = "en"  # the language of the commands


def list_languages(package: str) -> list[str]:
    """Return the languages of the texts of a package."""
    names = (file.name for file in files(package).iterdir())
    return sorted(match[1] for name in names if (match := re.fullmatch(r"texts_(.+)\.json", name)))


def read_texts(language: str, package: str) -> dict[str, Any]:
    """Return the texts of a package by name. Raises: ValueError, which lists the languages, for another one."""
    if language not in list_languages(package):
        raise ValueError(f"language must be one of {', '.join(list_languages(package))}, got language={language}")
    return json.loads(read_asset(f"texts_{language}.json", package))


class Sentence(NamedTuple):
    """A text of `package` by its name, and the values of its {fields}. `str` gives it in English."""

    text: str
    values: Mapping[str, Any]
    package: str

    def format(self, texts: Mapping[str, str]) -> str:
        """Fill in the text of this name in a language."""
        return texts[self.text].format(**self.values)

    def __str__(self) -> str:
        return self.format(read_texts(ENGLISH, self.package))
