"""The interface of a kind of source: its names, and the listing of its samples."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from vitkit.data.annotations.annotation import Annotation
from vitkit.data.sources.sample_list import Columns, Listing


class Kind(NamedTuple):
    """A kind of source.

    Args:
        form: its name in errors.
        accepts: returns whether a name is of this kind.
        list_samples: returns the samples of a name with the raw annotations for an annotation class. The last argument
            holds patterns of files to leave out, for a kind that looks for files; see `Listing.leave_out`.
        annotations: the only annotation classes of this kind; empty for all.
    """

    form: str
    accepts: Callable[[str], bool]
    list_samples: Callable[[str, Annotation, Columns, Sequence[str]], Listing]
    annotations: tuple[type[Annotation], ...] = ()
