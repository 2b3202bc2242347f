"""Devices by name."""

import torch


def get_device(name: str) -> torch.device:
    """Return the device of that name; "auto" is the fastest one. Raises: ValueError for a device that is missing."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device must be one that this machine has, got device={name}") from error
