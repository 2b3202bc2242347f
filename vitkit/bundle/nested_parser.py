"""A parser that parses each nested class once."""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any

from jsonargparse import ArgumentParser, Namespace

RESULTS: ContextVar[dict[Hashable, Namespace] | None] = ContextVar("RESULTS", default=None)


class NestedParser(ArgumentParser):
    """A parser that parses a nested class once for equal arguments in equal contexts.

    jsonargparse parses each nested class for its defaults, for its value, for the defaults of the value and to validate
    it. Each of these does the same one level further down, so a model with classes on five levels takes a thousand
    calls of `parse_object`, of which a tenth differ.
    """

    def parse_args(self, *args: Any, **options: Any) -> Namespace:
        with share_results():
            return super().parse_args(*args, **options)

    def parse_object(self, *args: Any, **options: Any) -> Namespace:
        with share_results() as results:
            # All variables are in the key, as their names are private to jsonargparse.
            context = {variable: value for variable, value in copy_context().items() if variable is not RESULTS}
            key = make_key(self, args, options, context)
            try:
                result = results.get(key)
            except TypeError:  # a value without a hash
                return super().parse_object(*args, **options)
            if result is None:
                result = results[key] = super().parse_object(*args, **options)
            return result.clone()


@contextmanager
def share_results() -> Iterator[dict[Hashable, Namespace]]:
    """Yield the results of the outermost call, which are dropped at its end."""
    if (results := RESULTS.get()) is not None:
        yield results
        return
    token = RESULTS.set(results := {})
    try:
        yield results
    finally:
        RESULTS.reset(token)


def make_key(*values: Any) -> Hashable:
    """Return a key that is equal only for values of equal types, contents and order."""
    key: list[Hashable] = []
    rest = [*values]
    while rest:
        value = rest.pop()
        key.append(type(value))
        content = vars(value) if isinstance(value, Namespace) else value
        if isinstance(content, dict):
            key.append(tuple(content))
            rest.extend(content.values())
        elif isinstance(content, list | tuple | set):
            key.append(len(content))
            rest.extend(content)
        else:
            key.append(repr(content) if isinstance(content, float) else content)  # 0.0 == -0.0
    return tuple(key)
