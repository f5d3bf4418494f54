"""Images of any size and format become arrays of one shape."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pytest
from image_data import digits, jpeg, png
from PIL import Image
from pyspark.sql import functions

from elephas_like.rows import images
from elephas_like.rows.frame_plan import AS_IMAGES, ColumnChoice
from elephas_like.rows.frame_read import Frame
from elephas_like.rows.frame_schema import plan
from elephas_like.rows.valid_rows import valid
from elephas_like.rows.vectors import Unfit

COLORS = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3) * 10
STRUCT = pa.struct(
    [
        ("origin", pa.string()),
        *((name, pa.int32()) for name in ("height", "width", "nChannels", "mode")),
        ("data", pa.binary()),
    ]
)


def files(*contents: bytes | None) -> pa.Array:
    return pa.array(contents, pa.binary())


def saved(pixels: np.ndarray, kind: str, mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind)
    return file.getvalue()


def test_a_lossless_file_of_the_right_size_is_read_as_it_is() -> None:
    gray, _ = digits(5)
    assert np.array_equal(images.from_files(files(*map(png, gray)), (8, 8, 1)), gray)
    for kind in ("PNG", "BMP"):
        assert np.array_equal(images.from_files(files(saved(COLORS, kind)), (2, 3, 3))[0], COLORS)


def test_gray_becomes_rgb_and_every_level_of_gray_stays() -> None:
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    found = images.from_files(files(png(levels)), (16, 16, 3))
    assert np.array_equal(found[0], levels.repeat(3, axis=2))
    assert np.array_equal(images.from_files(files(png(found[0])), (16, 16, 1))[0], levels)


@pytest.mark.parametrize(
    ("kind", "mode"), [("JPEG", "CMYK"), ("PNG", "RGBA"), ("PNG", "P"), ("GIF", "P"), ("BMP", "L")]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_many_formats_are_read(kind: str, mode: str, channels: int) -> None:
    plain = np.full((5, 4, 3), 204, np.uint8)  # a color of web palettes
    found = images.from_files(files(saved(plain, kind, mode)), (5, 4, channels))
    assert np.abs(found.astype(int) - 204).max() <= 1


def test_sizes_change_as_pillow_changes_them() -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 20, 3), dtype=np.uint8))
    photograph = np.asarray(noise.resize((90, 140), Image.Resampling.BICUBIC))
    for height, width in ((32, 32), (200, 150)):
        expected = np.asarray(Image.fromarray(photograph).resize((width, height), Image.Resampling.BILINEAR))
        (found,) = images.from_files(files(png(photograph)), (height, width, 3))
        off = found.astype(int) - expected
        assert np.abs(off).max() <= 1
        assert abs(off.mean()) < 0.1  # rounded, not cut


def test_sparks_structs_are_blue_green_red() -> None:
    def struct(mode: int, data: np.ndarray) -> tuple[object, ...]:
        return ("file", *data.shape, mode, data.tobytes())

    alpha = np.concatenate([COLORS[..., ::-1], np.full((2, 3, 1), 7, np.uint8)], axis=2)
    gray = np.full((2, 3, 1), 90, np.uint8)
    array = pa.array([struct(16, COLORS[..., ::-1]), struct(24, alpha), struct(0, gray)], STRUCT)
    found = images.from_structs(array, (2, 3, 3))
    assert np.array_equal(found[0], COLORS)
    assert np.array_equal(found[1], COLORS)
    assert (found[2] == 90).all()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (("broken", -1, -1, -1, -1, b""), "expected an image, got one that was not decoded"),
        (("deep", 1, 1, 1, 5, bytes(4)), r"8-bit pixels \(OpenCV modes \[0, 16, 24\]\), got mode 5"),
        (("short", 2, 2, 1, 0, bytes(3)), "expected 4 bytes of pixels, got 3"),
        (None, "expected a value, got null"),
    ],
)
def test_a_struct_without_bytes_of_pixels(row, said: str) -> None:
    with pytest.raises(Unfit, match=said) as caught:
        images.from_structs(pa.array([("good", 1, 1, 1, 0, b"\0"), row], STRUCT), (1, 1, 1))
    assert caught.value.row == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no image", r"expected an image \(JPEG, PNG, GIF or BMP\), got 8 bytes: Unknown image file format"),
        (
            jpeg(COLORS.repeat(20, axis=0))[:300],
            "got 300 bytes: jpeg::Uncompress failed. Invalid JPEG data or crop window.$",
        ),
        (png(COLORS)[:40], "got 40 bytes: Invalid PNG"),
        (b"", "got 0 bytes: Input is empty"),
        (None, "expected a value, got null"),
    ],
    ids=["text", "half a JPEG", "half a PNG", "nothing", "null"],
)
def test_what_is_no_image_is_said_with_its_row(content: bytes | None, said: str) -> None:
    with pytest.raises(Unfit, match=said) as caught:
        images.from_files(files(png(COLORS), content), (2, 3, 3))
    assert caught.value.row == 1


def test_spark_finds_the_rows_that_are_images(spark, tmp_path) -> None:
    from elephas_like.core.types import Slot

    (tmp_path / "a.png").write_bytes(png(COLORS))
    (tmp_path / "b.jpg").write_bytes(jpeg(COLORS)[:100])
    raw = spark.read.format("binaryFile").load(str(tmp_path)).select("path", "content")
    df = raw.union(spark.sql("SELECT 'c', CAST(NULL AS BINARY)")).coalesce(1)
    both = spark.read.format("image").load(str(tmp_path)).select(functions.col("image.origin").alias("path"), "image")
    for table, column, rows in ((df, "content", 3), (both, "image", 2)):
        made = plan(
            table.schema,
            ColumnChoice(column, None, dtypes={column: AS_IMAGES}),
            Slot("x", (4, 6, 3)),
            None,
            floatx="float32",
            classes=None,
        )
        found = table.select("path", valid(made, table.schema).alias("valid")).collect()
        assert len(found) == rows
        assert [row.path[-5:] for row in found if row.valid] == ["a.png"]
        (block,) = Frame(table.filter(valid(made, table.schema)), made).first(60)
        assert block.columns[0].shape == (1, 4, 6, 3)
