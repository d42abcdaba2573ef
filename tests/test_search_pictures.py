"""Pictures from outside: recognised by decoding, made anew, told apart by how they look, fetched together."""

import io
import struct
import threading
import zlib

import pytest
from PIL import Image
from search_tools import Reply, drawing, encoded, service, serving

from unify_agent.interleave.segments import Unusable
from unify_agent.search import pictures
from unify_agent.search.fetch import Limits
from unify_agent.search.pictures import MAX_SIDE, Candidate, Pictures, alike, clean, look_of


def opened(cleaned):
    return Image.open(io.BytesIO(cleaned.content))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_the_usual_formats_are_taken(kind):
    found = clean(encoded(drawing(), kind), "x")
    assert (found.width, found.height) == (96, 80) == opened(found).size
    assert opened(found).format == ("JPEG" if kind == "JPEG" else "PNG") and found.suffix in (".png", ".jpg")


SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><image href="file:///etc/passwd"/></svg>'
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nquit\n"


@pytest.mark.parametrize("content", [b"", b"<html>no</html>", SVG, EPS, b"\x89PNG\r\n\x1a\n" + b"\0" * 50,
                                     encoded(drawing())[:400], b"%PDF-1.4", b"P6 9 9 255 " + b"\0" * 243])  # fmt: skip
def test_what_does_not_decode_is_no_picture_whatever_it_is_called(content):
    with pytest.raises(Unusable, match=r"not a picture: owl\.png"):
        clean(content, "owl.png")


def test_a_picture_that_claims_to_be_gigantic_is_refused_unread():
    small = encoded(drawing())
    for width, height in ((20_000, 20_000), (9_100, 9_100), (60_000, 60_000)):
        header = b"IHDR" + struct.pack(">II", width, height) + small[24:29]
        with pytest.raises(Unusable, match="picture too large"):
            clean(small[:12] + header + struct.pack(">I", zlib.crc32(header)) + small[33:], "bomb.png")


def test_metadata_is_dropped_and_the_picture_stands_upright():
    picture, exif = drawing(size=(96, 48)), Image.Exif()
    exif[0x0112] = 6  # stored on its side
    exif[0x010E] = "taken at home"
    exif.get_ifd(0x8825)[2] = (52.0, 31.0, 0.0)
    found = clean(encoded(picture, "JPEG", exif=exif, comment=b"secret place"), "x")
    again = opened(found)
    assert (found.width, found.height) == (48, 96)
    assert not again.getexif() and b"secret place" not in found.content and b"at home" not in found.content
    text = Image.new("RGB", (8, 8))
    text.info["comment"] = "hidden"
    assert set(opened(clean(encoded(text, "GIF"), "x")).info) <= {"dpi"}


def test_large_pictures_are_made_smaller():
    found = clean(encoded(drawing(size=(3000, 1500)), "JPEG"), "x")
    assert (found.width, found.height) == (MAX_SIDE, MAX_SIDE // 2)


@pytest.mark.parametrize("seed", range(8))
def test_the_same_picture_in_another_size_or_encoding_looks_alike(seed):
    picture = drawing(seed, (320, 260))
    look = look_of(picture)
    for other in (
        picture.resize((160, 130), Image.Resampling.LANCZOS),
        Image.open(io.BytesIO(encoded(picture, "JPEG", quality=40))).convert("RGB"),
        picture.resize((640, 520), Image.Resampling.BICUBIC),
    ):
        assert alike(look, look_of(other))


@pytest.mark.parametrize("seed", range(8))
def test_another_picture_or_another_colour_does_not(seed):
    picture = drawing(seed, (320, 260))
    red, green, blue = picture.split()
    for other in (
        drawing(seed + 100, (320, 260)),
        Image.merge("RGB", (blue, red, green)),
        picture.crop((0, 0, 160, 260)),
        picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    ):
        assert not alike(look_of(picture), look_of(other))
    assert not alike(look_of(Image.new("RGB", (9, 9), "white")), look_of(Image.new("RGB", (9, 9), "red")))


def gather(folder, answer, names, num, **more):
    notes = []
    with serving(answer) as server:
        asked = service("picture", limits=Limits(content=200_000), tries=2)
        candidates = [
            Candidate(f"{server.url}/{name}", name, f"https://site.example/{name}", "CC0", "Ann") for name in names
        ]
        found = Pictures(folder, asked, on_note=notes.append, **more).gather(candidates, num)
    return found, notes, server


def test_candidates_are_taken_in_order_with_where_they_came_from(tmp_path):
    found, notes, server = gather(tmp_path, lambda asked: Reply(encoded(drawing(int(asked.path[1:])))), "123", 2)
    assert [hit.title for hit in found] == ["1", "2"] and notes == []
    assert sorted(server.paths()) == ["/1", "/2"]  # no more than are wanted
    first = found[0]
    assert first.source == "https://site.example/1" and first.url == f"{server.url}/1"
    assert (first.licence, first.author, first.width, first.height) == ("CC0", "Ann", 96, 80)
    assert first.open().size == (96, 80) and first.path.parent == tmp_path.resolve()
    assert server.asked[0].headers["accept"] == "image/*"


def test_what_lies_about_its_type_is_left_out_and_the_next_takes_its_place(tmp_path):
    replies = {
        "/html.jpg": Reply("<html>please log in</html>", headers={"Content-Type": "image/jpeg"}),
        "/gone.png": Reply("", 404),
        "/huge.png": Reply(b"\0" * 300_000, headers={"Content-Type": "image/png"}),
        "/inside.png": Reply("", 302, {"Location": "http://127.0.0.2/admin.png"}),
        "/picture.html": Reply(encoded(drawing(5)), headers={"Content-Type": "text/html"}),
    }
    found, notes, _ = gather(tmp_path, lambda asked: replies[asked.path], [path[1:] for path in replies], 1)
    assert [hit.title for hit in found] == ["picture.html"]
    assert [
        "not a picture" in notes[0],
        "HTTP 404" in notes[1],
        "more than" in notes[2],
        "not a public" in notes[3],
    ] == [True] * 4


def test_of_pictures_that_look_alike_the_largest_is_kept_at_the_first_place(tmp_path):
    content = {
        "/small": encoded(drawing(1).resize((48, 40), Image.Resampling.LANCZOS)),
        "/other": encoded(drawing(2)),
        "/big": encoded(drawing(1), "JPEG", quality=80),
        "/third": encoded(drawing(3)),
    }
    found, _, _ = gather(tmp_path, lambda asked: Reply(content[asked.path]), [name[1:] for name in content], 3)
    assert [hit.title for hit in found] == ["big", "other", "third"]


@pytest.mark.parametrize(("order", "told"), [("sbo", "sbo"), ("bso", "bo"), ("obs", "ob")])
def test_a_picture_is_told_when_it_comes_unless_one_as_large_looks_like_it(tmp_path, order, told):
    content = {"s": drawing(1).resize((48, 40)), "b": drawing(1), "o": drawing(2)}
    with serving(lambda asked: Reply(encoded(content[asked.path[1:]]))) as server:
        early = []
        one = Pictures(tmp_path, service("picture"), threads=1)
        found = one.gather([Candidate(f"{server.url}/{name}", name, "") for name in order], 3, early.append)
    assert "".join(hit.title for hit in early) == told and all(hit.open() for hit in early)
    assert sorted(hit.title for hit in found) == ["b", "o"] and {hit.id for hit in found} <= {hit.id for hit in early}


def test_candidates_are_fetched_at_the_same_time(tmp_path):
    together = threading.Barrier(4, timeout=20)

    def answer(asked):
        together.wait()  # breaks unless four are under way at once
        return Reply(encoded(drawing(int(asked.path[1:]))))

    found, notes, _ = gather(tmp_path, answer, "1234", 4, threads=4)
    assert len(found) == 4 and notes == []


def test_a_temporary_folder_does_not_grow_for_ever(monkeypatch):
    monkeypatch.setattr(pictures, "TEMPORARY", 3)
    with serving(lambda asked: Reply(encoded(drawing(int(asked.path[1:]))))) as server:
        kept = Pictures(None, service("picture"))
        found = kept.gather([Candidate(f"{server.url}/{k}", "", "") for k in range(5)], 5)
        assert [hit.path.is_file() for hit in found] == [False, False, True, True, True]


def test_the_same_picture_is_one_file(tmp_path):
    for _ in range(2):
        gather(tmp_path, lambda asked: Reply(encoded(drawing(1))), "1", 1)
    assert len(list(tmp_path.iterdir())) == 1
