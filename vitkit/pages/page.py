"""A page, in a notebook or in a file."""

import html
import os
from dataclasses import dataclass, field
from pathlib import Path

from vitkit.support.files import replace_file, require_new_file


def called(source: str) -> str:
    """A page is sent to others, whom the rest of a path does not concern."""
    return "/".join(Path(os.path.abspath(source)).parts[-2:]) if Path(source).exists() else source


HEIGHT = 900  # pixels in a notebook


RIGHTS = "allow-scripts allow-popups allow-popups-to-escape-sandbox"


@dataclass(frozen=True)
class Page:
    """One HTML file; a notebook shows it as what a cell gives. `notes` say what it holds, and what was left out."""

    html: str = field(repr=False)
    notes: tuple[str, ...] = ()

    def save(self, path: str | Path) -> Path:
        """To a new file, whole or not at all. Raises: ValueError if it exists, or its folder does not."""
        path = require_new_file(Path(path))
        with replace_file(path) as beside:
            beside.write_text(self.html, encoding="utf-8", newline="\n")
        return path

    def _repr_html_(self) -> str:
        """A frame that cannot reach the notebook; a link in it opens a page of its own."""
        inside = html.escape(self.html, quote=True)
        style = f"width: 100%; height: {HEIGHT}px; border: 0"
        return f'<iframe title="vitkit" sandbox="{RIGHTS}" style="{style}" srcdoc="{inside}"></iframe>'
