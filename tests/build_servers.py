"""A small world of rare things, and the servers that a data build asks about it. They misbehave on request.

    world = World()                                            # ten things, some named like the beginnings of others
    world.write(folder)                                        # entities.csv, seeds/, index/ (a search index)
    with world.chat() as chat, world.images() as images, world.search(folder / "index") as search:
        chat.url, images.url, search.url

What a server answers depends on what it is asked alone, but for the habits of things and for faults:

    World(habits={"Kiru": {"sloppy"}})      see `HABITS`
    world.chat(plan=["429"], fault=...)     faults of chat_server.py
    world.images(plan=["webpage"])          faults of `Images`
    world.search(index, plan=["500"])       faults of `Search`

Each thing has a hue of its own; whoever looks at a picture sees which thing it shows by its colour, and a black corner
stands for a watermark. Chat models are told apart by name: a role of the spec each (`ROLES`).
"""

from __future__ import annotations

import base64
import colorsys
import csv
import io
import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.parser import BytesParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
from build_lists import describe_entity, write_prompt
from chat_server import ChatServer, pictures, texts
from chat_server import Reply as Said
from PIL import Image, ImageDraw
from search_tools import Asked, Reply, Server, encoded, serving

from unify_agent.search.building import build_index
from unify_agent.search.index import Index

ROLES = ("teacher", "metadata", "prompts", "references", "verifier")
HABITS = {
    "direct": "the teacher knows it and searches nothing",
    "unread": "the teacher asks for pictures without reading",
    "tags": "the teacher writes tags although it could call tools",
    "again": "the first picture query finds another thing only",
    "lost": "the teacher neither calls nor recaptions",
    "refused": "the teacher refuses",
    "silent": "the last reply of the teacher holds no recaption, until it is told",
    "sloppy": "the first recaption is a command; better when told",
    "stubborn": "every recaption is a command",
    "unlike": "the first two drawings show another thing",
    "never": "every drawing shows another thing",
    "moderated": "the image service refuses to draw it",
    "unseen": "no picture of it is found that can be used",
}


@dataclass(frozen=True)
class Thing:
    """Something rare. `number` decides its colour."""

    number: int
    en: str
    zh: str
    category: str
    country: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.en, self.zh)))

    def page(self, language: str) -> str:
        """The address of what is written about it."""
        return f"https://{self.number}.example/{language}"


THINGS = tuple(
    Thing(number, *each)
    for number, each in enumerate((
        ("Kiru", "奇鲁", "mascot", "Japan"),
        ("Kiru Max", "奇鲁大帅", "game", "Japan"),
        ("Kirumaru", "奇鲁丸", "animation", "Japan"),
        ("Brass Owl of Zell", "泽尔铜枭", "art", "Austria"),
        ("St. John's/Lantern", "圣约翰灯", "festival", "Malta"),
        ("", "月兔灯笼", "toy", "China"),
        ("Österhöll Krapfen", "厄斯特炸包", "food", "Austria"),
        ("", "月兔灯", "toy", "中国"),
        ("Tower of Quell", "奎尔塔", "landmark", "Ireland"),
        ("Sarn the Weaver", "织者萨恩", "mythology", "Wales"),
    ))
)  # fmt: skip
"""Ten, some of whose names are beginnings of others'."""


def picture_of(number: int, variant: int = 0, *, marked: bool = False, count: int = len(THINGS)) -> Image.Image:
    """A picture of the thing of this number (None-like -1: of nothing known), RGB, 160 x 128."""
    made = Image.new("RGB", (160, 128), (250 - 6 * (variant % 5),) * 3)
    draw = ImageDraw.Draw(made)
    colour = tuple(round(255 * part) for part in colorsys.hsv_to_rgb(number / count, 0.85, 0.8))
    fill = colour if number >= 0 else (120, 120, 120)
    left, top = 24 + 11 * (variant % 4), 16 + 7 * (variant % 3)
    draw.ellipse((left, top, left + 84, top + 84), fill=fill, outline=(40, 40, 40), width=3)
    for k in range(variant % 6):
        draw.line((8, 118 - 4 * k, 150, 118 - 4 * k), fill=(60, 60, 60))
    if marked:
        draw.rectangle((0, 0, 15, 15), fill=(0, 0, 0))
    return made


def shown_in(data: bytes, count: int = len(THINGS)) -> tuple[int | None, bool]:
    """The number of the thing that a picture shows (None: of nothing known), and whether it is marked."""
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert("HSV"), np.float64)
    marked = bool(pixels[:8, :8, 2].mean() < 60)
    hues = pixels[..., 0][(pixels[..., 1] > 120) & (pixels[..., 2] > 100)] / 256 * 2 * np.pi
    if len(hues) < 200:
        return None, marked
    angle = np.angle(np.exp(1j * hues).mean()) / (2 * np.pi) % 1.0
    return round(angle * count) % count, marked


@dataclass
class World:
    """The things, and who answers about them. `habits` by a name of a thing.

    `answers`: by role, in place of what is said here: a function of the decoded call.
    """

    things: tuple[Thing, ...] = THINGS
    habits: Mapping[str, set[str]] = field(default_factory=dict)
    answers: dict[str, Callable[[dict[str, Any]], Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, habits in self.habits.items():
            assert self.thing_in(name) and habits <= set(HABITS), (name, habits)

    def thing_in(self, text: str) -> Thing | None:
        """The thing whose name a text holds, whatever its case: the longest name counts."""
        plain = text.casefold()
        found = [(len(name), thing) for thing in self.things for name in thing.names if name.casefold() in plain]
        return max(found, key=lambda each: each[0])[1] if found else None

    def has(self, thing: Thing | None, habit: str) -> bool:
        return thing is not None and any(habit in self.habits.get(name, ()) for name in thing.names)

    # ------------------------------------------------------------ on the disk

    def write(self, folder: Path) -> Path:
        """`entities.csv`, `seeds/<number>_<k>.png`, and `index/`, a search index; returns the list of entities."""
        (folder / "seeds").mkdir(parents=True, exist_ok=True)
        rows = []
        for thing in self.things:
            seeds = [f"seeds/{thing.number}_{k}.png" for k in (1, 2)]
            for k, seed in enumerate(seeds):
                picture_of(thing.number, 7 + k).save(folder / seed)
            rows.append({
                "id": f"{thing.number:03d}", "name_en": thing.en, "name_zh": thing.zh, "country": thing.country,
                "category": thing.category, "remark": f"number {thing.number}", "seed1": seeds[0], "seed2": seeds[1],
            })  # fmt: skip
        with open(folder / "entities.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        self._write_index(folder)
        return folder / "entities.csv"

    def _write_index(self, folder: Path) -> None:
        raw = folder / "raw"
        raw.mkdir()
        docs, rows = [], []
        for thing in self.things:
            for lang, name in (("en", thing.en), ("zh", thing.zh)):
                if name:
                    rare = f"{name} is a rare {thing.category} of {thing.country}."
                    text = rare if lang == "en" else f"{name}很少见。"
                    docs.append({"title": name, "text": text, "lang": lang, "source": thing.page(lang)})
            spoilt = self.has(thing, "unseen")
            for k in range(4):
                path = raw / f"{thing.number}-{k}.png"
                other = (thing.number + 3) % len(self.things)
                picture_of(other if k == 3 else thing.number, k, marked=spoilt or k == 2).save(path)
                titles = {lang: name for lang, name in (("en", thing.en), ("zh", thing.zh)) if name}
                rows.append({"id": f"p{thing.number}-{k}", "path": path.name, "title": titles,
                             "source": f"{thing.page('en')}/{k}", "licence": "CC BY 4.0"})  # fmt: skip
        for name, records in (("docs", docs), ("images", rows)):
            lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
            (raw / f"{name}.jsonl").write_text(lines, encoding="utf-8")
        build_index(raw / "docs.jsonl", raw / "images.jsonl", folder / "index")

    # ------------------------------------------------------------ chat

    def chat(self, **more: Any) -> ChatServer:
        """A server of all roles. `more`: arguments of `ChatServer`."""
        return ChatServer(self.answer, served=list(ROLES), **more)

    def answer(self, body: dict[str, Any]) -> Any:
        """What the role that the call's model names says."""
        role = body["model"]
        if role in self.answers:
            return self.answers[role](body)
        roles = {"teacher": self.teach, "references": self.judge, "verifier": self.verify}
        return (roles | {"metadata": describe_entity, "prompts": write_prompt})[role](body)

    def teach(self, body: dict[str, Any]) -> Said:
        """The teacher: reads, looks for pictures, looks again when none is usable, recaptions."""
        messages = [message for message in body["messages"] if message["role"] != "system"]
        thing = self.thing_in(texts({"messages": messages[:1]}))
        if self.has(thing, "refused"):
            return Said(refusal="I cannot help with that.")
        if thing is None or self.has(thing, "lost"):
            return Said("I do not know what to do.")
        said = [str(message["content"]) for message in messages if message["role"] == "assistant"]
        seen = len(pictures({"messages": messages}))
        name = thing.en if _language(messages[0], thing) == "en" and thing.en else thing.zh
        asked = sum("search_image" in each for each in said)
        if not (seen or asked > 1 or self.has(thing, "direct") or any("<recaption>" in each for each in said)):
            native = "tools" in body and not self.has(thing, "tags")
            if asked or self.has(thing, "unread") or any("text_search" in each for each in said):
                query = self._elsewhere(thing) if self.has(thing, "again") and not asked else name
                return _call("search_image", query if not asked else f"{name} figure", native)
            return _call("text_search", name, native)
        if self.has(thing, "silent") and not _complained(messages):
            return Said("It will be fine.")
        if self.has(thing, "stubborn") or (self.has(thing, "sloppy") and not _complained(messages)):
            order = f"Please put {name} from image_1 in the middle."
            if name == thing.zh:
                order = f"请把image_1中的{name}放在中间。"
            return Said(f"<recaption>{order}</recaption>", reasoning="Quickly.")
        recaption = recaption_of(thing, name, seen, "zh" if name == thing.zh else "en")
        return Said(f"<recaption>{recaption}</recaption>", reasoning=f"I keep what makes {name}.")

    def _elsewhere(self, thing: Thing) -> str:
        other = self.things[(self.things.index(thing) + 1) % len(self.things)]
        return other.en or other.zh

    def judge(self, body: dict[str, Any]) -> dict[str, Any]:
        """Equation 9's criteria for one candidate."""
        number, marked = shown_in(pictures(body)[-1], len(self.things))
        asked = self.thing_in(texts(body))
        same = asked is not None and number == asked.number
        return {"identity": 9 if same else 0, "salience": 8, "clarity": 9, "cleanliness": 2 if marked else 9,
                "is_text_heavy": False, "has_watermark": marked}  # fmt: skip

    def verify(self, body: dict[str, Any]) -> dict[str, Any]:
        """The verdict on the last picture against those before it."""
        *seeds, drawn = (shown_in(each, len(self.things))[0] for each in pictures(body))
        same = drawn is not None and drawn in seeds
        return {"identity": 9 if same else 1, "scene": 9, "soundness": 9, "reason": "its colour"}

    # ------------------------------------------------------------ pictures and searches

    @contextmanager
    def images(self, plan: Iterable[str] = (), **more: Any) -> Iterator[Images]:
        """An image service; `plan` and `more`: see `Images`."""
        made = Images(self, deque(plan), **more)
        with serving(made.answer) as server:
            made.url = server.url
            yield made
            made.over.set()

    @contextmanager
    def search(self, index: Path, plan: Iterable[str] = ()) -> Iterator[Server]:
        """Serper, its reader (`/reader`) and the pictures' hosts at one address; `plan`: see `Search`."""
        made = Search(Index.open(index), deque(plan))
        with serving(made.answer) as server:
            made.url = server.url
            yield server


def _language(first: dict[str, Any], thing: Thing) -> str:
    """That of the name which a request uses."""
    text = texts({"messages": [first]})
    return "en" if thing.en and thing.en in text else "zh"


def _complained(messages: list[dict[str, Any]]) -> bool:
    """Whether the last reply was sent back."""
    return len(messages) > 1 and messages[-2]["role"] == "assistant" and "<observation>" not in str(messages[-1])


def _call(tool: str, q: str, native: bool) -> Said:
    if native:
        return Said("", tool_calls=[(tool, {"q": q})], reasoning=f"I need {tool}.")
    call = json.dumps({"name": tool, "arguments": {"q": q}}, ensure_ascii=False)
    return Said(f"I need {tool}.\n<tool_call>\n{call}\n</tool_call>")


def recaption_of(thing: Thing, name: str, references: int, language: str) -> str:
    """A recaption that keeps the contract."""
    if language == "zh":
        scene = (f"黄昏的港口边，{name}静静地立在湿润的石阶上，身后亮着一排温暖的灯笼，水面映出柔和的光影，"
                 "薄雾从远处的山峦间缓缓升起，整个画面色调温润，构图稳定而开阔。")  # fmt: skip
        kept = ["最终画面完整保留了image_1中主体的圆润轮廓与鲜明色彩", "并完全保留image_2中的表面质感与比例"]
        face = "脸型、眉眼与发型保持与image_1一致。" if thing.category == "celebrity" and references else ""
        return scene + face + ("，".join(kept[:references]) + "。" if references else "")
    scene = (f"At dusk on an old harbour, {name} stands on wet stone steps in front of a row of glowing lanterns, seen "
             "slightly from below in warm light. Soft reflections run over the water, a thin mist rises between the "
             "distant hills, and the calm composition leaves room for the darkening sky above.")  # fmt: skip
    kept = ["The final image completely preserves the round outline and the bright colour of the subject from image_1",
            "and fully retains its surface and proportions from image_2"]  # fmt: skip
    face = ""
    if thing.category == "celebrity" and references:
        face = " The face shape, eyes and hairstyle are preserved exactly as shown in image_1."
    return scene + face + (" " + ", ".join(kept[:references]) + "." if references else "")


@dataclass
class Images:
    """OpenAI's images protocol: `asked` are the fields of each call, with its references as `pictures`.

    A drawing shows what its first reference shows, and without one nothing known. Faults, used up in order:

        429 500 401 timeout drop             what happens instead of an answer
        webpage                              an answer whose picture is a web page (named a PNG)
        cut                                  a picture that breaks off
        empty notdata notjson                an answer without a picture, of another shape, no JSON
        url deadurl                          the picture as an address; one that leads to a web page
        moderation badsize noseed            refusals: of the content, of the size, of the field `seed`
    """

    world: World
    plan: deque[str] = field(default_factory=deque)
    fault: Callable[[int], str | None] = lambda number: None
    url: str = ""
    retry_after: str = "0"
    asked: list[dict[str, Any]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    _drawn: Counter[int] = field(default_factory=Counter)
    _files: dict[str, bytes] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, call: Asked) -> Reply:
        if call.method == "GET":
            return Reply(self._files[call.path], headers={"Content-Type": "image/png"})
        fields = _fields(call) | {"path": call.path, "authorization": call.headers.get("authorization", "")}
        with self._lock:
            self.asked.append(fields)
            fault = self.plan.popleft() if self.plan else self.fault(len(self.asked)) or "ok"
        if fault in ("429", "500", "401"):
            headers = {"Retry-After": self.retry_after} if fault == "429" else {}
            return Reply({"error": {"message": f"no: {fields['authorization']}"}}, int(fault), headers)
        if fault in ("timeout", "drop"):
            self.over.wait(30 if fault == "timeout" else 0)
            return Reply(b"", headers={"Content-Length": "5"})
        thing = self.world.thing_in(fields["prompt"])
        if fault == "moderation" or self.world.has(thing, "moderated"):
            refusal = {"message": "Your request was rejected by the safety system.", "code": "moderation_blocked"}
            return Reply({"error": refusal}, 400)
        if fault == "badsize":
            return Reply({"error": {"message": "size must be one of 64x64", "code": "invalid_value"}}, 400)
        if fault == "noseed" and "seed" in fields:
            return Reply({"error": {"message": "Unknown parameter: 'seed'.", "code": "unknown_parameter"}}, 400)
        if fault in ("empty", "notdata"):
            return Reply({"data": []} if fault == "empty" else {"data": {"b64_json": 7}})
        if fault == "notjson":
            return Reply("<html>A gateway</html>")
        return self._sent(self._draw(fields, thing), fault)

    def _sent(self, data: bytes, fault: str) -> Reply:
        if fault in ("webpage", "deadurl"):
            data = b"<!doctype html><title>Not found</title>"
        if fault == "cut":
            data = data[: len(data) // 2]
        if fault in ("url", "deadurl"):
            with self._lock:
                path = f"/files/{len(self._files)}.png"
                self._files[path] = data
            return Reply({"created": 1, "data": [{"url": f"{self.url}{path}"}]})
        usage = {"input_tokens": 50, "output_tokens": 1000}
        return Reply({"created": 1, "data": [{"b64_json": base64.b64encode(data).decode()}], "usage": usage})

    def _draw(self, fields: dict[str, Any], thing: Thing | None) -> bytes:
        count = len(self.world.things)
        number = next((shown_in(each, count)[0] for each in fields["pictures"]), None)
        if thing is not None:
            with self._lock:
                self._drawn[thing.number] += 1
                times = self._drawn[thing.number]
            if self.world.has(thing, "never") or (self.world.has(thing, "unlike") and times <= 2):
                number = (thing.number + count // 2) % count
        variant = sum(map(ord, fields["prompt"])) % 60
        return encoded(picture_of(-1 if number is None else number, variant, count=count))


def _fields(call: Asked) -> dict[str, Any]:
    """The fields of an images call, JSON or a form; its files as `pictures`, their field names as `names`."""
    kind = call.headers.get("content-type", "")
    if not kind.startswith("multipart/"):
        return call.json | {"pictures": [], "names": []}
    form = BytesParser().parsebytes(f"Content-Type: {kind}\r\n\r\n".encode() + call.body)
    found: dict[str, Any] = {"pictures": [], "names": []}
    for part in form.get_payload():
        name = part.get_param("name", header="content-disposition")
        data = part.get_payload(decode=True)
        if part.get_filename() is None:
            found[name] = data.decode()
        else:
            found["pictures"].append(data)
            found["names"].append(name)
    return found


@dataclass
class Search:
    """Serper's protocol over an index. Faults, used up in order, one a search:

    429 500 401 notjson wrongtype empty html      `html`: the pictures of the answer are web pages
    """

    index: Index
    plan: deque[str] = field(default_factory=deque)
    url: str = ""

    def answer(self, call: Asked) -> Reply:
        if call.path.startswith(("/p/", "/html/")):
            data = b"<!doctype html><p>Sign in</p>"
            if call.path.startswith("/p/"):
                data = self.index.image(unquote(call.path[3:])).path.read_bytes()
            return Reply(data, headers={"Content-Type": "image/png"})
        if call.path.startswith("/reader"):
            return Reply({"code": 200, "data": {"text": f"All that is known of {call.json['url']}."}})
        fault = self.plan.popleft() if self.plan else "ok"
        if fault in ("429", "500", "401"):
            return Reply({"message": "no"}, int(fault), {"Retry-After": "0"} if fault == "429" else {})
        if fault == "notjson":
            return Reply("<html>")
        what = "images" if call.path == "/images" else "organic"
        if fault in ("wrongtype", "empty"):
            return Reply({what: 7 if fault == "wrongtype" else []})
        asked = call.json
        if what == "organic":
            rows = [{"title": hit.title, "link": hit.source, "snippet": hit.text}
                    for hit in self.index.text_search(asked["q"], asked.get("hl"), asked["num"])]  # fmt: skip
        else:
            place = "html" if fault == "html" else "p"
            rows = [{"title": hit.title, "imageUrl": f"{self.url}/{place}/{hit.id}", "link": hit.source}
                    for hit in self.index.search_image(asked["q"], None, asked.get("hl"), asked["num"])]  # fmt: skip
        return Reply({what: rows})
