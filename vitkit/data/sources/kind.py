"""The interface of a kind of source: what its names look like, and what lists its samples."""

from collections.abc import Callable
from typing import NamedTuple

from vitkit.data.annotations.annotation import Annotation
from vitkit.data.sources.sample_list import Columns, Listing


class Kind(NamedTuple):
    """A kind of source.

    Args:
        form: what errors call it.
        accepts: whether a name is of this kind.
        list_samples: the samples of a name, with the raw annotations that an annotation class is for.
        annotations: the only classes that it has annotations for; empty for all.
    """

    form: str
    accepts: Callable[[str], bool]
    list_samples: Callable[[str, Annotation, Columns], Listing]
    annotations: tuple[type[Annotation], ...] = ()
