"""Where a model runs."""

import torch


def get_device(name: str) -> torch.device:
    """The device of that name; "auto" is the fastest here. Raises: ValueError for one that is not there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device must be one that this machine has, got device={name}") from error
