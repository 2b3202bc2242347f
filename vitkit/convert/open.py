"""`open_model`: a model from a folder, timm, OpenCLIP, Hugging Face, or a hub."""

import re
from pathlib import Path

from torch import nn

from vitkit.bundle.bundle import Bundle, get_preprocess
from vitkit.bundle.folder import open_folder
from vitkit.bundle.image_bundle import Dual, Embedding, Readable, headless
from vitkit.models import CLIP, MAE, ViT


def open_any(source: str | Path) -> Readable | Dual:
    """Raises: ValueError, one line, for whatever is wrong with a model folder."""
    bundle = open_model(source)
    return dual(bundle) if isinstance(bundle.model, CLIP) else readable(bundle)


def open_readable(source: str | Path) -> Readable:
    """Raises: ValueError, one line, for whatever is wrong with a model folder, and for one of another kind."""
    opened = open_any(source)
    if isinstance(opened, Dual):
        raise ValueError(f"model must be a ViT or an MAE, got {type(opened.model).__name__} in {source}")
    return opened


def open_tower(source: str | Path) -> Readable:
    """Also a CLIP's image tower, whose vectors are embeddings."""
    opened = open_any(source)
    if isinstance(opened, Dual):
        tower = opened.model.image
        return headless(tower, opened.preprocess)._replace(source=opened.source, embed=Embedding(tower.head))
    return opened


def open_dual(source: str | Path) -> Dual:
    """Raises: ValueError, one line, for whatever is wrong with a model folder, and for one of another kind."""
    opened = open_any(source)
    if not isinstance(opened, Dual):
        raise ValueError(f"model must be a CLIP, which reads texts too, got {type(opened.model).__name__} in {source}")
    return opened


def dual(bundle: Bundle) -> Dual:
    model = bundle.model
    if not isinstance(model, CLIP) or bundle.tokenizer is None:
        raise ValueError(f"model must be a CLIP with a tokenizer, got {type(model).__name__} in {bundle.source}")
    return Dual(model, get_preprocess(bundle), bundle.tokenizer, bundle.source)


def readable(bundle: Bundle) -> Readable:
    model, preprocess, classes, source = bundle.model, get_preprocess(bundle), bundle.class_names, bundle.source
    match model:
        case MAE():
            return headless(model, preprocess)._replace(source=source)
        case ViT() if not classes:
            return headless(model, preprocess)._replace(source=source)
        case ViT():
            outputs = model.head.out_features if isinstance(model.head, nn.Linear) else 0
            if outputs != len(classes):
                raise ValueError(f"model must give a number per class, got {outputs} for {len(classes)} classes")
            return Readable(model, model.pool, model.head, preprocess, classes, bundle.multilabel, source)
    raise ValueError(f"model must be a ViT or an MAE, got {type(model).__name__} in {source}")


def open_classifier(source: str | Path | Readable) -> Readable:
    """Raises: ValueError, as `open_readable`, and for a model without classes."""
    opened = source if isinstance(source, Readable) else open_any(source)
    if isinstance(opened, Dual):
        raise ValueError(
            f"model must have classes, got a CLIP in {source}, which takes them in words: "
            f"vitkit zero-shot {source} PICTURES --unlabelled --classes cat dog"
        )
    if opened.head is None:
        raise ValueError(
            f"model must have classes, got none in {opened.source}; fine-tune it first: "
            f"vitkit fit --config configs/finetune_folder.yaml --pretrained {opened.source} --data.train PICTURES"
        )
    return opened


def open_model(source: str | Path) -> Bundle:
    """Open a model folder, or by name what `vitkit import` takes: timm:NAME, openclip:NAME@PRETRAINED, hf:USER/NAME.

    Whatever is wrong with a folder is a ValueError of one line; nothing in it is executed.
    """
    if re.match(r"[a-z]{2,}:", str(folder := at_hand(source))):
        from vitkit.convert.importer import open_foreign  # other libraries, which a folder of our own does not need

        return open_foreign(str(source))
    return open_folder(folder)._replace(source=str(source))


def at_hand(source: str | Path) -> str | Path:
    """The folder of hf:NAME, if its repository holds a model folder; others as they are."""
    if not str(source).startswith("hf:"):
        return source
    from vitkit.convert.hub_download import fetched

    folder = fetched(str(source), str(source).removeprefix("hf:"))
    return folder if (folder / "config.yaml").is_file() else source
