"""The size of a model that is trained from scratch, beside the number of its training samples."""

from jsonargparse import Namespace
from torch import nn

from vitkit.data.data_module import Data
from vitkit.fit.folder_options import is_pretrained
from vitkit.fit.run_config import iterate_leaves, to_yaml_types
from vitkit.nn import TokenEmbed
from vitkit.support.errors import format_count

MOST_PARAMETERS = 10_000  # for a training sample


def count_trainable(model: nn.Module) -> int:
    """Return the number of trainable parameters without embeddings of a vocabulary, most of whose ids no text uses."""
    unused = {id(module.tokens.weight) for module in model.modules() if isinstance(module, TokenEmbed)}
    parameters = (p for p in model.parameters() if p.requires_grad and id(p) not in unused)
    return sum(parameter.numel() for parameter in parameters)


def describe_excess(config: Namespace, model: nn.Module, data: Data) -> list[str]:
    """Return a warning about a model that is too large to be trained from scratch on its data, none for others.

    Too large are more than 10,000 trainable parameters for each sample. On ImageNet-1k, from scratch, a ViT-L/16 with
    240 parameters for each image is worse than a ViT-B/16 with 67 (https://arxiv.org/abs/2010.11929, figure 3); the
    recipes whose results are known have up to 500. The limit leaves much room, as regularisation moves that point.
    """
    parameters, items = count_trainable(model), len(data.training_items)
    if is_pretrained(config) or parameters <= MOST_PARAMETERS * items:
        return []
    keys = [key for key, _ in iterate_leaves(to_yaml_types(config))]
    sizes = [f"--{key}" for key in keys if key.endswith(("coder.dim", "coder.depth"))]
    smaller = f", or take smaller {', '.join(sizes)}" if sizes else ""
    count = format_count(items, data.item or data.unit)
    return [
        f"warning: {parameters:,} trainable parameters are too many for {count} from scratch (at most "
        f"{MOST_PARAMETERS:,} for each); start from trained weights by --pretrained, as "
        f"configs/finetune_folder.yaml does for classes and configs/finetune_pairs.yaml for captions{smaller}"
    ]
