"""Texts that Python ships, by name."""

from collections.abc import Callable, Mapping

from vitkit.data.sources.sample_list import Listing, SourceListing
from vitkit.data.sources.text_documents import TextSource


def list_topics() -> Listing:
    """List the topics of the manual inside every CPython, such as `assert` and `numbers`: 0.5 to 0.7 MB of English."""
    from pydoc_data.topics import topics

    names = sorted(topics)
    source = TextSource("python", names, [topics[name] for name in names])
    return SourceListing(title="python", places=names, annotations=[None] * len(names), source=source)


BUILT_IN: Mapping[str, Callable[[], Listing]] = {"python": list_topics}
