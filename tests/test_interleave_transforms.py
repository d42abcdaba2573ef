"""The resize rule is BAGEL's, number for number; whatever picture comes in, RGB comes out or a reason."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.numpy import load_file

from unify_agent.interleave import transforms
from unify_agent.interleave.batch import normalise
from unify_agent.interleave.segments import Unusable
from unify_agent.interleave.transforms import Transform, open_picture, peek_picture, to_rgb

GOLDEN = Path(__file__).parent / "golden"
SIZES = json.loads((GOLDEN / "transforms.json").read_text())


@pytest.mark.parametrize("name", SIZES["configs"])
def test_every_stored_size_is_reproduced(name: str) -> None:
    stored = SIZES["configs"][name]
    transform = Transform(
        stored["max_image_size"],
        stored["min_image_size"],
        stored["image_stride"],
        stored.get("max_pixels", SIZES["default_max_pixels"]),
    )
    for case in SIZES["outputs"][name]:
        for key in case.keys() - {"in"}:
            pictures = 1 if key == "out" else int(key.removeprefix("out_img_num_"))
            assert list(transform.size(*case["in"], pictures)) == case[key], (case["in"], key)


def test_resized_pixels_equal_the_stored_ones() -> None:
    stored = load_file(GOLDEN / "transform_pixels.safetensors")
    transform = Transform(64, 32, 16)
    for source, result in (("src", "out"), ("src_small", "out_small_upscaled")):
        pixels = transform(Image.fromarray(stored[source]))
        assert pixels.dtype == np.uint8
        np.testing.assert_allclose(normalise(pixels).numpy(), stored[result], atol=1e-6)


def test_transparency_lies_on_white_as_stored() -> None:
    stored = load_file(GOLDEN / "transform_pixels.safetensors")
    np.testing.assert_array_equal(np.asarray(to_rgb(Image.fromarray(stored["rgba"]))), stored["rgba_to_rgb"])


@given(
    st.integers(1, 3000),
    st.integers(1, 3000),
    st.sampled_from([(1024, 512, 16), (980, 378, 14), (64, 64, 16)]),
)
def test_sizes_are_whole_patches_within_the_maximum(
    width: int, height: int, rule: tuple[int, int, int]
) -> None:
    transform = Transform(*rule)
    for side in transform.size(width, height):
        assert side % transform.stride == 0 and transform.stride <= side
        assert side <= transform.max_size or side - transform.max_size < transform.stride


def test_measuring_gives_the_shape_of_the_real_thing() -> None:
    transform = Transform(64, 32, 16)
    picture = Image.new("RGB", (77, 31))
    assert transform.shape_only(picture).shape == transform(picture).shape


def test_a_picture_of_the_right_size_is_not_resampled() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    np.testing.assert_array_equal(Transform(64, 64, 16)(Image.fromarray(pixels)), pixels)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I", "I;16", "PA"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    picture = to_rgb(Image.new(mode, (5, 4)))
    assert picture.mode == "RGB" and picture.size == (5, 4)


def test_a_transparent_palette_lies_on_white(tmp_path: Path) -> None:
    picture = Image.new("P", (4, 4), 0)
    picture.putpalette([10, 20, 30] * 256)
    picture.save(tmp_path / "p.png", transparency=0)
    assert open_picture(tmp_path / "p.png").getpixel((0, 0)) == (255, 255, 255)


def test_sixteen_bit_grey_keeps_its_shades(tmp_path: Path) -> None:
    Image.fromarray(np.full((3, 3), 0x8000, np.uint16)).save(tmp_path / "deep.png")
    assert open_picture(tmp_path / "deep.png").getpixel((1, 1)) == (128, 128, 128)


def test_an_animation_gives_its_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (6, 6), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    red, _, blue = open_picture(tmp_path / "a.gif").getpixel((0, 0))
    assert red > 200 and blue < 50


def test_pixels_are_taken_as_stored_whatever_exif_says(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (8, 4)).save(tmp_path / "turned.jpg", exif=exif)
    assert open_picture(tmp_path / "turned.jpg").size == (8, 4)


def test_unusable_pictures_are_told_apart_by_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.png").write_text("no picture")
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(tmp_path / "whole.png")
    whole = (tmp_path / "whole.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    reasons = {}
    for name in ("none.png", "text.png", "cut.png"):
        with pytest.raises(Unusable) as caught:
            open_picture(tmp_path / name)
        reasons[name] = caught.value.reason
    assert reasons == {
        "none.png": "picture missing",
        "text.png": "not a picture",
        "cut.png": "picture does not decode",
    }
    monkeypatch.setattr(transforms, "MAX_FILE_PIXELS", 64 * 64 - 1)
    with pytest.raises(Unusable, match="picture too large"):
        peek_picture(tmp_path / "whole.png")


def test_a_picture_that_claims_to_be_gigantic_is_refused_unread(tmp_path: Path) -> None:
    header = bytearray(_png_header(60000, 60000))
    (tmp_path / "bomb.png").write_bytes(header)
    with pytest.raises(Unusable, match="picture too large"):
        open_picture(tmp_path / "bomb.png")


def _png_header(width: int, height: int) -> bytes:
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
