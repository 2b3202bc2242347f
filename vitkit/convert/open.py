"""`open_model` opens a model from a folder, timm, OpenCLIP or the hub of Hugging Face; others here check its kind."""

import re
from pathlib import Path

from torch import nn

from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import open_folder
from vitkit.bundle.image_bundle import select_embedding_tower, select_tower
from vitkit.models import CLIP, MAE, TextDecoder, ViT
from vitkit.models.headed_tower import HeadedTower


def open_model(source: str | Path) -> Bundle:
    """Open a model folder, or a model by name: timm:NAME, openclip:NAME@PRETRAINED, hf:USER/NAME.

    Nothing in a folder is executed. Raises: ValueError, one line, for a faulty folder.
    """
    if is_foreign(folder := fetch_model_folder(source)):
        from vitkit.convert.importer import open_foreign  # other libraries, which a folder of our own does not need

        return open_foreign(str(source))
    return open_folder(folder)._replace(source=str(source))


def is_foreign(source: str | Path) -> bool:
    """Return whether a source is a name, such as timm:NAME, and not a path."""
    return re.match(r"[a-z]{2,}:", str(source)) is not None


def open_image_model(source: str | Path | Bundle) -> Bundle:
    """Open a model whose head returns a logit per class or, without classes, a feature vector.

    Raises: ValueError, one line, for a faulty model folder, and for a model of another kind.
    """
    bundle = source if isinstance(source, Bundle) else open_model(source)
    match bundle.model:
        case HeadedTower():
            return bundle
        case MAE():
            return select_tower(bundle)
        case ViT() if not bundle.class_names:
            return select_tower(bundle)
        case ViT(head=head):
            outputs, count = head.out_features if isinstance(head, nn.Linear) else 0, len(bundle.class_names)
            if outputs != count:
                raise ValueError(f"model must give a number per class, got {outputs} for {count} classes")
            return bundle
    raise ValueError(f"model must be a ViT or an MAE, got {type(bundle.model).__name__} in {bundle.source}")


def open_image_tower(source: str | Path | Bundle) -> Bundle:
    """Open an image model as `open_image_model` does, or a CLIP's image tower."""
    bundle = source if isinstance(source, Bundle) else open_model(source)
    return select_embedding_tower(bundle) if isinstance(bundle.model, CLIP) else open_image_model(bundle)


def open_pair_model(source: str | Path | Bundle) -> Bundle:
    """Open a CLIP with its tokenizer.

    Raises: ValueError, one line, for a faulty model folder, and for a model of another kind.
    """
    bundle = source if isinstance(source, Bundle) else open_model(source)
    model, source = type(bundle.model).__name__, bundle.source
    if not isinstance(bundle.model, CLIP):
        raise ValueError(f"model must be a CLIP, which reads texts too, got {model} in {source}")
    if bundle.tokenizer is None:
        raise ValueError(f"model must be a CLIP with a tokenizer, got {model} in {source}")
    return bundle


def open_text_decoder(source: str | Path | Bundle) -> Bundle:
    """Open a model that continues texts, with its tokenizer.

    Raises: ValueError, one line, for a faulty model folder, and for a model of another kind.
    """
    bundle = source if isinstance(source, Bundle) else open_model(source)
    if not isinstance(bundle.model, TextDecoder):
        kind = type(bundle.model).__name__
        raise ValueError(f"model must be a TextDecoder, which continues texts, got {kind} in {bundle.source}")
    return bundle


def open_classifier(source: str | Path | Bundle) -> Bundle:
    """Open an image model with classes. Raises: ValueError, as `open_image_model`, and for a model without classes."""
    bundle = source if isinstance(source, Bundle) else open_model(source)
    source = bundle.source
    if isinstance(bundle.model, CLIP):
        raise ValueError(
            f"model must have classes, got a CLIP in {source}, which takes them in words: "
            f"vitkit zero-shot {source} PICTURES --unlabelled --classes cat dog"
        )
    bundle = open_image_model(bundle)
    if not bundle.class_names:
        raise ValueError(
            f"model must have classes, got none in {source}; fine-tune it first: "
            f"vitkit fit --config configs/finetune_folder.yaml --pretrained {source} --data.train PICTURES"
        )
    return bundle


def fetch_model_folder(source: str | Path) -> str | Path:
    """Return the folder of hf:NAME if its repository holds a model folder; other sources as they are."""
    if not str(source).startswith("hf:"):
        return source
    from vitkit.convert.hub_download import fetch_repository

    folder = fetch_repository(str(source), str(source).removeprefix("hf:"))
    return folder if (folder / "config.yaml").is_file() else source
