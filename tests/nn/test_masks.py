import torch
from torch import Tensor

from vitkit.nn import masks


def matrix(*rows: str) -> Tensor:
    return torch.tensor([[character == "x" for character in row] for row in rows])


def line(*places: int) -> Tensor:
    return torch.tensor(places)[None, :, None]


def test_padding_hides_keys():
    valid = torch.tensor([[True, True, False], [False, True, True]])
    assert torch.equal(masks.padding(valid)[:, 0], matrix("xx.", ".xx")[:, None])


def test_causal_compares_positions():
    assert torch.equal(masks.causal(line(0, 1, 2), line(0, 1, 2))[0, 0], matrix("x..", "xx.", "xxx"))
    assert torch.equal(masks.causal(line(4), line(3, 4, 5))[0, 0], matrix("xx."))


def test_lower_right_lets_last_query_attend_to_every_key():
    assert torch.equal(masks.lower_right(2, 4, torch.device("cpu"))[0, 0], matrix("xxx.", "xxxx"))
    assert torch.equal(masks.lower_right(3, 2, torch.device("cpu"))[0, 0], matrix("..", "x.", "xx"))


def test_window_allows_radius_on_both_sides():
    assert torch.equal(
        masks.window(line(0, 1, 2, 3), line(0, 1, 2, 3), 1)[0, 0], matrix("xx..", "xxx.", ".xxx", "..xx")
    )


def test_window_of_an_image_is_a_square():
    places = torch.cartesian_prod(torch.arange(2), torch.arange(3))[None]
    assert torch.equal(masks.window(places, places, 1)[0, 0, 0], matrix("xx.xx.")[0])


def test_causal_or_prefix_is_a_prefix_language_model():
    mask = masks.causal(line(0, 1, 2, 3), line(0, 1, 2, 3)) | masks.prefix(torch.tensor([2, 0]), 4)
    assert torch.equal(mask[0, 0], matrix("xx..", "xx..", "xxx.", "xxxx"))
    assert torch.equal(mask[1, 0], matrix("x...", "xx..", "xxx.", "xxxx"))


def test_documents_hide_keys_of_other_documents():
    ids = torch.tensor([[0, 0, 1]])
    assert torch.equal(masks.documents(ids, ids)[0, 0], matrix("xx.", "xx.", "..x"))


def test_join_intersects_masks_and_ignores_none():
    first, second = matrix("xx", "x.")[None, None], matrix("x.", "xx")[None, None]
    assert torch.equal(masks.join(None, first, None, second)[0, 0], matrix("x.", "x."))
    assert masks.join(None, None) is None
