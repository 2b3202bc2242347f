"""Write tests/frozen/before: folders, checkpoints and a database as the version that is checked out makes them.

    python tests/frozen/write_before.py PLACE

PLACE is a new folder in which all is made; the database keeps its absolute path, which therefore should name nobody's
machine: `unshare --mount sh -c 'mount -t tmpfs tmpfs /mnt && python tests/frozen/write_before.py /mnt/before'`.

It was run once, before the package was reorganised. Later versions must read what it wrote then, so it is not run again
for the folders that are there; another kind of folder is added here, by the version that first writes it.

    classify contrast reconstruct   run folders that stopped after epoch 1 of 2: last.ckpt, metrics.csv, model, ...
    tokenizer.json                  the 24 words that contrast was trained with
    sources                         tiny models as other libraries store them
    imported                        what `vitkit import` made of each
    pictures                        twelve, four with captions, and a file that is none
    pictures.db                     what `vitkit index` made of them with contrast/model
"""

import json
import shutil
import sys
from collections.abc import Callable
from os import chdir
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Trainer
from PIL import Image
from runs import OVERRIDES, classify, contrast_words, reconstruct
from safetensors.torch import load_file, save_file
from torch import nn

from vitkit.cli import main

HERE = Path(__file__).resolve().parent / "before"
WORDS = [
    *("<pad>", "</s>", "<unk>", "a", "the", "and", "of", "picture", "stripes", "red", "green", "blue", "dark", "light"),
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
]
SOURCES = ("timm", "hf_vit", "hf_mae", "hf_clip", "hf_siglip", "openclip", "mae.pth", "timm.safetensors")


class Stopped(KeyboardInterrupt):
    """As Ctrl-C."""


def write(place: Path) -> None:
    if HERE.exists():
        raise SystemExit(f"{HERE} must be new: later versions have to read what is in it")
    place.mkdir()
    chdir(place)
    tokenizer(Path("tokenizer.json"))
    for learn in (classify, reconstruct, contrast_words):
        learn_one_epoch_of_two(learn, learn.__name__.removesuffix("_words"))
    Path("sources").mkdir()
    Path("imported").mkdir()
    for source in (timm_folder, hf_vit, hf_mae, hf_clip, hf_siglip):
        torch.manual_seed(0)
        source(Path("sources"))
    run("import", "sources/hf_clip", "--out", "clip")
    run("import", "sources/hf_mae", "--out", "mae")
    run("export", "clip", "--to", "openclip", "--out", "sources/openclip")
    run("export", "mae", "--to", "mae", "--out", "for_mae")
    torch.save({"model": load_file("for_mae/model.safetensors")}, "sources/mae.pth")
    save_file(load_file("sources/timm/model.safetensors"), "sources/timm.safetensors")
    for name in SOURCES:
        run("import", f"sources/{name}", "--out", f"imported/{name}", *OVERRIDES.get(name, ()))
    draw_pictures(Path("pictures"))
    run("index", "pictures", "--db", "pictures.db", "--model", "contrast/model", "--device", "cpu")
    for name in ("classify", "reconstruct", "contrast", "sources", "imported", "pictures", "pictures.db"):
        shutil.copytree(name, HERE / name)
    shutil.copy("tokenizer.json", HERE)


def run(*arguments: str) -> None:
    if status := main(arguments):
        raise SystemExit(f"vitkit {' '.join(arguments)} ended with {status}")


def learn_one_epoch_of_two(learn: Callable[[str, int], list[str]], name: str) -> None:
    """Train until last.ckpt of the first epoch is written, and keep what a later version needs to go on."""
    save = Trainer.save_checkpoint

    def save_and_stop(self: Trainer, filepath: Any, *arguments: Any, **options: Any) -> None:
        save(self, filepath, *arguments, **options)
        if Path(filepath).name == "last.ckpt":
            raise Stopped

    Trainer.save_checkpoint = save_and_stop
    try:
        if (status := main(learn(name, 2))) != 130:
            raise SystemExit(f"{name} must be stopped, got status {status}")
    finally:
        Trainer.save_checkpoint = save
    shutil.rmtree(Path(name) / "events")  # their names are of this machine
    for picture in Path(name).glob("*.png"):
        picture.unlink()
    (Path(name) / "best.ckpt").unlink()  # the model in it is in model/


def tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    words.add_special_tokens(["<pad>", "</s>", "<unk>"])
    words.save(str(path))


def randomised(model: nn.Module) -> Any:
    """Zeros and ones hide swapped parameters; fixed ones, such as tables of sines, stay as they are."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.2)
    return model.eval()


SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
PICTURES = {"do_resize": True, "do_rescale": True, "do_normalize": True, "resample": 2}


def timm_folder(folder: Path) -> None:
    """Of images higher than wide, with a mean, a deviation and a crop of its own."""
    import timm

    sizes = {"img_size": [16, 24], "patch_size": [8, 8], "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}
    model = randomised(timm.create_model("vit_base_patch16_224", **sizes))
    pictures = {"input_size": [3, 16, 24], "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4], "crop_pct": 0.9}
    pictures |= {"interpolation": "bilinear", "crop_mode": "center", "fixed_input_size": True, "num_classes": 3}
    pictures |= {"first_conv": "patch_embed.proj", "classifier": "head"}
    config = {"architecture": "vit_base_patch16_224", "num_classes": 3, "label_names": ["cat", "dog", "owl"]}
    (folder / "timm").mkdir()
    dump(folder / "timm" / "config.json", {**config, "model_args": sizes, "pretrained_cfg": pictures})
    save_file(model.state_dict(), folder / "timm" / "model.safetensors")


def hf_vit(folder: Path) -> None:
    from transformers import ViTConfig, ViTForImageClassification

    names = {0: "cat", 1: "dog", 2: "owl"}
    config = ViTConfig(**SIZES, image_size=16, patch_size=8, id2label=names)
    store(ViTForImageClassification(config), folder / "hf_vit")
    pictures = {"size": {"height": 16, "width": 16}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    dump(folder / "hf_vit" / "preprocessor_config.json", {**PICTURES, **pictures})


def hf_mae(folder: Path) -> None:
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    sizes = {**SIZES, "intermediate_size": 64, "layer_norm_eps": 1e-6, "image_size": 16, "patch_size": 8}
    decoder = {"decoder_hidden_size": 16, "decoder_intermediate_size": 64, "decoder_num_hidden_layers": 1}
    config = ViTMAEConfig(**sizes, **decoder, decoder_num_attention_heads=2)
    store(ViTMAEForPreTraining(config), folder / "hf_mae")
    pictures = {"size": {"height": 16, "width": 16}, "image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4]}
    dump(folder / "hf_mae" / "preprocessor_config.json", {**PICTURES, **pictures})


def hf_clip(folder: Path) -> None:
    from transformers import CLIPConfig, CLIPModel

    text = {**SIZES, "vocab_size": len(WORDS), "max_position_embeddings": 8, "eos_token_id": 1, "pad_token_id": 0}
    vision = {**SIZES, "image_size": 16, "patch_size": 8}
    store(CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=12)), folder / "hf_clip")
    pictures = {"size": {"shortest_edge": 16}, "crop_size": 16, "image_mean": [0.4] * 3, "image_std": [0.3] * 3}
    dump(folder / "hf_clip" / "preprocessor_config.json", pictures)
    shutil.copy("tokenizer.json", folder / "hf_clip")


def hf_siglip(folder: Path) -> None:
    from transformers import SiglipConfig, SiglipModel

    text = {**SIZES, "vocab_size": len(WORDS), "max_position_embeddings": 8}
    vision = {**SIZES, "image_size": 16, "patch_size": 8}
    store(SiglipModel(SiglipConfig(text_config=text, vision_config=vision)), folder / "hf_siglip")
    pictures = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 16, "width": 16}}
    dump(folder / "hf_siglip" / "processor_config.json", {"image_processor": pictures})
    tokens = {"tokenizer_class": "SiglipTokenizer", "pad_token": "</s>", "eos_token": "</s>"}
    dump(folder / "hf_siglip" / "tokenizer_config.json", tokens)
    shutil.copy("tokenizer.json", folder / "hf_siglip")


def store(model: Any, folder: Path) -> None:
    randomised(model).save_pretrained(folder)


def dump(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", "utf-8")


def draw_pictures(folder: Path) -> None:
    """Three stripes each, in colours of their own."""
    for number in range(12):
        generator = np.random.default_rng(number)
        stripes = generator.integers(0, 256, (3, 1, 3), dtype=np.uint8).repeat(5, axis=0).repeat(12 + number, axis=1)
        path = folder / "ab"[number % 2] / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(stripes).save(path)
        if number < 4:
            path.with_suffix(".txt").write_text(f"a picture of {WORDS[14 + number]}\nstripes\n", "utf-8")
    (folder / "broken.png").write_bytes(b"not a picture")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    write(Path(sys.argv[1]))
