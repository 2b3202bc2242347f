import torch

from vitkit.losses.ranks import gather_in_order


def test_gathered_columns_are_ordered_by_index() -> None:
    parts = [(torch.tensor([4, 0]), torch.tensor([[40.0], [0.0]])), (torch.tensor([2]), torch.tensor([[20.0]]))]
    columns = gather_in_order(parts)
    assert columns is not None
    assert [column.tolist() for column in columns] == [[0, 2, 4], [[0.0], [20.0], [40.0]]]
    assert gather_in_order([]) is None
