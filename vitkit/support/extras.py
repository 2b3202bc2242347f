"""Packages that only some features need."""

from importlib.util import find_spec
from pathlib import Path


class MissingPackage(ImportError, ValueError):
    """The error for an optional package that is missing; a command reports it as it does any ValueError."""


def require_package(package: str, feature: str, extra: str = "demo") -> Path:
    """Return the folder of an optional package without importing it. Raises: MissingPackage."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise MissingPackage(f'{feature} needs the package {package}, which is missing; pip install "vitkit[{extra}]"')
    return Path(spec.origin).parent
