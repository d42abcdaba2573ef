"""Pictures from outside: fetched, decoded, made anew, compared, kept under the hash of their content.

A picture is what decodes as one, whatever its address, its type header or its name say. What is kept is never the file
that came but our own encoding of its pixels: upright, without metadata, at most `MAX_SIDE` pixels along a side, JPEG
when it came as JPEG, else PNG.

Two pictures look alike when their proportions agree within 5 %, at most 10 of 128 bits of their difference hashes
differ (is a cell of a 9x8 and an 8x9 grey thumbnail clearly brighter than its neighbour?), and a 4x4 thumbnail in
colour differs by at most 16 of 255 anywhere: the same drawing in another colour is another picture. Of pictures that
look alike the one with the most pixels is kept, at the place of the first.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from unify_agent.files import digest, write_bytes
from unify_agent.interleave.segments import Unusable
from unify_agent.interleave.transforms import MAX_FILE_PIXELS, to_rgb
from unify_agent.search.base import ImageHit, OnHit, SearchError
from unify_agent.search.fetch import public_url
from unify_agent.search.service import Service

Image.init()
FORMATS = tuple(name for name in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF") if name in Image.OPEN)
"""What is tried to decode: no format that runs a program or reads another file."""
MAX_SIDE = 2048
TEMPORARY = 4096  # files of a temporary folder
LARGE = 8_000_000  # pixels: larger ones are decoded one after another, which bounds the memory of many threads
ALIKE_BITS, ALIKE_COLOUR, ALIKE_ASPECT = 10, 16, 0.05
STEP = 3  # of 255: what a lossy encoding does to a flat ground is less

_one_large = threading.Lock()


@dataclass(frozen=True)
class Cleaned:
    """A picture made anew: the file's content, its suffix, its size in pixels, how it looks."""

    content: bytes
    suffix: str
    width: int
    height: int
    look: np.ndarray

    @property
    def name(self) -> str:
        """The file name under which it is kept."""
        return f"{digest(self.content)}{self.suffix}"


def clean(content: bytes, name: str) -> Cleaned:
    """Decodes and encodes anew. Raises `Unusable` as `plain_picture`."""
    plain, lossy = plain_picture(content, name)
    buffer = io.BytesIO()
    if lossy:
        plain.save(buffer, "JPEG", quality=95, subsampling=0)
    else:
        plain.save(buffer, "PNG")
    return Cleaned(buffer.getvalue(), ".jpg" if lossy else ".png", *plain.size, look_of(plain))


def plain_picture(content: bytes, name: str) -> tuple[Image.Image, bool]:
    """What a file from outside shows: RGB, upright, at most `MAX_SIDE` along a side; and whether it came as JPEG.

    Raises `Unusable`: not a picture, too large, does not decode.
    """
    try:
        picture = Image.open(io.BytesIO(content), formats=FORMATS)
        pixels = picture.width * picture.height
        if pixels > MAX_FILE_PIXELS:
            raise Unusable("picture too large", f"{name} ({picture.width}x{picture.height})")
        with _one_large if pixels > LARGE else contextlib.nullcontext():
            return _made_anew(picture)
    except Unusable:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise Unusable("picture too large", name) from None
    except Exception:  # Pillow's readers raise whatever broken content leads them to
        raise Unusable("not a picture", name) from None


def _made_anew(picture: Image.Image) -> tuple[Image.Image, bool]:
    lossy = picture.format in ("JPEG", "MPO")
    if lossy:
        picture.draft(None, (2 * MAX_SIDE, 2 * MAX_SIDE))  # type: ignore[arg-type]
    upright = to_rgb(ImageOps.exif_transpose(picture))
    upright.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
    return Image.fromarray(np.asarray(upright)), lossy  # pixels only: nothing that the file said beside them


def look_of(picture: Image.Image) -> np.ndarray:
    """How an RGB picture looks, int16 [177]: aspect in per mille, 128 bits, 48 colour values (see the module)."""

    def grey(size: tuple[int, int]) -> np.ndarray:
        return np.asarray(picture.convert("L").resize(size, Image.Resampling.BOX), np.int16)

    bits = (np.diff(grey((9, 8)), axis=1) > STEP).ravel(), (np.diff(grey((8, 9)), axis=0) > STEP).ravel()
    colours = np.asarray(picture.resize((4, 4), Image.Resampling.BOX), np.int16).ravel()
    aspect = min(1000 * picture.width // picture.height, 32_000)
    return np.concatenate([[aspect], *bits, colours]).astype(np.int16)


def alike(one: np.ndarray, two: np.ndarray) -> bool:
    """Whether two looks are those of the same picture, perhaps of another size or encoding."""
    if abs(int(one[0]) - int(two[0])) > ALIKE_ASPECT * max(one[0], two[0], 1):
        return False
    bits = int((one[1:129] != two[1:129]).sum())
    return bits <= ALIKE_BITS and int(np.abs(one[129:] - two[129:]).max()) <= ALIKE_COLOUR


@dataclass(frozen=True)
class Candidate:
    """A picture that a service names: where its file is and what is known of it."""

    url: str
    title: str
    source: str
    licence: str = ""
    author: str = ""


class Pictures:
    """Fetches candidates, several at once, and keeps them in `folder`.

    Without a folder they lie in a temporary one, which holds the newest `TEMPORARY` files until the program ends.
    `on_note` is told, in one line, of each candidate that came to nothing.
    """

    def __init__(
        self,
        folder: Path | None,
        service: Service,
        threads: int = 8,
        seconds: float = 90.0,
        on_note: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._temporary = None
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="unify-agent-pictures-")
            folder = Path(self._temporary.name)
        self._folder = folder.resolve()
        self._service, self._seconds, self._tell = service, seconds, on_note
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="pictures")
        self._lock, self._names = threading.Lock(), OrderedDict[str, None]()

    def gather(self, candidates: Sequence[Candidate], num: int, on_hit: OnHit | None = None) -> list[ImageHit]:
        """The first `num` candidates, in their order, that are pictures and don't look like one before.

        `on_hit` is told of each as it comes, unless it looks like one that came before and is no larger.
        """
        end = time.monotonic() + self._seconds
        told: list[Cleaned] = []

        def fetched(candidate: Candidate) -> Cleaned | str:
            found = self._fetch(candidate)
            if on_hit is not None and not isinstance(found, str) and self._is_news(found, told):
                on_hit(self._hit(candidate, found))
            return found

        kept: list[tuple[Candidate, Cleaned]] = []
        at = 0
        while at < len(candidates) and len(kept) < num and time.monotonic() < end:
            wave = candidates[at : at + num - len(kept)]
            at += len(wave)
            for candidate, found in zip(wave, self._threads.map(fetched, wave), strict=True):
                if isinstance(found, str):
                    self._tell(found)
                    continue
                same = next((k for k, (_, each) in enumerate(kept) if alike(each.look, found.look)), None)
                if same is None:
                    kept.append((candidate, found))
                elif found.width * found.height > kept[same][1].width * kept[same][1].height:
                    kept[same] = candidate, found
        return [self._hit(*each) for each in kept]

    def _fetch(self, candidate: Candidate) -> Cleaned | str:
        try:
            answer = self._service.fetch("GET", candidate.url, {"accept": "image/*"})
            return clean(answer.content, public_url(candidate.url))
        except SearchError as error:
            return str(error)
        except Unusable as fault:
            return f"{self._service.name}: {fault}"

    def _is_news(self, found: Cleaned, told: list[Cleaned]) -> bool:
        """Whether none of the pictures that were told shows this one at its size or larger; then it is one of them."""
        with self._lock:
            pixels = found.width * found.height
            if any(each.width * each.height >= pixels and alike(each.look, found.look) for each in told):
                return False
            told.append(found)
            return True

    def _hit(self, candidate: Candidate, found: Cleaned) -> ImageHit:
        path = self._folder / found.name
        with self._lock:
            if not path.is_file():
                write_bytes(path, found.content)
            self._names[path.name] = None
            self._names.move_to_end(path.name)
            while self._temporary is not None and len(self._names) > TEMPORARY:
                (self._folder / self._names.popitem(last=False)[0]).unlink(missing_ok=True)
        return ImageHit(
            path.stem[:16], candidate.title, path, found.width, found.height, public_url(candidate.source),
            candidate.licence, public_url(candidate.url), candidate.author,
        )  # fmt: skip
