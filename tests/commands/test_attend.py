import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from matplotlib import colormaps
from PIL import Image
from safetensors.torch import save_file
from torch.testing import assert_close

from vitkit.bundle import model_config
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import save
from vitkit.commands.attend import main, parse_query
from vitkit.convert.open import open_model, open_pair_model
from vitkit.data.preprocess import PictureError, Preprocess, read_image
from vitkit.interpret.examine.attention_maps import (
    MapOptions,
    make_text_model,
    map_attention,
    map_relevance,
    map_rollout,
)
from vitkit.interpret.examine.image_model import AttentionModel
from vitkit.interpret.examine.picture_maps import attend
from vitkit.interpret.maps.relevance import relevance
from vitkit.interpret.maps.rollout import rollout
from vitkit.interpret.see.capture import capture
from vitkit.interpret.see.layers import find_attention_layers
from vitkit.support.errors import InputWarning

CLASSES = ("cat", "dog", "owl")
PREPROCESS = Preprocess((16, 24), (0.5,) * 3, (0.25,) * 3, crop=0.875)


def config(pool: str, prefix: int) -> dict[str, Any]:
    encoder = {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 32, "depth": 2, "heads": 4}}
    image = {"encoder": encoder, "image_size": [16, 24], "patch_size": [8, 8], "outputs": 3, "prefix": prefix}
    pools = {"class_path": f"vitkit.nn.{pool}", **({"init_args": {"heads": 4}} if pool == "Attend" else {})}
    return {"class_path": "vitkit.models.ViT", "init_args": {**image, "pool": pools}}


def saved(folder: Path, pool: str = "First", prefix: int = 2) -> Path:
    model = model_config.build_model(config(pool, prefix))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    save(folder, Bundle(model, config(pool, prefix), PREPROCESS, CLASSES))
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, size in (("wide.png", (90, 40)), ("high.jpg", (33, 61))):
        pixels = np.random.default_rng(len(name)).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name)
    return folder


def numbers(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8"))


def test_figures_and_json_are_written(tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = saved(tmp_path / "model"), tmp_path / "out"
    assert main([str(model), str(photos), "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == [
        *("high.json", "high_layer1.png", "high_layer1_heads.png"),
        *("wide.json", "wide_layer1.png", "wide_layer1_heads.png"),
    ]
    result = numbers(out / "wide.json")
    assert (result["photo"], result["grid"], result["prefix"]) == ({"width": 90, "height": 40}, [2, 3], ["cls", "reg0"])
    own, photo = open_model(model).model, PREPROCESS(read_image(photos / "wide.png"))[None]
    with torch.inference_mode(), capture(own, -1, queries=[0]) as attention:
        shares = own(photo)[0].softmax(0)
    expected = attention.get_layer(-1).weights[0, :, 0]
    (layer,) = result["maps"]
    mean, *heads = layer["heads"]
    assert [head["head"] for head in heads] == [0, 1, 2, 3]
    for head, row in zip([mean, *heads], [expected.mean(0), *expected], strict=True):
        assert_close(torch.tensor(head["patches"]), row[2:].unflatten(0, (2, 3)), rtol=1e-5, atol=1e-7)
        assert_close(torch.tensor([head["prefix"]["cls"], head["prefix"]["reg0"]]), row[:2], rtol=1e-5, atol=1e-7)
    probabilities = {entry["class"]: entry["probability"] for entry in result["predictions"]}
    assert probabilities == pytest.approx(dict(zip(CLASSES, shares.tolist(), strict=True)), rel=1e-4)
    assert capsys.readouterr().out.count("->") == 2


def test_input_and_maps_alone_have_the_size_of_the_model(tmp_path: Path, photos: Path) -> None:
    model, out = saved(tmp_path / "model"), tmp_path / "out"
    assert main([str(model), str(photos / "wide.png"), "--out", str(out), "--maps", "--json"]) == 0
    names = ("input", "layer1_map", *(f"layer1_map_head{head}" for head in range(4)))
    images = {name: Image.open(out / f"wide_{name}.png") for name in names}
    assert {image.size for image in images.values()} == {(24, 16)}
    photo = PREPROCESS.convert(read_image(photos / "wide.png"))
    assert images["input"].tobytes() == PREPROCESS.resize(photo).tobytes()
    heads = numbers(out / "wide.json")["maps"][0]["heads"]
    largest = max(max(map(max, head["patches"])) for head in heads[1:])
    for name, head, end in zip(names[1:], heads, [max(map(max, heads[0]["patches"])), *4 * [largest]], strict=True):
        pixels = np.asarray(images[name]).reshape(2, 8, 3, 8, 3)
        assert (pixels == pixels[:, :1, :, :1]).all()  # one colour for each patch
        expected = colormaps["viridis"](np.array(head["patches"]) / end, bytes=True)[..., :3]
        assert abs(pixels[:, 0, :, 0].astype(int) - expected).max() <= 2
    (result,) = attend(model, photos / "wide.png")
    figures = dict(result.draw_figures())
    assert figures["layer1_heads"].axes[0].images[0].get_array().shape == (16, 24, 3)


def test_picture_of_one_pixel_is_answered_with_a_warning(tmp_path: Path, photos: Path) -> None:
    Image.new("L", (1, 1)).save(photos / "dot.png")
    with pytest.warns(
        InputWarning, match=r"^pictures smaller than 2 x 2 pixels .* model's 16 x 24: 1 of 2, .*dot.png$"
    ):
        assert len([*attend(saved(tmp_path / "model"), [photos / "dot.png", photos / "wide.png"])]) == 2


def test_open_model_equals_its_folder(tmp_path: Path, photos: Path) -> None:
    model, photo = saved(tmp_path / "model"), photos / "wide.png"
    (result,), (expected,) = attend(open_model(model), photo), attend(model, photo)
    assert result.to_dict() == expected.to_dict()


def test_texts_of_an_open_clip_equal_those_of_its_folder(clip_folder: Path, photos: Path) -> None:
    texts, photo = ["a cat", "a dog"], photos / "wide.png"
    (result,), (expected,) = (
        attend(source, photo, texts=texts, method=map_relevance) for source in (open_model(clip_folder), clip_folder)
    )
    assert result.to_dict() == expected.to_dict()


def test_default_query_is_the_pooled_token(tmp_path: Path, photos: Path) -> None:
    photo = photos / "wide.png"
    for pool, rows, reader in (("First", [0], "cls"), ("Mean", [2, 3, 4, 5, 6, 7], "mean of the patches")):
        model = saved(tmp_path / pool, pool)
        own, image = open_model(model).model, PREPROCESS(read_image(photo))[None]
        with torch.inference_mode(), capture(own) as attention:
            own(image)
        whole = [layer.weights for layer in attention.values()]
        (result,) = attend(model, photo)
        assert result.query_name == reader
        assert_close(result.maps[0].rows, whole[-1][0, :, rows].mean(1))
        (result,) = attend(model, photo, options=MapOptions((0, 1), (1, 3), (1, 2)))
        for map, layer in zip(result.maps, whole, strict=True):
            assert (map.heads, result.query_name) == ((1, 3), "row 1, column 2")
            assert_close(map.rows, layer[0, [1, 3], 2 + 1 * 3 + 2])
        (result,) = attend(model, photo, method=map_rollout)
        assert_close(result.maps[0].rows, rollout(whole)[:, rows].mean(1))
        (result,) = attend(model, photo, options=MapOptions(query="reg0", start=1), method=map_rollout)
        assert_close(result.maps[0].rows, rollout(whole, start=1)[:, 1])


def test_attention_pool_is_a_layer_with_one_row(tmp_path: Path, photos: Path) -> None:
    model = saved(tmp_path / "model", "Attend", prefix=1)
    (result,) = attend(model, photos / "wide.png")
    assert (result.maps[0].layer, result.query_name) == ("pool.attn", "the pool")
    assert_close(result.maps[0].rows.sum(1), torch.ones(4))
    with pytest.raises(ValueError, match="query must be given for encoder.blocks.0.attn"):
        [*attend(model, photos / "wide.png", options=MapOptions((0,)))]
    for method, layers in (
        (map_attention, (-1,)),
        (map_attention, ("pool*", 0)),
        (map_rollout, (-1,)),
        (map_relevance, (-1,)),
    ):
        for query in ("cls", (0, 0)):
            with pytest.raises(ValueError, match=r"query must be left out for pool\.attn"):
                [*attend(model, photos / "wide.png", options=MapOptions(layers, query=query), method=method)]
    (result,) = attend(model, photos / "wide.png", options=MapOptions((0,), query=(0, 0)))
    assert result.query_name == "row 0, column 0"


def test_relevance_depends_on_the_class(tmp_path: Path, photos: Path) -> None:
    model = saved(tmp_path / "model")
    (result,) = attend(model, photos / "wide.png", method=map_relevance)
    assert result.maps[0].target == result.predictions[0][0]
    maps = {
        name: [*attend(model, photos / "wide.png", options=MapOptions(target=name), method=map_relevance)][0]
        for name in CLASSES
    }
    assert not torch.allclose(maps["cat"].maps[0].rows, maps["owl"].maps[0].rows)
    names = [name for name, _ in result.draw_figures()]
    assert names == ["relevance"]
    with pytest.raises(ValueError, match=r"class must be one of 3 \(cat, dog, owl\), got cow"):
        [*attend(model, photos / "wide.png", options=MapOptions(target="cow"), method=map_relevance)]


def test_relevance_excludes_the_identity(tmp_path: Path, photos: Path) -> None:
    model, photo = saved(tmp_path / "model", "Mean"), photos / "wide.png"
    own, image = open_model(model).model, PREPROCESS(read_image(photo))[None]
    whole = relevance(own, own, image, torch.tensor([1]), [*find_attention_layers(own)])[0] - torch.eye(8)
    for query, rows in ((None, slice(2, 8)), ((1, 2), slice(7, 8))):
        (result,) = attend(model, photo, options=MapOptions(query=query, target="dog"), method=map_relevance)
        assert_close(result.maps[0].rows[0], whole[rows].mean(0), rtol=1e-4, atol=1e-6)


def test_equal_maps_of_texts_are_flagged(
    clip_folder: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(clip_folder), str(photos / "wide.png"), "--json", "--out", str(tmp_path / "out"), "--text"]
    assert main([*arguments, "two dogs", "TWO dogs"]) == 0  # the vocabulary knows no capitals
    sentence = "this map does not depend on the prompt (mean correlation 1.00 between 2 prompts)"
    assert sentence in capsys.readouterr().err
    assert numbers(tmp_path / "out" / "wide.json")["flags"] == [sentence]


def test_clip_has_a_relevance_map_for_each_text(clip_folder: Path, photos: Path, tmp_path: Path) -> None:
    texts, out = ["a photo of a cat", "two dogs"], tmp_path / "out"
    assert main([str(clip_folder), str(photos / "wide.png"), "--text", *texts, "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "wide.json",
        *(f"wide_relevance{place}{end}.png" for place in (0, 1) for end in ("", "_words")),
    ]
    result = numbers(out / "wide.json")
    assert [one["class"] for one in result["maps"]] == texts
    assert [word["token"] for word in result["maps"][1]["words"]] == ["<start>", "two", "dogs", "<end>"]
    assert sum(one["probability"] for one in result["predictions"]) == pytest.approx(1, abs=1e-4)
    (image,) = attend(clip_folder, photos / "wide.png", texts=["two dogs"], method=map_relevance)
    captions = {name: " ".join(figure.get_supxlabel().split()) for name, figure in image.draw_figures()}
    assert "query: cls, target: two dogs" in captions["relevance"]
    assert "query: the text's pooled token, target: two dogs" in captions["relevance_words"]
    first, second = (torch.tensor(one["heads"][0]["patches"]) for one in result["maps"])
    assert not torch.allclose(first, second)
    (raw,) = attend(clip_folder, photos / "wide.png", texts=texts)
    assert {name for name, _ in raw.predictions} == {*texts}
    with pytest.raises(ValueError, match="texts must differ"):
        [*attend(clip_folder, photos / "wide.png", texts=["a", "a"])]
    with pytest.warns(UserWarning, match="vocabulary knows 'ꙮꙮ' only as bytes"):
        [*attend(clip_folder, photos / "wide.png", texts=["ꙮꙮ"])]


def test_text_map_names_the_layers_of_the_text_tower(clip_folder: Path, photos: Path) -> None:
    dual = open_pair_model(clip_folder)
    del dual.model.text.encoder.blocks[1]
    (result,) = attend(make_text_model(dual, ["two dogs"]), photos / "wide.png", method=map_relevance)
    assert result.to_dict()["maps"][0]["layer"] == "relevance of layer 1"
    assert result.to_dict()["maps"][0]["layer_of_words"] == "relevance of layer 0"
    captions = {name: " ".join(figure.get_supxlabel().split()) for name, figure in result.draw_figures()}
    assert "relevance of layer 1," in captions["relevance"]
    assert "relevance of layer 0," in captions["relevance_words"]


@pytest.mark.parametrize("name", ["vit_base_patch16_224", "beit_base_patch16_224"])  # one is held, one taken as it is
def test_timm_models_have_attention_maps(tmp_path: Path, photos: Path, name: str) -> None:
    sizes = {"img_size": [16, 24], "patch_size": [8, 8], "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 3}
    theirs = timm.create_model(name, **sizes)
    cfg = {"input_size": [3, 16, 24], "mean": [0.5] * 3, "std": [0.25] * 3, "crop_pct": 0.9, "num_classes": 3}
    cfg |= {"interpolation": "bilinear", "crop_mode": "center", "fixed_input_size": True}
    cfg |= {"first_conv": "patch_embed.proj", "classifier": "head"}
    timm_config = {"architecture": name, "num_classes": 3, "label_names": [*CLASSES]}
    folder = tmp_path / "of timm"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**timm_config, "model_args": sizes, "pretrained_cfg": cfg}))
    save_file(theirs.state_dict(), folder / "model.safetensors")
    (result,) = attend(f"timm:{folder}", photos / "wide.png")
    assert result.maps[0].rows.shape == (2, 7)
    assert_close(result.maps[0].rows.sum(1), torch.ones(2))


def test_undecodable_file_names_are_escaped(tmp_path: Path, photos: Path) -> None:
    name = os.fsdecode(b"\xff.png")
    (photos / "wide.png").rename(photos / name)
    assert main([str(saved(tmp_path / "model")), str(photos / name), "--out", str(tmp_path / "out"), "--json"]) == 0
    (result,) = (tmp_path / "out").iterdir()
    assert numbers(result)["picture"] == str(photos / name)


def test_unknown_pooling_needs_a_query(photos: Path) -> None:
    model = timm.create_model("cait_xxs24_224", img_size=32, embed_dim=32, depth=1, num_heads=2, num_classes=3)
    layers, preprocess = ("blocks_token_only.0.attn",), Preprocess((32, 32), (0.5,) * 3, (0.5,) * 3)
    subject = AttentionModel(Bundle(model.eval(), {}, preprocess, CLASSES, source="x"), model, layers)
    with pytest.raises(ValueError, match="Cait; give the query, such as cls"):
        [*attend(subject, photos / "wide.png")]


def test_a_single_text_has_no_probability(clip_folder: Path, photos: Path) -> None:
    (result,) = attend(clip_folder, photos / "wide.png", texts=["a cat"])
    assert result.predictions == ()


def test_unreadable_pictures_are_reported_and_the_rest_drawn(
    tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "broken.png").write_bytes(b"no picture")
    model, out = saved(tmp_path / "model"), tmp_path / "out"
    arguments = [str(model), str(photos / "broken.png"), str(photos / "wide.png")]
    assert main([*arguments, "--out", str(out), "--json"]) == 1
    assert [path.name for path in out.iterdir()] == ["wide.json"]
    errors = capsys.readouterr().err
    assert "broken.png" in errors
    assert "1 of 2 pictures could not be read" in errors
    with pytest.raises(PictureError):
        [*attend(model, photos / "broken.png")]
    with pytest.raises(ValueError, match="out must be a new or empty folder"):
        main([*arguments, "--out", str(out)])


@pytest.mark.parametrize(
    "given, message",
    [
        (["--layers", "2"], "layers must be from -2 to 1, got 2"),
        (["--layers", "absent"], "patterns must name layers of the model, got"),
        (["--heads", "4"], "heads must be from 0 to 3"),
        (["--query", "reg7"], "token must be one of cls, reg0, got reg7"),
        (["--query", "2,0"], "patch must be inside the grid of 2 x 3"),
        (["--class", "cat"], "class and start must be left out for raw attention"),
        (["--map", "rollout", "--layers", "0"], "layers and heads must be left out but for raw attention"),
        (["--map", "rollout", "--start", "2"], "start must be one of 2 layers"),
        (["--text", "a cat"], "model must be a CLIP"),
    ],
)
def test_invalid_options_raise_one_line(tmp_path: Path, photos: Path, given: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        main([str(saved(tmp_path / "model")), str(photos / "wide.png"), "--out", str(tmp_path / "out"), *given])
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_invalid_queries_are_refused() -> None:
    assert parse_query("reg0") == "reg0" and parse_query("3,5") == (3, 5)
    for wrong in ("3", "-1", "3,", "a,b"):
        with pytest.raises(argparse.ArgumentTypeError, match="must be a token such as cls, or row,column, got"):
            parse_query(wrong)


@pytest.mark.parametrize("form", ["svg", "pdf"])
def test_figures_have_the_chosen_format(tmp_path: Path, photos: Path, form: str) -> None:
    out = tmp_path / "out"
    main(
        [str(saved(tmp_path / "model")), str(photos / "wide.png"), "--out", str(out), "--format", form, "--heads", "2"]
    )
    assert sorted(path.name for path in out.iterdir()) == ["wide.json", f"wide_layer1.{form}"]
