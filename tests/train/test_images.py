"""Folders of images: classes, sizes and layouts against Pillow by hand; random changes by seed; bad files by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow.ir.types import TensorType
from dataflow.train.data.augment import Augment
from dataflow.train.data.batch import Request
from tests.train.data_models import image_classifier

Image = pytest.importorskip("PIL.Image")
BATCH = df.Dim("batch")


def wanted(*shape: Any, dtype: df.DType = df.float32) -> Request:
    return Request({"pixels": TensorType(dtype, (BATCH, *shape))}, ("labels",))


def pixels(seed: int, height: int = 12, width: int = 16) -> np.ndarray:
    low = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
    return np.asarray(Image.fromarray(low).resize((width, height), Image.Resampling.BICUBIC))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    for number, name in enumerate(("ant", "bee")):
        (folder / name).mkdir(parents=True)
        for i in range(4):
            Image.fromarray(pixels(10 * number + i)).save(folder / name / f"{i}.png")
    (folder / "ant" / "notes.txt").write_text("no image")
    return folder


def read(folder: Path, request: Request, training: bool = False, **options: Any) -> dict[str, np.ndarray]:
    run = {"training": training, "seed": options.pop("seed", 0), "epoch": options.pop("epoch", 0)}
    (batch,) = df.Dataset(folder, workers=0, **options).bound(request).batches(100, **run)
    return dict(batch.arrays)


def test_images_become_the_model_s_input(photos: Path) -> None:
    found = read(photos, wanted(3, 12, 16), mean="imagenet", std="imagenet")
    assert found["labels"].tolist() == [0] * 4 + [1] * 4
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    raw = np.stack([pixels(seed) for seed in (0, 1, 2, 3, 10, 11, 12, 13)])
    expected = ((raw / 255 - mean) / std).transpose(0, 3, 1, 2)
    assert found["pixels"].dtype == np.float32
    np.testing.assert_allclose(found["pixels"], expected, atol=1e-6)
    last = read(photos, wanted(12, 16, 3), mean="imagenet", std="imagenet")
    np.testing.assert_array_equal(last["pixels"], found["pixels"].transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(read(photos, wanted(12, 16, 3, dtype=df.uint8))["pixels"], raw)
    gray = read(photos, wanted(1, 12, 16))["pixels"]
    np.testing.assert_allclose(gray[0, 0], np.asarray(Image.fromarray(raw[0]).convert("L")) / 255, atol=1e-7)
    sized = read(photos, wanted(3, df.Dim("h"), df.Dim("w")), size=(12, 16))
    np.testing.assert_allclose(sized["pixels"], raw.transpose(0, 3, 1, 2) / 255, atol=1e-7)


def test_sizes_are_by_the_middle_by_padding_or_by_stretching(photos: Path) -> None:
    image = Image.fromarray(pixels(0, 12, 18))
    image.save(photos / "ant" / "0.png")
    bilinear = Image.Resampling.BILINEAR
    padded = Image.new("RGB", (8, 8))
    padded.paste(image.resize((8, 5), bilinear), (0, 2))
    for resize, expected in (
        ("crop", image.resize((12, 8), bilinear).crop((2, 0, 10, 8))),
        ("stretch", image.resize((8, 8), bilinear)),
        ("pad", padded),
    ):
        found = read(photos, wanted(8, 8, 3, dtype=df.uint8), resize=resize)["pixels"][0]
        np.testing.assert_array_equal(found, np.asarray(expected))


def test_random_changes_are_drawn_by_seed_epoch_and_position(photos: Path) -> None:
    request, augment = wanted(8, 8, 3), "flip,crop=0.4,rotate=20,color=0.3,flip_vertical"
    first = read(photos, request, True, augment=augment, seed=3)["pixels"]
    np.testing.assert_array_equal(first, read(photos, request, True, augment=augment, seed=3)["pixels"])
    for other in ({"seed": 4}, {"seed": 3, "epoch": 1}):
        assert not np.array_equal(first, read(photos, request, True, augment=augment, **other)["pixels"])
    plain = read(photos, request)["pixels"]
    np.testing.assert_array_equal(plain, read(photos, request, augment=augment)["pixels"])
    assert not np.array_equal(plain, first)
    dataset = df.Dataset(photos, augment=augment, workers=3).bound(request)
    threaded = [b.arrays["pixels"] for b in dataset.batches(3, seed=3, training=True)]
    np.testing.assert_array_equal(np.concatenate(threaded), first)
    later = [b.arrays["pixels"] for b in dataset.batches(3, seed=3, training=True, start=1)]
    np.testing.assert_array_equal(np.concatenate(later), first[3:])


def test_each_change_does_what_its_name_says(photos: Path) -> None:
    request = wanted(12, 16, 3, dtype=df.uint8)
    plain = read(photos, request)["pixels"]
    mirrored = read(photos, request, True, augment="flip=1")["pixels"]
    np.testing.assert_array_equal(mirrored, plain[:, :, ::-1])
    upside_down = read(photos, request, True, augment="flip=1,flip_vertical=1")["pixels"]
    np.testing.assert_array_equal(upside_down, plain[:, ::-1, ::-1])
    half = read(photos, request, True, augment=Augment(flip=0.5, crop=1))["pixels"]
    same = [np.array_equal(a, b) for a, b in zip(half, plain, strict=True)]
    assert {*same} == {True, False}
    bright = read(photos, request, True, augment="color=0.5")["pixels"].astype(float)
    assert np.abs(bright.mean((1, 2, 3)) - plain.mean((1, 2, 3))).max() > 5
    drawn = [Augment(crop=0.3).box(16, 12, (0, 0, 16, 12), np.random.default_rng(i)) for i in range(200)]
    boxes = np.array(drawn)
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) / (16 * 12)
    assert areas.min() >= 0.3 - 1e-9
    assert areas.max() <= 1 + 1e-9
    assert areas.std() > 0.1
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2] <= 16 + 1e-9).all()
    assert (boxes[:, 3] <= 12 + 1e-9).all()


def test_a_model_trains_on_images_and_validates_on_others(photos: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "bee").mkdir(parents=True)
    Image.fromarray(pixels(12)).save(other / "bee" / "0.png")
    with df.Trainer(image_classifier((3, 12, 16)), devices=["numpy"]) as trainer:
        history = trainer.fit(df.Dataset(photos, augment=True), other, epochs=2, batch_size=3, progress=False)
        assert len(history["val_accuracy"]) == 2
        assert trainer.classes == {"labels": ("ant", "bee")}
        (other / "cat").mkdir()
        Image.fromarray(pixels(12)).save(other / "cat" / "0.png")
        with pytest.raises(df.InputError, match=r"cat/0\.png: its class is none of those trained on: ant, bee"):
            trainer.evaluate(other)
    with df.Trainer(image_classifier((3, 12, 16)), devices=["numpy"]) as trainer:
        trainer.fit(df.Dataset(photos, balance="labels").take(5), val_split=0.2, batch_size=3, progress=False)


def test_modes_of_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    deep = np.linspace(0, 65535, 16, dtype=np.uint16).reshape(4, 4)
    Image.fromarray(deep).save(tmp_path / "a" / "0.png")
    Image.fromarray(pixels(0, 4, 4)).quantize(8).save(tmp_path / "a" / "1.png")
    exif = Image.Exif()
    exif[0x0112] = 3  # the camera stood on its head
    Image.fromarray(pixels(0, 4, 4)).save(tmp_path / "a" / "2.png", exif=exif)
    found = read(tmp_path, wanted(4, 4, 1, dtype=df.uint8))["pixels"]
    np.testing.assert_array_equal(found[0, ..., 0], deep // 257)
    upright = np.asarray(Image.fromarray(pixels(0, 4, 4)[::-1, ::-1]).convert("L"))
    np.testing.assert_array_equal(found[2, ..., 0], upright)


def test_large_jpegs_are_decoded_smaller_and_look_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    large = Image.fromarray(pixels(3, 400, 640))
    large.save(tmp_path / "a" / "0.jpg", quality=95)
    decoded: list[tuple[int, int]] = []
    resize = Image.Image.resize
    noting = lambda image, *given, **options: decoded.append(image.size) or resize(image, *given, **options)  # noqa: E731
    monkeypatch.setattr(Image.Image, "resize", noting)
    found = read(tmp_path, wanted(16, 16, 3, dtype=df.uint8))["pixels"][0]
    read(tmp_path, wanted(16, 16, 3, dtype=df.uint8), True, augment="crop=0.2")
    assert decoded == [(80, 50), (320, 200)]
    with Image.open(tmp_path / "a" / "0.jpg") as image:
        full = np.asarray(image.crop((120, 0, 520, 400)).resize((16, 16), Image.Resampling.BILINEAR))
    differences = np.abs(found.astype(int) - full)
    assert differences.max() <= 4
    assert differences.mean() < 0.5


def test_bad_files_are_refused_by_name(photos: Path) -> None:
    request = wanted(3, 8, 8)
    bad = photos / "bee" / "3.png"
    content = bad.read_bytes()
    for wrong in (b"", b"no image", content[: len(content) // 2], content[:40] + b"\0" * 60 + content[100:]):
        bad.write_bytes(wrong)
        with pytest.raises(df.InputError, match=r"bee/3\.png: can't be decoded as an image"):
            read(photos, request)
        dataset = df.Dataset(photos, workers=2).bound(request)
        with pytest.raises(df.InputError, match=r"bee/3\.png: can't be decoded as an image"):
            list(dataset.batches(2))
    Image.new("1", (3000, 3000)).save(bad)
    with pytest.raises(df.InputError, match=r"bee/3\.png: 3000 x 3000 pixels are more than most_pixels=1000000"):
        read(photos, request, most_pixels=1_000_000)
    for path in (photos / "bee").iterdir():
        path.unlink()
    with pytest.raises(df.InputError, match="bee: it has no images"):
        df.Dataset(photos)


@pytest.mark.parametrize(
    ("request_", "options", "says"),
    [
        (wanted(5, 8, 8), {}, "which axis has the channels"),
        (wanted(5, 8, 8), {"layout": "NCHW"}, "images have 1, 3 or 4 channels, not 5"),
        (wanted(3, df.Dim("h"), 8), {}, "of any size; give size="),
        (wanted(3, 8, 8), {"size": 9}, "size=.*leave size out"),
        (wanted(3, 8, 8, dtype=df.int64), {}, "a float type or uint8"),
        (wanted(1, 8, 8), {"mean": "imagenet"}, "mean has 3 numbers, and the input 'pixels' has 1 channels"),
        (wanted(8, 8), {}, "expected one input of four axes"),
        (wanted(3, 8, 8), {"augment": "flop"}, "there is no 'flop'; there are flip"),
        (wanted(3, 8, 8), {"augment": "crop=2"}, "crop is 2; expected a number from 0.001 to 1"),
        (wanted(3, 8, 8), {"augment": "crop=a"}, "expected a number after the ="),
        (wanted(3, 8, 8), {"std": 0}, "std has a zero"),
        (wanted(3, 8, 8), {"mean": "coco"}, "mean is 'coco'; expected 'imagenet'"),
        (wanted(3, 8, 8), {"size": (1, 2, 3)}, "height and width"),
        (wanted(3, 8, 8), {"resize": "zoom"}, "resize is 'zoom'"),
        (wanted(3, 8, 8), {"classes": ["ant"]}, "the folder 'bee' is none of the classes 'ant'"),
        (wanted(3, 8, 8), {"rename": {"a": "b"}}, "rename= is for columns and arrays"),
        (wanted(3, 8, 8), {"columns": ["a"]}, "columns= is no option of images; it has augment"),
    ],
)
def test_options_that_do_not_fit(photos: Path, request_: Request, options: dict, says: str) -> None:
    with pytest.raises(df.InputError, match=says):
        read(photos, request_, **options)


def test_images_without_classes_are_predicted_by_their_names(photos: Path, tmp_path: Path) -> None:
    model = image_classifier((3, 12, 16))
    flat = photos / "ant"
    labelled = df.predict(model, df.Dataset(photos), progress=False)["logits"]
    dataset = df.Dataset(flat)
    assert list(dataset.column("file")) == ["0.png", "1.png", "2.png", "3.png"] and not dataset.classes
    np.testing.assert_array_equal(df.predict(model, dataset, progress=False)["logits"], labelled[:4])
    one = df.predict(model, df.Dataset(flat / "2.png"), progress=False)["logits"]
    np.testing.assert_allclose(one, labelled[2:3], rtol=1e-5)
    with pytest.raises(df.InputError, match="missing: 'labels'"), df.Trainer(model, "cross_entropy") as trainer:
        trainer.fit(dataset, epochs=1, progress=False)


def test_images_beside_the_folders_of_classes_are_left_out_with_a_warning(photos: Path, caplog: Any) -> None:
    Image.fromarray(pixels(50)).save(photos / "beside.png")
    assert len(df.Dataset(photos)) == 8
    assert "1 images lie beside the folders of the classes" in caplog.text
