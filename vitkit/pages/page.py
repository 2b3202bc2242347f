"""An HTML page, shown in a notebook or saved to a file."""

import html
import os
from dataclasses import dataclass, field
from pathlib import Path

from vitkit.data.omissions import Omissions
from vitkit.support.files import require_new, write_text


def shorten_path(source: str) -> str:
    """Return the last two parts of a path, as readers of a page need not know the rest; other sources unchanged."""
    return "/".join(Path(os.path.abspath(source)).parts[-2:]) if Path(source).exists() else source


HEIGHT = 900  # pixels in a notebook


RIGHTS = "allow-scripts allow-popups allow-popups-to-escape-sandbox"


@dataclass(frozen=True)
class Page:
    """One HTML file; a notebook shows it as the result of a cell.

    Args:
        notes: what it holds, and which of its parts are left out.
        omissions: what was left out of the source of its statistics, of which it has so many `samples`.
    """

    html: str = field(repr=False)
    notes: tuple[str, ...] = ()
    omissions: Omissions = field(default_factory=Omissions, repr=False, compare=False)
    samples: int = 0

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write a file, whole or not at all.

        Raises: ValueError if it exists and is not to be overwritten, or its folder does not exist.
        """
        path = require_new(Path(path), overwrite)
        write_text(path, self.html)
        return path

    def _repr_html_(self) -> str:
        """Return a frame that cannot reach the notebook; its links open in a new tab."""
        content = html.escape(self.html, quote=True)
        style = f"width: 100%; height: {HEIGHT}px; border: 0"
        return f'<iframe title="vitkit" sandbox="{RIGHTS}" style="{style}" srcdoc="{content}"></iframe>'
