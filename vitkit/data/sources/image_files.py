"""Image files without annotations: one, or all below a folder."""

from collections.abc import Sequence
from pathlib import Path

from vitkit.data.omissions import Omissions
from vitkit.data.sources.sample_list import FileListing, FolderForm
from vitkit.data.sources.source import SUFFIXES, walk_images
from vitkit.support.progress import track_progress


def list_loose_images(root: Path, exclude: Sequence[str]) -> FileListing:
    """List the images below a folder, in the same order on every machine. Hidden ones are left out."""
    omissions = Omissions()
    files = list(track_progress(walk_images(root, omissions, exclude), "listing pictures"))
    return FileListing(
        title=str(root),
        places=files,
        annotations=[None] * len(files),
        files=files,
        empty=f"source must hold pictures ({' '.join(SUFFIXES)}) or shards, got none",
        omissions=omissions,
    )


LOOSE = FolderForm("pictures", lambda root, table, exclude: None, list_loose_images, first=True)
