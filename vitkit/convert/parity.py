"""Whether another library, having loaded strictly what was written, gives the model's outputs: the largest difference.

B batch, C channels, h w the model's image size in pixels.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file
from torch import Tensor

from vitkit.convert import mae_weights
from vitkit.convert.importer import built
from vitkit.convert.overrides import Imported, grid_of, outputs_of
from vitkit.models import CLIP, MAE, ViT
from vitkit.nn import EndOfText
from vitkit.nn.embed import take


def largest(theirs: Tensor, ours: Tensor) -> float:
    if theirs.shape != ours.shape:
        raise ValueError(f"outputs must have the model's shape {tuple(ours.shape)}, got {tuple(theirs.shape)}")
    return (theirs - ours).abs().max().item()


def timm_difference(found: Imported, images: Float[Tensor, "B C h w"], folder: Path) -> float:
    import timm

    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    return largest(theirs(images), built(found).model(images))


def hf_difference(found: Imported, images: Float[Tensor, "B C h w"], folder: Path) -> float:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    name = json.loads((folder / "config.json").read_text("utf-8"))["architectures"][0]
    # Theirs adds a pooler, random where the file has none, unless it is told not to.
    options = {"add_pooling_layer": False} if name in ("ViTModel", "DeiTModel") else {}
    theirs, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True, **options)
    if wrong := {kind: names for kind, names in info.items() if names}:
        raise ValueError(f"{name} must load every tensor, got {wrong}")
    theirs.eval()
    match model := built(found).model:
        case CLIP():
            ids = ids_for(model)
            other = theirs(pixel_values=images, input_ids=ids)
            bias = torch.zeros(1) if model.bias is None else theirs.logit_bias
            return pairs(model, images, ids, (other.image_embeds, other.text_embeds, theirs.logit_scale.exp(), bias))
        case MAE():
            noise = noise_for(model, images)
            ours = model(images, noise)
            pixels = theirs(images, noise=noise.flatten(1)).logits  # of all patches, (B, N, Q)
            return largest(take(pixels, ours.hidden), ours.pixels)
        case ViT() if outputs_of(found.config):
            return largest(theirs(images).logits, model(images))
    return largest(theirs(images).last_hidden_state, cast(ViT, model).features(images))


def mae_difference(found: Imported, images: Float[Tensor, "B C h w"], folder: Path) -> float:
    """No library has that code: what was written is read back, with tables in place of formulas."""
    learned = {"table": "vitkit.nn.Learned", "decoder_table": "vitkit.nn.Learned"}
    state = mae_weights.to_vitkit(load_file(folder / "model.safetensors"), grid_of(found.config))
    match model := built(found).model:
        case MAE():
            again = built(found._replace(config=with_arguments(found.config, learned), state=state)).model
            noise = noise_for(model, images)
            return largest(again(images, noise).pixels, model(images, noise).pixels)
    del learned["decoder_table"]
    return largest(
        built(found._replace(config=with_arguments(found.config, learned), state=state)).model(images), model(images)
    )


def with_arguments(config: Mapping[str, Any], arguments: Mapping[str, object]) -> dict[str, Any]:
    return {**config, "init_args": {**config["init_args"], **arguments}}


def noise_for(model: MAE, images: Float[Tensor, "B C h w"]) -> Float[Tensor, "B rows columns"]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(len(images), *model.embed.grid(images.shape[2], images.shape[3]), generator=generator)


def openclip_difference(found: Imported, images: Float[Tensor, "B C h w"], folder: Path) -> float:
    import open_clip

    match model := built(found).model:
        case CLIP():
            whole: Any = open_clip.create_model(f"local-dir:{folder}").eval()
            ids = ids_for(model)
            bias = torch.zeros(1) if whole.logit_bias is None else whole.logit_bias
            return pairs(model, images, ids, (*whole(images, ids)[:2], whole.logit_scale.exp(), bias))
    told = json.loads((folder / "open_clip_config.json").read_text("utf-8"))["model_cfg"]
    text = open_clip.CLIPTextCfg(context_length=1, vocab_size=1, width=8, heads=1, layers=1)  # of no use here
    theirs = open_clip.CLIP(**told, text_cfg=text).eval()
    state = load_file(folder / "open_clip_model.safetensors")
    theirs.visual.load_state_dict({name.removeprefix("visual."): tensor for name, tensor in state.items()})
    return largest(theirs.encode_image(images), model(images))


def ids_for(model: CLIP) -> Int[Tensor, "2 T"]:
    """Two texts, and where a text is read at its end, one that ends before."""
    vocabulary, context = model.text.embed.tokens.num_embeddings, model.text.embed.context
    ids = torch.randint(vocabulary - 1, (2, context), generator=torch.Generator().manual_seed(0))
    match pool := model.text.pool:
        case EndOfText():
            ids = torch.where(ids == pool.end, pool.end - 1 if pool.end else 1, ids)
            ids[0, -1] = ids[1, context // 2] = pool.end
    return ids


def pairs(model: CLIP, images: Float[Tensor, "B C h w"], ids: Int[Tensor, "B T"], theirs: tuple[Tensor, ...]) -> float:
    """Of embeddings; of scale and bias as they change a logit, in parts of the scale."""
    ours = model(images, ids)
    image, text, scale, bias = theirs
    logits = ours.scale * ours.image @ ours.text.mT + ours.bias, scale * image @ text.mT + bias
    return max(largest(image, ours.image), largest(text, ours.text), largest(logits[1], logits[0]) / ours.scale.item())
