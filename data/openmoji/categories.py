"""Categories and families by rule: code points for what a thing is, names for what is nearly the same thing."""

from __future__ import annotations

import re

CATEGORIES = {
    "face": ("face", "表情"), "person": ("person", "人物"), "body": ("body part", "肢体"),
    "animal": ("animal", "动物"), "plant": ("plant", "植物"), "food": ("food", "食物"),
    "drink": ("table item", "餐饮"), "place": ("place", "场所"), "transport": ("vehicle", "交通"),
    "sky": ("sky sign", "天象"), "sport": ("pastime", "娱乐"), "clothing": ("garment", "服饰"),
    "music": ("music item", "音乐"), "office": ("office item", "文具"), "tool": ("tool", "器具"),
    "home": ("household item", "家居"), "device": ("device", "设备"), "symbol": ("symbol", "符号"),
    "shape": ("shape", "图形"), "flag": ("flag", "旗帜"), "time": ("timepiece", "钟表"),
}  # fmt: skip
"""Key -> how a description calls it, in English and Chinese."""

# First match wins; ranges of the first code point that is not a variation selector, inclusive.
_RANGES: tuple[tuple[str, str], ...] = (
    ("flag", "1F1E6-1F1FF 1F3C1 1F3F3-1F3F4 1F38C 1F6A9"),
    ("time", "1F550-1F567 231A-231B 23F0-23F3 1F570"),
    ("sky", "1F300-1F302 1F308 1F30A-1F32C 2600-2604 2614 26C4-26C8 2744 26A1 1F525 1F4A7 1FA90 1F7F0 2B50 2728 2747"),
    ("face", "1F600-1F640 1F641-1F644 1F479-1F480 1F4A9 1F910-1F917 1F920-1F925 1F927-1F92F 1F970-1F97A 1F9D0 "
             "1FAE0-1FAE5 1FAE8-1FAEA 2639-263A 2620 1F63A"),
    ("shape", "1F532-1F53D 1F7E0-1F7EB 25AA-25AB 25FB-25FE 2B1B-2B1C 26AA-26AB 2B55 1F4A0 1F518 2660-2666 1F499-1F49C "
              "1F5A4 1F90D-1F90E 1F9E1 1FA75-1FA77 2764 1F493-1F498 1F49D-1F49F 2763"),
    ("body", "1F440-1F450 1F4AA 1F590-1F596 1F64C 1F64F 1F90C 1F90F 1F918-1F91F 1F932 1F9B4-1F9B7 1F9BB 1F9BE-1F9BF "
             "1F9E0 1FAC0-1FAC1 1FAC6 1FAF0-1FAF8 270A-270D 261D 1F463 1FAE6 1F48B 1F933 1F485"),
    ("person", "1F385 1F3C2-1F3C4 1F3C7 1F3CA-1F3CC 1F464-1F478 1F47B-1F47F 1F481-1F483 1F486-1F487 1F48F 1F491 "
               "1F574-1F575 1F57A 1F645-1F647 1F64B 1F64D-1F64E 1F6A3 1F6B4-1F6B6 1F6C0 1F6CC 1F926 1F930-1F931 "
               "1F934-1F93E 1F977 1F9B8-1F9B9 1F9CC-1F9DF 1FAC2-1FAC5 26F7 26F9 1F5E3 1F3CB"),
    ("animal", "1F400-1F43F 1F648-1F64A 1F980-1F9AE 1F577-1F578 1FAB0-1FAB3 1FAB6 1FAB8-1FABA 1FABC-1FABD 1FABF "
               "1FACD-1FACF 1FAC8"),
    ("plant", "1F331-1F344 1F490 1F4AE 1F3F5 1F940 1FAB4-1FAB5 1FAB7 1FABB 1FABE 2618 1F38B 1F38D 1F384"),
    ("drink", "1F375-1F37D 1F37E 1F942-1F944 1F95B 1F962 1F964 1F9C3 1F9C9-1F9CB 1FAD6-1FAD7 1FAD9 2615 1F52A 1F3FA"),
    ("food", "1F32D-1F330 1F345-1F374 1F37F 1F382 1F950-1F96F 1F9C0-1F9C8 1FAD0-1FADC"),
    ("music", "1F399-1F39B 1F3A4 1F3A7 1F3B5-1F3BC 1F4EF 1F941 1FA87-1FA8A 1FA95 1FA97-1FA98"),
    ("place", "1F303-1F307 1F309 1F3A0-1F3A2 1F3AA 1F3D4-1F3DF 1F3E0-1F3F0 1F492 1F54B-1F54D 1F5FB-1F5FF 1F6D5-1F6D6 "
              "1F5FA 26E9-26EA 26F0 26F2 26FA 1F5FE 26FD 2668 1F6DD"),
    ("transport", "1F680-1F6A8 1F6B2 1F6E3-1F6EC 1F6F0-1F6FC 2693 26F4-26F5 2708 1F3CD-1F3CE 1F6DE-1F6DF 1F68F "
                  "1F9BC-1F9BD 1FA82 1F6D1"),
    ("sport", "1F3A3 1F3A8-1F3A9 1F3AB-1F3B4 1F3BD-1F3C0 1F3C5-1F3C6 1F3C8-1F3C9 1F3CF-1F3D3 1F3F8-1F3F9 1F380-1F38A "
              "1F38E-1F392 1F396-1F397 1F39E-1F39F 1F93F 1F945-1F94F 1F9E7-1F9E9 1F9F8 1FA80-1FA81 1FA83-1FA86 "
              "1FAA9 265F 26BD-26BE 26F3 26F8 1F004 1F0CF 1F579 1F52E 1F3AF"),
    ("clothing", "1F393 1F451-1F462 1F484 1F48D-1F48E 1F576 1F97B-1F97F 1F9BA 1F9E2-1F9E6 1F3A9 1FA70-1FA74 1FA96 "
                 "1F302 26D1 1FAAD-1FAAE 1FAAF 1F6CD"),
    ("device", "1F3A5 1F4BB 1F4BD-1F4C0 1F4DE-1F4E1 1F4F1-1F4F4 1F4F6-1F4FD 1F50B-1F50C 1F5A5-1F5B2 260E 2328 1F526 "
               "1F4A1 1FAAB 1F6F0 1F916 1F507-1F50A 1F4E2-1F4E3"),
    ("office", "1F4B0-1F4B9 1F4BC 1F4C1-1F4DD 1F4E4-1F4F0 1F516 1F587-1F58D 1F5C2-1F5C4 1F5D1-1F5D3 1F5DE 2702 2709 "
               "270F 2712 1F48C 1F5BC 1F5F3 1FA99 1F9FE 1FAAA 1F3F7"),
    ("tool", "1F488-1F48A 1F4A3 1F50D-1F50E 1F50F-1F513 1F511 1F517 1F527-1F52F 1F5DC-1F5DD 1F5E1 1F6E0-1F6E2 "
             "1F9EA-1F9F2 1F9F7 1FA78-1FA7C 1FA8F 1FA93 1FA9A-1FA9D 1FAA0-1FAA4 2692 2694-2697 2699 "
             "26CF 26D3 1F9AF 1F321 1FA84"),
    ("home", "1F37C 1F4BA 1F514-1F515 1F56F 1F6AA 1F6AC 1F6BD 1F6BF 1F6C1 1F6CB 1F6CE-1F6CF 1F6D2 1F9F3-1F9F6 "
             "1F9F9-1F9FD 1F9FF 1FA8E 1FA91-1FA92 1FA94 1FA9E-1FA9F 1FAA5-1FAA8 1FAAC 26B0-26B1 1F573 1F4FF 1F9E8"),
)  # fmt: skip


def _parsed() -> list[tuple[int, int, str]]:
    result = []
    for category, text in _RANGES:
        for part in text.split():
            low, _, high = part.partition("-")
            result.append((int(low, 16), int(high or low, 16), category))
    return result


_TABLE = _parsed()
_PEOPLE_PARTS = ("1F9D1-", "1F468-", "1F469-")


def category_of(hexcode: str) -> str:
    """A key of `CATEGORIES`."""
    if hexcode.startswith(_PEOPLE_PARTS):
        return "person"
    first = int(hexcode.split("-")[0], 16)
    for low, high, category in _TABLE:
        if low <= first <= high:
            return category
    return "symbol"


def family_keys(hexcode: str, name: str, category: str) -> list[str]:
    """Things that share a key are one family: one base drawing with another expression, hour, colour, sign."""
    words = name.split()
    keys = []
    if category in ("face", "person", "time", "body") and not (category == "face" and name in _ODD_FACES):
        base = "cat face" if 0x1F638 <= int(hexcode.split("-")[0], 16) <= 0x1F640 else category
        keys.append(f"base {base}" if category != "body" else "base hand")
    if re.search(r"button|keycap|arrow|sign$|^no |symbol$", name) or "Japanese" in words:
        keys.append("squared")
    if "moon" in words or "globe" in words:
        keys.append(f"group {'moon' if 'moon' in words else 'globe'}")
    if category == "flag":
        return keys + (["waving flag"] if not 0x1F1E6 <= int(hexcode.split("-")[0], 16) <= 0x1F1FF else [])
    if category == "shape":
        keys.append("shape")
    if name in _ZODIAC:
        keys.append("squared")
    head = words[-1].lower()
    if len(words) > 1 or len(head) > 2:
        keys.append(f"head {head.rstrip('s')}")
    return keys


_ZODIAC = set(
    "Aries Taurus Gemini Cancer Leo Virgo Libra Scorpio Sagittarius Capricorn Aquarius Pisces Ophiuchus".split()
)
_ODD_FACES = {"ghost", "alien", "robot", "skull", "pile of poo", "ogre", "goblin", "alien monster", "jack-o-lantern",
              "skull and crossbones"}  # fmt: skip
