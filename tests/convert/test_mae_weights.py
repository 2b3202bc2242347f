"""The reference is models_mae.py of https://github.com/facebookresearch/mae, line by line from timm's parts."""

import math
from functools import partial

import pytest
import torch
from timm.layers.patch_embed import PatchEmbed
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit.bundle import model_config
from vitkit.bundle.weights import load
from vitkit.convert.mae_weights import from_vitkit, is_full, read_config, to_vitkit
from vitkit.convert.timm.config import Facts

SIZE, GRID = (24, 40), (3, 5)
FACTS = Facts(4, SIZE)
TRUNK = {"class_path": "vitkit.Encoder", "init_args": {"dim": 32, "depth": 2, "heads": 4}}
norm = partial(nn.LayerNorm, eps=1e-6)


class Reference(nn.Module):
    """MaskedAutoencoderViT with noise as an argument, and for images of any proportions and channels."""

    def __init__(self, channels: int = 3, norm_pix: bool = True) -> None:
        super().__init__()
        self.norm_pix, self.channels, p = norm_pix, channels, 8
        self.patch_embed = PatchEmbed(SIZE, p, channels, 32)
        N = self.patch_embed.num_patches
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 32))
        self.pos_embed = nn.Parameter(torch.zeros(1, N + 1, 32), requires_grad=False)
        self.blocks = nn.ModuleList([Block(32, 4, 4, qkv_bias=True, norm_layer=norm) for _ in range(2)])
        self.norm = norm(32)
        self.decoder_embed = nn.Linear(32, 16)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, 16))
        self.decoder_pos_embed = nn.Parameter(torch.zeros(1, N + 1, 16), requires_grad=False)
        self.decoder_blocks = nn.ModuleList([Block(16, 2, 4, qkv_bias=True, norm_layer=norm) for _ in range(3)])
        self.decoder_norm = norm(16)
        self.decoder_pred = nn.Linear(16, p**2 * channels)

    def patchify(self, imgs: Tensor) -> Tensor:
        p, (h, w), c = 8, GRID, self.channels
        x = imgs.reshape(shape=(imgs.shape[0], c, h, p, w, p))
        x = torch.einsum("nchpwq->nhwpqc", x)
        return x.reshape(shape=(imgs.shape[0], h * w, p**2 * c))

    def random_masking(self, x: Tensor, noise: Tensor, mask_ratio: float) -> tuple[Tensor, Tensor, Tensor]:
        N, L, D = x.shape
        len_keep = int(L * (1 - mask_ratio))
        ids_shuffle = torch.argsort(noise, dim=1)
        ids_restore = torch.argsort(ids_shuffle, dim=1)
        ids_keep = ids_shuffle[:, :len_keep]
        x_masked = torch.gather(x, dim=1, index=ids_keep.unsqueeze(-1).repeat(1, 1, D))
        mask = torch.ones([N, L])
        mask[:, :len_keep] = 0
        return x_masked, torch.gather(mask, dim=1, index=ids_restore), ids_restore

    def forward(self, imgs: Tensor, noise: Tensor, mask_ratio: float = 0.75) -> tuple[Tensor, Tensor, Tensor]:
        x = self.patch_embed(imgs) + self.pos_embed[:, 1:, :]
        x, mask, ids_restore = self.random_masking(x, noise, mask_ratio)
        x = torch.cat(((self.cls_token + self.pos_embed[:, :1, :]).expand(x.shape[0], -1, -1), x), dim=1)
        for blk in self.blocks:
            x = blk(x)
        x = self.decoder_embed(self.norm(x))
        mask_tokens = self.mask_token.repeat(x.shape[0], ids_restore.shape[1] + 1 - x.shape[1], 1)
        x_ = torch.cat([x[:, 1:, :], mask_tokens], dim=1)
        x_ = torch.gather(x_, dim=1, index=ids_restore.unsqueeze(-1).repeat(1, 1, x.shape[2]))
        x = torch.cat([x[:, :1, :], x_], dim=1) + self.decoder_pos_embed
        for blk in self.decoder_blocks:
            x = blk(x)
        pred = self.decoder_pred(self.decoder_norm(x))[:, 1:, :]
        target = self.patchify(imgs)
        if self.norm_pix:
            target = (target - target.mean(dim=-1, keepdim=True)) / (target.var(dim=-1, keepdim=True) + 1.0e-6) ** 0.5
        loss = ((pred - target) ** 2).mean(dim=-1)
        return (loss * mask).sum() / mask.sum(), pred, mask


def randomize(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in model.double().parameters():
            parameter.normal_(std=0.3)
        for name, parameter in model.named_parameters():
            if name == "decoder_pos_embed":
                parameter[:, 0] = 0
    return model.eval()


def build_model(state, facts=FACTS, **options) -> tuple[nn.Module, dict]:
    config = read_config(state, facts, **options)
    model = model_config.build_model(config).double().eval()
    load(model, to_vitkit(state, GRID))
    return model, config


def draw_inputs(channels: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(2, channels, *SIZE, dtype=torch.float64), torch.rand(2, *GRID, dtype=torch.float64)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("norm_pix", [False, True])
def test_whole_model_keeps_its_loss_in_both_directions(channels, norm_pix):
    reference, (images, noise) = randomize(Reference(channels, norm_pix)), draw_inputs(channels)
    loss, predicted, mask = reference(images, noise.flatten(1))
    model, config = build_model(reference.state_dict(), decoder_heads=2, norm_pix=norm_pix)
    ours = model(images, noise)
    expected = predicted[mask.bool()].view(ours.pixels.shape)
    assert_close(ours.pixels, expected, rtol=0, atol=1e-9)
    assert_close((ours.pixels - model.make_target(images, ours.hidden)).square().mean(), loss, rtol=0, atol=1e-9)
    other = randomize(Reference(channels, norm_pix))
    other.load_state_dict(from_vitkit(model.state_dict(), config), strict=True)
    for back, before in zip(other(images, noise.flatten(1)), (loss, predicted, mask), strict=True):
        assert_close(back, before, rtol=0, atol=1e-9)


def test_sinusoidal_tables_are_exported_as_in_mae():
    """pos_embed.py of MAE puts w first, and gives CLS a row of zeros."""
    decoder = {"class_path": "vitkit.Encoder", "init_args": {"dim": 16, "depth": 3, "heads": 2}}
    sizes = {"image_size": [*SIZE], "patch_size": [8, 8]}
    config = {"class_path": "vitkit.MAE", "init_args": {"encoder": TRUNK, "decoder": decoder, **sizes}}
    model, reference, (images, noise) = (
        randomize(model_config.build_model(config)),
        Reference().double().eval(),
        draw_inputs(),
    )
    state = from_vitkit(model.state_dict(), config)
    reference.load_state_dict(state, strict=True)
    _, predicted, mask = reference(images, noise.flatten(1))
    ours = model(images, noise)
    assert_close(ours.pixels, predicted[mask.bool()].view(ours.pixels.shape), rtol=0, atol=1e-9)
    row, column = 2, 3
    angles = [place / 10000 ** (k / 8) for place in (column, row) for k in range(8)]
    expected = [f(angle) for half in (angles[:8], angles[8:]) for f in (math.sin, math.cos) for angle in half]
    assert_close(state["pos_embed"][0, 1 + row * 5 + column], torch.tensor(expected).double())
    assert not state["pos_embed"][0, 0].any()
    assert not state["decoder_pos_embed"][0, 0].any()


@pytest.mark.parametrize(
    ("options", "pool"),
    [
        ({"global_pool": "avg", "num_classes": 5}, "token"),
        ({"global_pool": "token", "num_classes": 5}, "token"),
        ({"global_pool": "avg", "num_classes": 0, "fc_norm": False}, "token"),
    ],
    ids=["fine-tuned", "fine-tuned with CLS", "encoder"],
)
def test_file_without_decoder_keeps_its_outputs_in_both_directions(options, pool):
    sizes = {"img_size": SIZE, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
    reference, (images, _) = randomize(VisionTransformer(**sizes, **options)), draw_inputs()
    state = reference.state_dict()
    assert not is_full(state)
    model, config = build_model(state, FACTS._replace(pool=pool))
    assert_close(model(images), reference(images), rtol=0, atol=1e-10)
    back = VisionTransformer(**sizes, **options).double().eval()
    back.load_state_dict(from_vitkit(model.state_dict(), config), strict=True)
    assert_close(back(images), reference(images), rtol=0, atol=1e-10)
    assert not back.pos_embed[0, 0].any()


def test_position_of_cls_in_the_decoder_raises():
    state = randomize(Reference()).state_dict()
    state["decoder_pos_embed"][0, 0, 3] = 0.1
    with pytest.raises(ValueError, match="decoder_pos_embed must be zero at the CLS token"):
        to_vitkit(state, GRID)


@pytest.mark.parametrize("grid", [(4, 4), (1, 5)])
def test_grid_of_another_size_raises(grid):
    with pytest.raises(ValueError, match="grid must have as many patches"):
        to_vitkit(randomize(Reference()).state_dict(), grid)


def test_norm_pix_and_decoder_heads_must_be_given():
    state = randomize(Reference()).state_dict()
    with pytest.raises(ValueError, match="norm_pix must be given"):
        read_config(state, FACTS, 2)
    with pytest.raises(ValueError, match="got decoder_heads=3"):
        read_config(state, FACTS, 3, norm_pix=True)


def test_unknown_missing_and_misshapen_tensors_are_listed_at_once():
    state = randomize(Reference()).state_dict()
    model, _ = build_model(state, decoder_heads=2, norm_pix=True)
    del state["decoder_blocks.2.attn.qkv.bias"]
    state |= {"decoder_extra.weight": torch.ones(2), "decoder_pred.bias": torch.ones(7)}
    with pytest.raises(ValueError) as error:
        load(model, to_vitkit(state, GRID))
    assert [line.split(":")[0] for line in str(error.value).splitlines()[1:]] == [
        "  - decoder.encoder.blocks.2.attn.f.qkv.bias",
        "  ! decoder.pixels.bias",
        "  + decoder_extra.weight",
    ]


def make_config(decoder, **arguments) -> dict:
    narrow = {"class_path": "vitkit.Encoder", "init_args": {"dim": 16, "depth": 1, "heads": 2, **decoder}}
    sizes = {"image_size": [*SIZE], "patch_size": [8, 8]}
    return {"class_path": "vitkit.MAE", "init_args": {"encoder": TRUNK, "decoder": narrow, **sizes, **arguments}}


@pytest.mark.parametrize(
    ("config", "reasons"),
    [
        (
            make_config({"residual": {"class_path": "vitkit.nn.PreNorm", "init_args": {"scale": 0.1}}}, prefix=2),
            ["decoder: residual must be without a scale", "prefix must be 1"],
        ),
        (
            make_config({"mlp": {"class_path": "vitkit.nn.SwiGLU", "init_args": {"ratio": 2.0}}, "final_norm": False}),
            ["decoder: mlp must be MLP with GELU", "decoder must have a final norm"],
        ),
        (
            make_config({"norm": {"class_path": "vitkit.nn.LayerNorm", "init_args": {"eps": 1e-12}}}),
            ["decoder: norms must have eps 1e-06"],
        ),
        (
            {"class_path": "vitkit.ViT", "init_args": {"encoder": TRUNK, "pool": "vitkit.nn.Mean"}},
            ["pool must be First, or Mean with a norm"],
        ),
        ({"class_path": "torch.nn.Linear"}, ["model must be a vitkit.models.MAE or ViT"]),
    ],
)
def test_unsupported_models_raise_with_every_reason(config, reasons):
    with pytest.raises(ValueError) as error:
        from_vitkit({}, config)
    assert str(error.value) == f"this model in MAE's own code is not supported: {'; '.join(reasons)}"
