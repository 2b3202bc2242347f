"""What the tests of frozen behaviour share: a folder of recorded values, and three tiny models trained for an epoch.

A value that differs from expected/NAME.json fails its test. Where behaviour changes on purpose, record it anew by
`VITKIT_RECORD=1 pytest tests/frozen` and review what `git diff` shows.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # for normal.py and runs.py, which scripts here use too

from normal import differences  # noqa: E402
from runs import classify, contrast, reconstruct  # noqa: E402

from vitkit.cli import main  # noqa: E402

Recorded = Callable[..., None]


@pytest.fixture(scope="session")
def before() -> Path:
    """What the version before the reorganisation wrote; see write_before.py."""
    return HERE / "before"


@pytest.fixture(scope="session")
def recorded() -> Recorded:
    """Compare a value with the one that was recorded; with `more` it may hold further keys."""

    def compare(name: str, value: Any, tolerance: float = 0.0, more: bool = False) -> None:
        path = HERE / "expected" / f"{name}.json"
        if os.environ.get("VITKIT_RECORD"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(render(value) + "\n", "utf-8")
        now = json.loads(json.dumps(value))
        lines = list(differences(json.loads(path.read_text("utf-8")), now, tolerance, more, name))
        assert not lines, "\n".join(lines)

    return compare


def render(value: Any, indent: str = "") -> str:
    """Return the text of a JSON value: a line for each key, and for whatever else fits into one."""
    text = json.dumps(value, ensure_ascii=False)
    if len(indent + text) <= 110 or not value or not isinstance(value, dict | list):
        return text
    further = indent + "  "
    if isinstance(value, dict):
        items = [f"{json.dumps(str(key))}: {render(item, further)}" for key, item in value.items()]
        return "{\n" + ",\n".join(further + item for item in items) + "\n" + indent + "}"
    return "[\n" + ",\n".join(further + render(item, further) for item in value) + "\n" + indent + "]"


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the runs classify, reconstruct and contrast, of an epoch each."""
    folder = tmp_path_factory.mktemp("trained")
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for learn in (classify, reconstruct, contrast):
            assert main(learn(learn.__name__)) == 0
    yield folder
