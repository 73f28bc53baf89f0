"""Decoding images: formats, pixels of other kinds than bytes of three colours, and bytes that are no image."""

import io
import sys
import zlib

import numpy as np
import pytest
from onnx import TensorProto, helper
from PIL import Image

import dataflow as df
from dataflow_onnx.loading import load_bytes
from tests.support import onnx_model

COLOURS = np.random.default_rng(0).integers(0, 256, (3, 5, 3), np.uint8)


def encoded(image, name, **options):
    file = io.BytesIO()
    image.save(file, name, **options)
    return np.frombuffer(file.getvalue(), np.uint8)


def decoded(data, pixel_format="RGB", **options):
    node = helper.make_node("ImageDecoder", ["x"], ["y"], pixel_format=pixel_format)
    model = onnx_model([node], [("x", TensorProto.UINT8, ("n",))], [("y", TensorProto.UINT8, (None,) * 3)], opset=20)
    return df.Session(load_bytes(model.SerializeToString()), devices=["numpy"], **options).run({"x": data})["y"]


@pytest.mark.parametrize("name", ["BMP", "PNG", "PPM", "TIFF"])
def test_what_is_stored_exactly_is_given_exactly(name):
    data = encoded(Image.fromarray(COLOURS), name)
    np.testing.assert_array_equal(decoded(data), COLOURS)
    np.testing.assert_array_equal(decoded(data, "BGR"), COLOURS[:, :, ::-1])
    grey = COLOURS @ [0.299, 0.587, 0.114]
    np.testing.assert_allclose(decoded(data, "Grayscale")[:, :, 0], grey, atol=1)


def test_palettes_and_transparency_and_one_colour():
    image = Image.fromarray(COLOURS)
    np.testing.assert_array_equal(decoded(encoded(image.convert("RGBA"), "PNG")), COLOURS)
    palette = image.quantize(16)
    np.testing.assert_array_equal(decoded(encoded(palette, "PNG")), np.asarray(palette.convert("RGB")))
    grey = image.convert("L")
    np.testing.assert_array_equal(decoded(encoded(grey, "PNG")), np.asarray(grey)[:, :, None].repeat(3, 2))


@pytest.mark.parametrize("name", ["PNG", "TIFF", "PPM"])
def test_of_16_bits_the_first_8_are_given(name):
    upcast = np.random.default_rng(1).integers(0, 1 << 16, (4, 3), np.uint16)
    found = decoded(encoded(Image.fromarray(upcast), name), "Grayscale")
    np.testing.assert_array_equal(found[:, :, 0], upcast >> 8)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_of_more_bits_nothing_is_made(dtype):
    assert decoded(encoded(Image.fromarray(np.full((2, 2), 70_000, dtype)), "TIFF")).size == 0


@pytest.mark.parametrize("pixel_format", ["RGB", "Grayscale"])
def test_bytes_that_are_no_image_give_an_empty_one(pixel_format):
    png = encoded(Image.fromarray(COLOURS), "PNG")
    gif = encoded(Image.fromarray(COLOURS), "GIF")
    broken = png.copy()
    broken[40:60] = 0
    random = np.random.default_rng(2).integers(0, 256, 99, np.uint8)
    for data in (png[:60], png[:0], gif, broken, random):
        assert decoded(data, pixel_format).shape == (0, 0, 1 if pixel_format == "Grayscale" else 3)


def test_an_image_that_claims_too_many_pixels_is_refused():
    def chunk(kind, data):
        return len(data).to_bytes(4) + kind + data + zlib.crc32(kind + data).to_bytes(4)

    header = (200_000).to_bytes(4) * 2 + bytes([8, 2, 0, 0, 0])
    file = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    with pytest.raises(df.InputError, match=r"ImageDecoder.*pixels"):
        decoded(np.frombuffer(file, np.uint8))


def test_an_unknown_order_of_colours_and_what_are_no_bytes():
    with pytest.raises(df.ModelError, match="pixel_format is 'RGBA'; expected one of RGB, BGR, Grayscale"):
        decoded(np.zeros(3, np.uint8), "RGBA")
    with pytest.raises(df.InputError, match="expected the bytes of a file"):
        g = df.GraphBuilder()
        df.ops.image_size(g.input("x", df.uint8, (2, 3)))


def test_without_the_decoder_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(df.DeviceError, match=r"pip install 'dataflow-engine\[images\]'"):
        decoded(np.zeros(3, np.uint8))
