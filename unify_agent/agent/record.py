"""The record of an episode, in the layout that training reads (facts/agent.md section 1):

    <out>/<category>/intermediate/<id>/image_1.png, image_2.png     the references, best first
    <out>/<category>/intermediate/<id>/tmp/candidate_<n>.png        every candidate that was judged
    <out>/<category>/images/<id>_0.png                              the picture
    <out>/<category>/pages/<id>.html                                the story, on request
    <out>/<category>/traj/<id>_trajectory.json                      what was said and found

The trajectory is written last, so an item whose trajectory is there is finished. Each file appears whole or not at all.
"""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from unify_agent.agent.episode import STOPS, Episode, Exchange
from unify_agent.agent.judge import Judged
from unify_agent.agent.story import story
from unify_agent.datasets.trajectory import Reference, Trajectory, Turn
from unify_agent.errors import UserError
from unify_agent.files import read_json, whole_folder, write_bytes
from unify_agent.search.base import ImageHit

_SAFE = re.compile(r"[^\W_][\w.-]*")


def is_safe_name(text: str) -> bool:
    """Whether an id (or category) can name files: letters of any script, digits, '.', '_', '-', the first a letter or
    digit; at most 150 bytes."""
    return bool(_SAFE.fullmatch(text)) and len(text.encode()) <= 150


def png(picture: Image.Image | np.ndarray, metadata: dict[str, Any] | None = None) -> bytes:
    """A picture as PNG, with text chunks of metadata, which `png_metadata` reads back."""
    info = PngInfo()
    for key, value in (metadata or {}).items():
        plain = isinstance(value, str) and _parsed(value) == value
        info.add_itxt(key, value if plain else json.dumps(value, ensure_ascii=False))
    if isinstance(picture, np.ndarray):
        picture = Image.fromarray(picture)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", pnginfo=info)
    return buffer.getvalue()


def png_metadata(path: Path | str) -> dict[str, Any]:
    """What `png` wrote beside the pixels: prompt, seed, size, the sampler's settings, dtype, weights and so on.

    Raises UserError for a file that is no PNG picture.
    """
    try:
        with Image.open(path, formats=["PNG"]) as picture:
            picture.load()
            return {key: _parsed(value) for key, value in picture.text.items()}  # type: ignore[attr-defined]
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{path}: not a PNG picture ({error})") from None


def _parsed(text: str) -> Any:
    """The JSON value of a text chunk; what is no JSON is the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def to_trajectory(episode: Episode, policy: str) -> Trajectory:
    """The episode as a trajectory: the release's keys, and ours (ids, policy, stop, references)."""
    turns, number = [], 0
    for index, turn in enumerate(episode.turns):
        extra: dict[str, Any] = {}
        if turn.judged:
            extra["image_judge_results"] = [
                _judged(each, number + position) for position, each in enumerate(turn.judged, 1)
            ]
            number += len(turn.judged)
        if turn.read:
            extra["text_results"] = [
                {"title": hit.title, "source": hit.source} | ({"licence": hit.licence} if hit.licence else {})
                for hit in turn.read
            ]
        for key, value in (("tool_calls", turn.calls), ("tool_error", turn.tool_error), ("mended", turn.mended)):
            if value:
                extra[key] = list(value) if isinstance(value, tuple) else value
        if turn.truncated:
            extra["truncated"] = True
        if turn.discarded:
            extra["discarded"] = [
                {"response_text": each.text, "reason": each.reason}
                | ({} if each.ids is None else {"response_ids": list(each.ids)})
                for each in turn.discarded
            ]
        turns.append(_turn(index, turn) | {"stage": turn.stage} | extra)
    if turns and episode.recaption:
        turns[-1]["recaption"] = episode.recaption
    return Trajectory(
        ip_index=episode.id,
        ip_name=episode.name,
        image_prompt=episode.request,
        language=episode.language,
        country=episode.country,
        turns=[Turn.model_validate(turn) for turn in turns],
        full_response=[Turn.model_validate(_turn(index, turn)) for index, turn in enumerate(episode.turns)],
        recaption=episode.recaption,
        generated_image=None if episode.picture is None else f"images/{episode.id}_0.png",
        references=[
            Reference.model_validate({
                "file": f"intermediate/{episode.id}/image_{k}.png",
                "title": each.hit.title,
                "source": each.hit.source,
                "licence": each.hit.licence,
                "id": each.hit.id,
                **_more(each.hit),
            })
            for k, each in enumerate(episode.references, 1)
        ],
        policy=policy,
        stop=episode.stop,
        error=episode.error or None,
        options=episode.settings,
    )


def _turn(index: int, turn: Exchange) -> dict[str, Any]:
    record: dict[str, Any] = {
        "turn": index,
        "input": turn.input,
        "response_text": turn.reply,
        "tool_output": turn.tool_output,
    }
    if turn.ids is not None:
        record |= {"response_ids": list(turn.ids), "tokenizer": turn.tokenizer}
    return record


def _judged(each: Judged, number: int) -> dict[str, Any]:
    verdict = each.verdict
    return {
        "path": f"candidate_{number}.png",
        "score": round(verdict.score, 2),
        "reason": verdict.reason,
        "is_text_heavy": verdict.is_text_heavy,
        "has_watermark": verdict.has_watermark,
        "title": each.hit.title,
        "id": each.hit.id,
        "source": each.hit.source,
        "licence": each.hit.licence,
        **_more(each.hit),
    }


def _more(hit: ImageHit) -> dict[str, str]:
    """Where a picture's file came from, and whom to name for it, where that is known."""
    return {key: value for key, value in (("url", hit.url), ("author", hit.author)) if value}


class Recorder:
    """Writes episodes below `out`.

    `candidates=False` leaves the judged candidates out. `pages`: a page that tells the whole story, for each item.
    `durable=False` writes without flushing each file to the disk: for a folder that takes its name only when all of it
    is written.
    """

    def __init__(
        self, out: Path, policy: str, candidates: bool = True, durable: bool = True, pages: bool = False
    ) -> None:
        self.out, self.policy, self.candidates = Path(out), policy, candidates
        self.durable, self.pages = durable, pages

    def path(self, category: str, item_id: str) -> Path:
        """Where an item's trajectory lies."""
        return self.out / category / "traj" / f"{item_id}_trajectory.json"

    def finished(
        self, category: str, item_id: str, request: str, settings: dict[str, Any]
    ) -> dict[str, Any] | None:
        """The record of an item of this id, request and `settings` whose picture is there; None when there is none.

        A picture that was drawn without evidence, because a search did not answer, does not count. Raises UserError
        when the id was used for another request: nothing is overwritten in silence.
        """
        path = self.path(category, item_id)
        if not path.is_file():
            return None
        record = read_json(path, "trajectory")
        if record.get("image_prompt") != request:
            raise UserError(f"{path}: holds another request under this id; choose another --out or id")
        made = record.get("options", {})
        if record.get("stop") == "search_failed" or any(made.get(key) != value for key, value in settings.items()):
            return None
        picture = record.get("generated_image")
        return record if picture and (path.parents[1] / picture).is_file() else None

    def failed(self, category: str, item_id: str) -> bool:
        """Whether the record of an item is that of a failure, or of a picture without evidence for want of an answer.

        Raises UserError for a record that does not parse.
        """
        path = self.path(category, item_id)
        record = read_json(path, "trajectory") if path.is_file() else {}
        return STOPS.get(str(record.get("stop"))) == "failed" or record.get("stop") == "search_failed"

    def write(self, episode: Episode) -> Path:
        """Writes one episode; returns the path of its trajectory."""
        folder = self.out / episode.category
        for part in ("traj", "intermediate", "images"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        place, picture = folder / "intermediate" / episode.id, folder / "images" / f"{episode.id}_0.png"
        for old in (self.path(episode.category, episode.id), picture):
            old.unlink(missing_ok=True)
        if self.durable:
            with whole_folder(place) as work:
                self._pictures(episode, work)
        else:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            self._pictures(episode, place)
        trajectory = to_trajectory(episode, self.policy)
        if episode.picture is not None:
            data = png(episode.picture, {"prompt": episode.request, **episode.settings})
            self._put(picture, data)
        if self.pages:
            self._put(folder / "pages" / f"{episode.id}.html", story(trajectory).encode())
        path = self.path(episode.category, episode.id)
        self._put(path, trajectory.to_json().encode())
        return path

    def _pictures(self, episode: Episode, place: Path) -> None:
        for k, each in enumerate(episode.references, 1):
            assert each.picture is not None, "a usable candidate has a picture"
            (place / f"image_{k}.png").write_bytes(png(each.picture))
        judged = self._all_judged(episode) if self.candidates else []
        for number, each in enumerate(judged, 1):
            if each.picture is not None:
                (place / "tmp").mkdir(exist_ok=True)
                (place / "tmp" / f"candidate_{number}.png").write_bytes(png(each.picture))

    @staticmethod
    def _all_judged(episode: Episode) -> Iterable[Judged]:
        return [each for turn in episode.turns for each in turn.judged]

    def _put(self, path: Path, data: bytes) -> None:
        if self.durable:
            write_bytes(path, data)
        else:
            path.write_bytes(data)
