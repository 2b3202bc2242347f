import pytest
import torch

from vitkit.convert.rules import Rule, invert_rules, rename

RULES = (Rule("blocks.{i}.fc1.{x}", "layers.{i}.up.{x}"), Rule("norm.{x}", "final.{x}"), Rule("token", "prefix"))
ZERO = torch.zeros(1)


def test_names_are_renamed_in_both_directions():
    theirs = ["blocks.12.fc1.weight", "norm.weight", "token"]
    ours = ["layers.12.up.weight", "final.weight", "prefix"]
    assert [*rename(dict.fromkeys(theirs, ZERO), RULES)] == ours
    assert [*rename(dict.fromkeys(ours, ZERO), invert_rules(RULES))] == theirs


def test_a_second_number_may_be_left_out():
    assert [*rename({"blocks.1.7.x": ZERO}, [Rule("blocks.{j}.{i}.{x}", "blocks.{i}.{x}")])] == ["blocks.7.x"]


@pytest.mark.parametrize("name", ["blocks.a.fc1.weight", "xnorm.weight", "norm.", "tokens", "blocksX1.fc1.weight"])
def test_a_name_without_a_rule_stays(name):
    assert [*rename({name: ZERO}, RULES)] == [name]


def test_first_matching_rule_counts():
    rules = [Rule("norm.weight", "scale"), *RULES]
    assert [*rename({"norm.weight": ZERO, "norm.bias": ZERO}, rules)] == ["scale", "final.bias"]


def test_two_names_of_one_tensor_raise():
    with pytest.raises(ValueError, match="two for one tensor: token and prefix"):
        rename({"token": ZERO, "norm.weight": ZERO, "prefix": ZERO}, RULES)
