"""One Transformer trunk and the models that stand on it. A name is imported from its module when it is first used."""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # the names are in __init__.pyi
