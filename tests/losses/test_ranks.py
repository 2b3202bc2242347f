import torch

from vitkit.losses.ranks import gather_in_order


def test_columns_come_in_the_order_of_their_indices() -> None:
    parts = [(torch.tensor([4, 0]), torch.tensor([[40.0], [0.0]])), (torch.tensor([2]), torch.tensor([[20.0]]))]
    columns = gather_in_order(parts)
    assert columns is not None
    assert [column.tolist() for column in columns] == [[0, 2, 4], [[0.0], [20.0], [40.0]]]
    assert gather_in_order([]) is None
