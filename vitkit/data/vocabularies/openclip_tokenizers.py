"""The tokenizers of open_clip, without the rest of that package."""

from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

from vitkit.support.extras import require_package


@cache
def import_openclip_tokenizers() -> ModuleType:
    """Import open_clip.tokenizer from its file: the package imports torchvision, timm and transformers, for seconds."""
    file = require_package("open_clip", "a tokenizer") / "tokenizer.py"
    spec = spec_from_file_location("open_clip_tokenizer", file)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
