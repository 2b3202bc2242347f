"""Packages that only some features need."""

from importlib.util import find_spec
from pathlib import Path


def require_package(package: str, feature: str, extra: str = "demo") -> Path:
    """The folder of an optional package, found without importing it."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ValueError(f'{feature} must find the package {package}, which is missing; pip install "vitkit[{extra}]"')
    return Path(spec.origin).parent
