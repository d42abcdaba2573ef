"""The entities of the embedded world: about 1,600 OpenMoji drawings with names, aliases, families and splits.

Everything here is a pure function of the installed packages and `SEED`. A smaller world takes a subset, whose
entities keep their aliases, families and splits.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from data.grouping import Groups
from data.openmoji.categories import category_of, family_keys
from data.openmoji.pictures import Drawings, available, is_empty, main_colours, thumbnail
from unify_agent.errors import UserError
from unify_agent.files import digest, read_json

SEED = 20260328
LANGUAGES = ("en", "zh")
SPLITS = ("train", "val", "test")
SHARES = {"train": 0.8, "val": 0.1, "test": 0.1}
DUPLICATE = 0.012
"""Pictures closer than this are one picture; only the first is kept. RMS over 16 x 16 RGB thumbnails."""
SMALLEST = 40
"""Entities of the smallest world."""
NEAR = 0.105
"""Pictures closer than this belong to one family."""

COMMON: dict[str, tuple[str, str]] = {
    "2600": ("sun", "太阳"), "2601": ("cloud", "白云"), "2764": ("red heart", "红心"), "2B50": ("star", "星星"),
    "1F34E": ("red apple", "红苹果"), "1F34C": ("banana", "香蕉"), "1F333": ("tree", "大树"),
    "1F335": ("cactus", "仙人掌"), "1F3E0": ("house", "房子"), "1F511": ("key", "钥匙"),
    "1F388": ("balloon", "气球"), "2602": ("umbrella", "雨伞"), "1F41F": ("fish", "小鱼"),
    "1F344": ("mushroom", "蘑菇"), "1F308": ("rainbow", "彩虹"), "1F451": ("crown", "皇冠"),
    "1F514": ("bell", "铃铛"), "1F319": ("moon", "月亮"), "1F697": ("car", "汽车"), "1F337": ("tulip", "郁金香"),
    "1F955": ("carrot", "胡萝卜"), "26BD": ("soccer ball", "足球"), "26F5": ("sailboat", "帆船"),
    "1F34B": ("lemon", "柠檬"),
}  # fmt: skip
"""Things that the model is supposed to know by heart: hexcode -> (English, Chinese)."""

_KEPT_JOINED = re.compile(
    r"^(1F9D1-200D-(?!1F9D1|1F9D2|.*27A1|1F91D)|1F426-|1F408-|26D3-|1F344-|1F34B-|1F43B-|1F415-|2764-"
    r"|1F3F4-200D-2620|1F3F3-FE0F-200D|1F62E-|1F635-|1F636-)"
)
"""Joined sequences that are things of their own: professions, a polar bear, a pirate flag, ..."""


@dataclass(frozen=True)
class Entity:
    """One drawing that has a name. `id` is OpenMoji's hexcode."""

    id: str
    name: dict[str, str]
    alias: dict[str, str]
    category: str
    family: str
    split: str
    common: bool
    colours: tuple[str, ...]


@dataclass(frozen=True)
class _Named:
    code: str
    en: str
    zh: str
    aliases: tuple[str, ...]


def english_name(raw: str) -> str | None:
    """A usable English name: at most four words of plain letters, or None."""
    plain = unicodedata.normalize("NFKD", raw.strip(":").replace("_", " ").replace("’", "'"))
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    plain = re.sub(r" \((blood type|Burma)\)", "", plain)
    return plain if re.fullmatch(r"[A-Za-z][A-Za-z' -]+", plain) and len(plain.split()) <= 4 else None


def chinese_name(raw: str) -> str | None:
    """A usable Chinese name: at most eight characters, nothing but Chinese, or None."""
    plain = raw.strip(":")
    return plain if re.fullmatch(r"[\u4e00-\u9fff]{1,8}", plain) else None


def _named_drawings() -> list[_Named]:
    import emoji

    emoji.config.load_language("zh")
    drawn, found = available(), {}
    for sequence, record in emoji.EMOJI_DATA.items():
        if record["status"] != 2 or any(0x1F3FB <= ord(c) <= 0x1F3FF for c in sequence):
            continue
        code = "-".join(f"{ord(c):04X}" for c in sequence)
        code = code if code in drawn else code.replace("-FE0F", "")
        if code not in drawn or ("200D" in code and not _KEPT_JOINED.match(code)):
            continue
        en, zh = english_name(record["en"]), chinese_name(record.get("zh", ""))
        if code in COMMON:
            en, zh = COMMON[code]
        elif re.match(r"1F1[EF][0-9A-F]-", code) and en and zh:
            en, zh = f"{en} flag", f"{zh}旗"
        if en and zh and len(en.split()) <= 4:
            aliases = tuple(a.strip(":").replace("_", " ") for a in record.get("alias", ()))
            found[code] = _Named(code, en, zh, aliases)
    seen_en, seen_zh, result = set(), {"小号", "大号"}, []  # 小号 is the trumpet, and our word for small
    for code in sorted(found, key=lambda c: (c not in COMMON, c)):
        item = found[code]
        if item.en.lower() not in seen_en and item.zh not in seen_zh:
            seen_en.add(item.en.lower())
            seen_zh.add(item.zh)
            result.append(item)
    return sorted(result, key=lambda item: item.code)


def candidates() -> list[str]:
    """Hexcodes of all drawings that have usable names."""
    return [item.code for item in _named_drawings()]


# ---------------------------------------------------------------- aliases

_ONSETS = "b br c ch d dr f fl g gl h j k l m n p pr qu r s sh st t th tr v w y z".split()
_VOWELS = "aeiou"
_CODAS = ("", "", "", "l", "n", "r", "s", "m", "x", "nd")
_CHARACTERS = (
    "阿艾安巴贝比波布达德迪多顿尔法菲弗戈格哈赫胡吉加杰卡凯科克库拉莱兰雷里利林隆卢鲁罗洛马麦曼梅蒙"
    "米莫姆纳尼诺帕佩皮普奇乔萨塞森沙史斯苏塔泰坦特廷图托瓦威维温沃西希夏谢雅亚扬耶伊因尤赞泽扎朱兹"
)


def keyed_random(*key: str) -> np.random.Generator:
    """Random numbers that depend on `SEED` and `key` alone."""
    return np.random.Generator(np.random.Philox(int(digest(str(SEED), *key)[:16], 16)))


def coin_english(rng: np.random.Generator) -> str:
    """A pronounceable invented word of two or three syllables, capitalised."""
    syllables = []
    for _ in range(2 + int(rng.random() < 0.4)):
        syllables.append(_ONSETS[rng.integers(len(_ONSETS))] + _VOWELS[rng.integers(len(_VOWELS))])
    return ("".join(syllables) + _CODAS[rng.integers(len(_CODAS))]).capitalize()


def coin_chinese(rng: np.random.Generator) -> str:
    """An invented name of two to four characters that transliterations use."""
    return "".join(_CHARACTERS[i] for i in rng.integers(len(_CHARACTERS), size=int(rng.integers(2, 5))))


def _real_alias(item: _Named, taken: set[str]) -> str | None:
    own = set(re.findall(r"[a-z]+", item.en.lower()))
    for alias in item.aliases:
        words = alias.lower().split()
        usable = re.fullmatch(r"[a-z]{3,}( [a-z]{3,}){0,2}", alias.lower())
        related = any(w[:4] in o or o[:4] in w for w in words for o in own)
        fresh = not {form for w in (*words, alias.lower()) for form in (w, w + "s", w.removesuffix("s"))} & taken
        if usable and not related and fresh:
            return alias.lower()
    return None


def _clashes(coined: str, taken: set[str], language: str) -> bool:
    """Whether a name is taken; in Chinese, where words are not set apart, also when one holds another."""
    if language == "en":
        return bool({coined, coined + "s", coined.removesuffix("s")} & taken)
    return any(coined in other or (len(other) > 1 and other in coined) for other in taken)


def _aliases(items: Sequence[_Named]) -> dict[str, dict[str, str]]:
    names = {item.en.lower() for item in items}
    words = {w for name in names for w in re.findall(r"[a-z]+", name)} | {zh for item in items for zh in (item.zh,)}
    taken, result = names | words, {}
    for item in items:
        chosen = {"en": _real_alias(item, taken) or "", "zh": ""}
        for language, coin in (("en", coin_english), ("zh", coin_chinese)):
            rng = keyed_random("alias", item.code, language)
            while not chosen[language] or _clashes(chosen[language].lower(), taken, language):
                chosen[language] = coin(rng)
            taken |= {chosen[language].lower(), *chosen[language].lower().split()}
        result[item.code] = chosen
    return result


# ---------------------------------------------------------------- families and splits


def picture_distances(drawings: Drawings, codes: Sequence[str]) -> np.ndarray:
    """RMS distance between thumbnails, float32 [N, N]."""
    flat = np.stack([thumbnail(drawings[code]) for code in codes]).reshape(len(codes), -1)
    square = (flat**2).sum(1)
    gram = np.maximum(square[:, None] + square[None] - 2 * flat @ flat.T, 0) / flat.shape[1]
    return np.sqrt(gram)


def contains_name(longer: str, name: str, language: str) -> bool:
    """Whether `name` occurs in `longer` as whole words (English) or as characters (Chinese, two or more)."""
    return bool(_occurrences(longer, name)) if language == "en" or len(name) > 1 else False


def _families(items: Sequence[_Named], distances: np.ndarray) -> dict[str, str]:
    union = Groups(item.code for item in items)
    by_key: dict[str, str] = {}
    for item in items:
        for key in family_keys(item.code, item.en, category_of(item.code)):
            union.join(item.code, by_key.setdefault(key, item.code))
    for row, column in zip(*np.nonzero(np.triu(distances < NEAR, 1)), strict=True):
        union.join(items[row].code, items[column].code)
    english, chinese = ("\n".join(getattr(item, key) for item in items) for key in ("en", "zh"))
    for item in items:
        for text, name in ((english, item.en), (chinese, item.zh)):
            for start in _occurrences(text, name):
                union.join(item.code, items[text.count("\n", 0, start)].code)
    return {item.code: union.find(item.code) for item in items}


def _occurrences(text: str, name: str) -> list[int]:
    """Where a name occurs, by the rule of `contains_name`."""
    if not name.isascii():
        return [found.start() for found in re.finditer(name, text)] if len(name) > 1 else []
    starts, low, name = [], text.lower(), name.lower()
    at = low.find(name)
    while at >= 0:
        if re.compile(rf"(?<![a-z]){re.escape(name)}s?(?![a-z])").match(low, at):
            starts.append(at)
        at = low.find(name, at + 1)
    return starts


def _splits(items: Sequence[_Named], families: dict[str, str], forced: set[str]) -> dict[str, str]:
    members: dict[str, list[str]] = {}
    for item in items:
        members.setdefault(families[item.code], []).append(item.code)
    order = sorted(members, key=lambda family: digest(str(SEED), "split", family))
    large = {f for f in order if len(members[f]) > 0.02 * len(items) or forced & set(members[f])}
    result = dict.fromkeys(sorted(large), "train")
    flags = {item.code for item in items if category_of(item.code) == "flag"}
    for is_flag in (True, False):  # each with its own shares: flags would fill the held-out splits otherwise
        kind = [f for f in order if (f in flags) == is_flag]
        total, filled = sum(len(members[f]) for f in kind), dict.fromkeys(SPLITS, 0)
        filled["train"] = sum(len(members[f]) for f in kind if f in large)
        for family in kind:
            if family not in large:
                size = len(members[family])
                result[family] = max(SPLITS, key=lambda split: SHARES[split] - (filled[split] + size) / total)
                filled[result[family]] += size
    return result


def make_entities(drawings: Drawings, limit: int | None = None, forced_train: Iterable[str] = ()) -> list[Entity]:
    """All entities, or a subset of `limit` with the same shares of splits; sorted by id.

    `drawings` must hold every one of `candidates()`. `forced_train`: hexcodes whose families may not be held out.
    """
    items = [item for item in _named_drawings() if not is_empty(drawings[item.code])]
    distances = picture_distances(drawings, [item.code for item in items])
    keep, dropped = [], set()
    for row, item in enumerate(items):
        twins = [c for c in np.flatnonzero(distances[row] < DUPLICATE) if c != row and c not in dropped]
        if any(c < row or items[c].code in COMMON for c in twins) and item.code not in COMMON:
            dropped.add(row)
        else:
            keep.append(row)
    items, distances = [items[row] for row in keep], distances[np.ix_(keep, keep)]
    aliases, families = _aliases(items), _families(items, distances)
    splits = _splits(items, families, set(COMMON) | set(forced_train) | set(_in_templates(items)))
    result = [
        Entity(
            id=item.code, name={"en": item.en, "zh": item.zh}, alias=aliases[item.code],
            category=category_of(item.code), family=families[item.code], split=splits[families[item.code]],
            common=item.code in COMMON, colours=main_colours(drawings[item.code]),
        )
        for item in items
    ]  # fmt: skip
    return result if limit is None else _subset(result, limit)


def common_text(language: str) -> str:
    """Every word of our own sentences: requests, pages, recaptions, thoughts, copying tasks, prompts."""
    from data.openmoji.copying import copying_text
    from data.openmoji.teacher import thought_text
    from data.openmoji.words import fixed_text
    from unify_agent.agent.wording import load_prompts

    phrases = load_prompts("compact").phrases(language).model_dump()
    said = [*phrases.pop("verdicts").values(), *phrases.values()]
    return "\n".join((fixed_text(language), thought_text(language), copying_text(language), *said))


def _in_templates(items: Sequence[_Named]) -> list[str]:
    """Entities whose name is a word of our own sentences: everybody has read those."""
    texts = {language: common_text(language) for language in LANGUAGES}
    return [
        item.code
        for item in items
        if contains_name(texts["en"], item.en, "en") or contains_name(texts["zh"], item.zh, "zh")
    ]


def _subset(entities: list[Entity], limit: int) -> list[Entity]:
    order = sorted(entities, key=lambda e: (not e.common, digest(str(SEED), "subset", e.id)))
    room = {split: round(limit * SHARES[split]) for split in ("val", "test")}
    room["train"] = limit - sum(room.values())
    chosen = []
    for entity in order:
        if room[entity.split] > 0:
            room[entity.split] -= 1
            chosen.append(entity)
    return sorted(chosen, key=lambda e: e.id)


def to_json(entities: Sequence[Entity]) -> str:
    """One JSON list, one entity a line."""
    return "[\n" + ",\n".join(json.dumps(asdict(e), ensure_ascii=False) for e in entities) + "\n]\n"


def load_entities(world: Path | str, split: str | None = None) -> list[Entity]:
    """The entities of a world folder, of one split when it is given. Raises `UserError` where there is none."""
    path = Path(world) / "entities.json"
    if not path.is_file():
        raise UserError(f"{path}: no world here; build one: python -m data world openmoji --out {world}")
    entities = [Entity(**{**record, "colours": tuple(record["colours"])}) for record in read_json(path)]
    return [e for e in entities if split in (None, e.split)]


def common_entities(entities: Sequence[Entity]) -> list[Entity]:
    """Those that the model knows by heart."""
    return [e for e in entities if e.common]
