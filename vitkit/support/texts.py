"""Texts that pages and flags show, apart from code, so that a second language can follow: texts_LANGUAGE.json."""

import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, NamedTuple


def read_asset(name: str, package: str) -> str:
    """The text of a file that lies beside the code of a page."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


ENGLISH = "en"  # of the commands


def list_languages(package: str) -> list[str]:
    """Those that there are texts in."""
    names = (file.name for file in files(package).iterdir())
    return sorted(found[1] for name in names if (found := re.fullmatch(r"texts_(.+)\.json", name)))


def read_texts(language: str, package: str) -> dict[str, Any]:
    """Raises: ValueError that lists the languages there are."""
    if language not in list_languages(package):
        raise ValueError(f"language must be one of {', '.join(list_languages(package))}, got language={language}")
    return json.loads(read_asset(f"texts_{language}.json", package))


class Sentence(NamedTuple):
    """A text of `package` by its name, and the values of its {places}; as a string it is English."""

    text: str
    values: Mapping[str, Any]
    package: str

    def within(self, texts: Mapping[str, str]) -> str:
        return texts[self.text].format(**self.values)

    def __str__(self) -> str:
        return self.within(read_texts(ENGLISH, self.package))
