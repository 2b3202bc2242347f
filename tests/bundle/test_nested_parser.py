from collections import Counter
from typing import Any

import pytest
from jsonargparse import ArgumentError, ArgumentParser, Namespace
from torch import nn

from vitkit.bundle.nested_parser import RESULTS, NestedParser, make_key

ENCODER = {
    "class_path": "vitkit.nn.Encoder",
    "init_args": {"dim": 32, "depth": 2, "heads": 2, "mlp": "vitkit.nn.SwiGLU"},
}
MODEL = {"class_path": "vitkit.ViT", "init_args": {"encoder": ENCODER, "image_size": [16, 24], "outputs": 2}}


def parse(kind: type[ArgumentParser], model: object) -> Namespace:
    parser = kind(exit_on_error=False)
    parser.add_argument("--model", type=nn.Module)
    return parser.parse_object({"model": model})


def test_shared_results_equal_those_of_jsonargparse_in_fewer_parses(monkeypatch: pytest.MonkeyPatch) -> None:
    parses = Counter[type]()
    parse_object = ArgumentParser.parse_object

    def count_parses(self: ArgumentParser, *args: Any, **options: Any) -> Namespace:
        parses[type(self)] += 1
        return parse_object(self, *args, **options)

    monkeypatch.setattr(ArgumentParser, "parse_object", count_parses)
    assert parse(NestedParser, MODEL) == parse(ArgumentParser, MODEL)
    assert parses[NestedParser] <= parses[ArgumentParser] / 2.5, parses


def test_results_end_with_the_outermost_call() -> None:
    parse(NestedParser, MODEL)
    assert RESULTS.get() is None
    with pytest.raises(ArgumentError):
        parse(NestedParser, {**MODEL, "init_args": {"encoder": 3}})
    assert RESULTS.get() is None


def test_keys_differ_by_type_content_and_order() -> None:
    values = [
        *(1, 1.0, True, "1", 0.0, -0.0, None, [], (), {}, Namespace(), [1, [2]], [[1], 2], [1, 2], (1, 2)),
        *({"a": 1, "b": 2}, {"b": 2, "a": 1}, Namespace(a=1, b=2), {"a": {"b": 1}}, {"a": Namespace(b=1)}),
    ]
    assert len({make_key(value) for value in values}) == len(values)
    assert make_key({"a": [1, Namespace(b=None)]}) == make_key({"a": [1, Namespace(b=None)]})
