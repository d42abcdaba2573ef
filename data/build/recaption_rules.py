"""What a grounded recaption has to be (paper, appendix E.5), checked by code.

    names its references     image_1 and image_2, those that exist, each of them, and by no other name
    keeps                    towards its end, for each reference, what of it is preserved; of a person also the face
    has a scene              and before that says what is to be seen
    speaks one language      that of the prompt; only names of the prompt may stand in another
    describes                the finished picture, and gives no orders
    is bare                  no tags, no talk about itself, of a reasonable length

The rules are narrow on purpose: what a good recaption may well say ("Set in a valley", "the general" (将军), "Preserve
the exact face of ...") is not taken for a fault. `faults` names what is wrong; the words for the teacher are in
words/recaption.yaml under the same names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")
"""Those of the agent's prompts, and so of its recaptions."""
LENGTHS = {"en": (40, 400), "zh": (60, 900)}
"""Least and most: words in English, characters in Chinese."""
SCENE = {"en": 12, "zh": 20}
"""What the scene has at least, in the same units."""
TAIL = 2
"""Sentences that may follow the last one about a reference."""
PERSONS = ("celebrity",)
"""Categories whose references show a person that can be recognised."""


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong: a key of the recaption's words, and the place."""

    kind: str
    detail: str = ""


NAME = re.compile(r"\bimage_(\d{1,9})(?!\d)", re.ASCII)
_NAME_LIKE = re.compile(
    r"(?<![A-Za-z])(?:images?|imgs?|pictures?|pics?|photos?)[\s_#-]*[1-4]\b(?!\s*(?:c?m|met|feet|foot|inch|x|by|year|%))",
    re.I,
)
_VAGUE = {
    "en": re.compile(
        r"\b(?:first|second|1st|2nd|former|latter|reference|source|input|given|provided|supplied|uploaded|attached)\s+"
        r"(?:images?|pictures?|photos?|photographs?|references?)(?![_\w])"
        r"|\b(?:image|picture|photo)\s+(?:one|two)\b(?!\s+\w+s\b)|\bthe\s+references?\b(?=\s*(?:[.,;:!?]|$|(?:shows?|is|are|was|has|have|and)\b))",
        re.I,
    ),
    "zh": re.compile(
        r"第[一二两三123]\s*[张幅个]\s*(?:参考)?(?:图|照片|相片)|参考(?:图|照片)|(?<![插地版])图\s*[一二12](?=[中里内的所与和、，。）])"
        r"|(?:上传|提供|给定|给出)的?(?:那张|这张|两张)?(?:图片|照片|图像)|原图"
    ),
}
_SENTENCES = re.compile(r"(?<=[.!?])[\"'”’)]*\s+|(?<=[。！？；])[”’）]*|\n+")
_KEEPS = {
    "en": re.compile(
        r"\b(?:preserv(?:e|es|ed|ing)|preservation|retain(?:s|ed|ing)?|retention|maintain(?:s|ed|ing)?|conserv(?:e|es|ed)|"
        r"(?:keeps?|keeping)(?=\s+(?:the|its|his|her|their|all|every|each|both|exactly|true|faithful|intact|unchanged))|kept|"
        r"inherit(?:s|ed)?|carri(?:es|ed) over|carry(?:ing)? over|reproduc(?:e|es|ed|ing)|replicat(?:e|es|ed|ing)|"
        r"faithful(?:ly)?|true to|unchanged|unaltered|intact|"
        r"(?:exactly (?:that|those) of|the same as in)(?=\s+image_\d)|"
        r"(?:identical to|consistent with|match(?:es|ed|ing)?)(?=.*image_\d)|"
        r"(?:stays?|remains?)\s+(?:exactly )?as (?:it is |they are |shown |seen )?in|"
        r"taken (?:over )?(?:directly |unchanged )?from)\b",
        re.I | re.S,
    ),
    "zh": re.compile(
        r"保留|保持(?!平衡|沉默|微笑|站|坐|警惕|距离|安静|清醒|姿势)|维持(?!平衡|秩序|姿势)|延续|沿用|忠实|还原|再现|复现|原样|不变|"
        r"一致|相同|遵循|取自|(?:别|毫)无(?:二致|改变|改动|变化)"
    ),
}
_NOT_ONLY = r"(?!\s+(?:only|merely|just|simply)\b)"
_KEEPS_NOT = {
    "en": re.compile(
        rf"\b(?:(?:not|cannot|\w+n['’]t){_NOT_ONLY}|never|no longer|without|hardly)\s+(?:\w+\s+){{0,3}}?"
        r"(?:preserv|retain|maintain|keep|kept|carr|reproduc|replicat|faithful|match|identical|consistent|taken)"
        r"|\b(?:preserv\w*|retain\w*|keep\w*|kept|maintain\w*)\s+(?:nothing|none|neither)\b"
        r"|\b(?:nothing|none|neither)\b[^.]{0,40}\b(?:is|are)\s+(?:preserved|kept|retained|maintained)\b",
        re.I,
    ),
    "zh": re.compile(
        r"(?:不再?|没有|未|无须|无需|不必|不用|不会|并未)(?:完全|完整|刻意)?(?:保留|保持|维持|延续|沿用|还原|遵循)|不一致|不相同"
    ),
}
_FACE = {
    "en": re.compile(
        r"\b(?:faces?|facial|eyes?|eyebrows?|brows?|nose|jaw(?:line)?|cheek\w*|hairstyle|hair|beard|moustache|mustache|"
        r"complexion|skin tone)\b",
        re.I,
    ),
    "zh": re.compile(r"脸|面部|五官|面容|面庞|眉|眼|鼻|发型|头发|胡须|胡子|肤色|颧|下巴"),
}
_START = r"(?:^|(?<=[.!?:;\n])\s*)[\"'“‘(]*"
_OBJECT = r"(?=\s+(?:the|a|an|this|that|these|those|his|her|its|their|him|it|them|some|all|more|both|each|image_\d)\b)"
_ORDERS = {
    "en": re.compile(
        # at the start of a sentence: verbs that are no nouns, then those that may be and so need an object
        rf"{_START}(?:(?:now|then|also|next|first|finally),?\s+)?"
        r"(?:(?:create|generate|ensure|insert|replace|remove|depict|add|put|avoid|include|incorporate|imagine|modify|"
        r"adjust|delete|apply|arrange|illustrate|convert|integrate|compose|emphasi[sz]e|capture|"
        r"focus on|render in|erase|remember to|try to|"
        r"use(?!\s+of\b)|do not|don['’]t|make sure|let['’]s)\b|"
        r"(?:draw|paint|show|place|render|make|turn|take|move|change|give|have|let|position|set|swap|edit|blend|feature|"
        rf"combine|merge|transform|design|produce|extend|crop|fill|seat|transfer|copy|showcase){_OBJECT})"
        # anywhere: requests, duties, a second verb of an order
        r"|(?:^|[.!?,;:—-]\s*)please\b|\bplease\s+(?:make|put|draw|add|keep|ensure|create|generate|show|place|note|use)\b"
        r"|\b(?:make sure|be sure to|you (?:should|must|need to)|"
        r"you (?:could|can|may|might) (?:also )?(?:add|put|place|draw))\b"
        r"|\b(?:should|must|needs? to|has to|have to|is to|are to)\s+(?:then\s+)?be\s+(?:placed|added|drawn|shown|put|"
        r"removed|replaced|changed|generated|inserted|rendered|depicted|swapped|edited|positioned)\b"
        rf"|(?:[,;]\s+(?:then\s+)?|\band\s+then\s+)(?:add|put|place|insert|remove|replace|draw){_OBJECT}",
        re.I,
    ),
    "zh": re.compile(
        r"(?:^|(?<=[。！？；：，、\n“]))\s*(?:然后|接着|最后|再|首先|同时)?(?:"
        r"请(?!柬|帖|客|愿|教|安|缨)|帮我|给我|务必|确保|切勿|不要|避免|注意(?!力|到)|你(?:应该|应当|需要|要|必须|可以)|"
        r"(?:生成|绘制|画|创作|创建|制作|设计)一(?:张|幅|个|副|位|只|名)|"
        r"(?:添加|加入|替换|删除|删去|移除|去掉|去除|改成|改为|调整|修改)"
        r"(?=image_|图|画面|背景|颜色|光线|构图|人物|主体|一|其|他|她|它|这|该|更多))"
        r"|(?:然后|接着|最后|首先)(?:把|将)"
        r"|(?:^|(?<=[。！？；，、\n]))\s*(?:记得(?:要|把|将|给|虚化|添加|保留|使用)|"
        r"(?:另外|此外)，?[给把将][^，。！？；]{1,12}?(?:加上|添上|换成|改成))"
        r"|(?:^|(?<=[。！？；\n]))\s*(?:把|将(?!军|来|领|士|帅|至|近|相|门|要))[^，。！？；]{1,40}?"
        r"(?:放|置|移|换|改|变|画|加|融合|结合|合成|合并|调整|绘|设置|安排|摆)"
        r"|(?:^|(?<=[。！？；\n]))\s*让(?:他|她|它|人物|角色|主体|image_\d)"
        r"|(?:应|应该|应当|必须|需要?|须)被?(?:放置?|添加|画|绘制|移除|替换|改)(?:在|于|为|成|到|上)"
    ),
}
_HOLLOW = {
    "en": re.compile(
        r"\b(?:the|a|an|of|and|in|on|with|is|are|at|to|from|by|as|its|this|that|final|image|picture|result|completely|fully|"
        r"exactly|strictly|everything|all|both|also|it|them|shown|seen)\b",
        re.I,
    ),
    "zh": re.compile(r"最终|画面|图像|成品|完整|完全|严格|一切|全部|所有|内容|特征|以及|[中里内的地并和与了对也在其]"),
}
"""Words that say nothing about what is kept."""
_TALK = {
    "en": re.compile(
        r"\A\W*(?:sure|certainly|of course|okay|ok|here is|here's|here are|below is|i (?:will|have|would|can|am)\b|"
        r"(?:the )?(?:final |detailed )?(?:recaption|caption|prompt|description)\s*(?:is|:|—))|\bas an ai\b"
        r"|\bas you (?:asked|requested|wished)\b|"
        r"\b(?:this|the) recaption\b",
        re.I,
    ),
    "zh": re.compile(
        r"\A\W*(?:好的|当然|没问题|以下是|下面是|这是一[段个]|(?:最终)?(?:图像|画面)?(?:描述|提示词)\s*[:：])|作为(?:一个)?AI|我?[为给替]您(?:描述|生成|创作|改写)"
    ),
}
_TAGS = re.compile(r"<\s*/?\s*[A-Za-z_|][^<>\n]{0,80}>|```|^#{1,6}\s|\*\*|\[/?(?:SYSTEM|INST)\b|<\||\{\"", re.M)
_HAN = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")
_LATIN = re.compile(r"[A-Za-z\u00c0-\u024f][A-Za-z\u00c0-\u024f'’.-]*")
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_TERM = re.compile(r"[A-Z]{1,4}|[A-Za-z]|mm|cm|km|logo|Logo")
"""Latin letters that Chinese writes as its own: abbreviations, units."""
_COMMON = frozenset(
    "the a an of and in on with is are at to from by as its his her their it this that over under into for while "
    "behind beside between near against through across along above below which who where".split()
)
_OTHER_LETTERS = re.compile(r"[\u0370-\u1fff\u3040-\u30ff\uac00-\ud7af]")


def faults(
    text: str, language: Language, references: int, *, names: Sequence[str] = (), prompt: str = "", category: str = ""
) -> list[Fault]:
    """What is wrong with a recaption of `prompt` with so many references; empty when nothing is.

    `names`: those of the entity in any language, which may stand in a recaption of any other.
    """
    found: list[Fault] = []
    text = text.strip()
    if tag := _TAGS.search(text):
        found.append(Fault("tags", tag[0].strip()))
    if talk := _TALK[language].search(text):
        found.append(Fault("talk", talk[0].strip()))
    amount, (least, most) = amount_of(text, language), LENGTHS[language]
    if not least <= amount <= most:
        found.append(Fault("short" if amount < least else "long", str(amount)))
    found += _of_names(text, language, references)
    found += _of_language(text, language, (*names, prompt))
    if order := _ORDERS[language].search(text):
        found.append(Fault("order", _around(text, order)))
    found += _of_keeping(text, language, references, category)
    return found


def amount_of(text: str, language: Language) -> int:
    """The length of a text: words in English, characters of any script and words of Latin letters in Chinese."""
    bare = NAME.sub(" ", text)
    return len(_WORD.findall(bare)) if language == "en" else len(_HAN.findall(bare)) + len(_LATIN.findall(bare))


def _around(text: str, found: re.Match[str]) -> str:
    return text[found.start() : found.end() + 20].strip(" ,.;:，。；：\n")


def _of_names(text: str, language: Language, references: int) -> list[Fault]:
    found = []
    named = {int(number) for number in NAME.findall(text)}
    wanted = set(range(1, references + 1))
    if missing := wanted - named:
        found.append(Fault("unnamed", ", ".join(f"image_{k}" for k in sorted(missing))))
    if unknown := named - wanted:
        found.append(Fault("unknown", ", ".join(f"image_{k}" for k in sorted(unknown))))
    rest = NAME.sub(" ", text)
    wrong = _NAME_LIKE.search(rest) or (_VAGUE[language].search(rest) if references else None)
    if wrong:
        found.append(Fault("misnamed", wrong[0].strip()))
    return found


def _of_language(text: str, language: Language, given: Sequence[str]) -> list[Fault]:
    """Words of another language, but for those that the prompt or a name holds."""
    bare = NAME.sub(" ", text)
    for each in sorted(filter(None, given), key=len, reverse=True):
        bare = bare.replace(each, " ")
    known = {word.casefold() for each in given for word in _LATIN.findall(each)}
    if language == "zh":
        foreign = [
            word
            for word in _LATIN.findall(bare)
            if word.casefold().strip(".'’-") not in known and not _TERM.fullmatch(word.strip(".'’-"))
        ]
        if other := _OTHER_LETTERS.search(bare):
            foreign.append(other[0])
        return [Fault("language", " ".join(foreign[:5]))] if foreign else []
    signs = {sign for each in given for sign in each}
    if strange := [sign for sign in bare if (_HAN.match(sign) or _OTHER_LETTERS.match(sign)) and sign not in signs]:
        return [Fault("language", "".join(strange[:10]))]
    words = [word.casefold() for word in _LATIN.findall(bare)]
    if len(words) >= 20 and sum(word in _COMMON for word in words) < 0.15 * len(words):
        return [Fault("language", " ".join(words[:5]))]
    return []


def _of_keeping(text: str, language: Language, references: int, category: str) -> list[Fault]:
    """Faults of the two parts: what is kept of each reference, and the scene."""
    sentences = [each for each in _SENTENCES.split(text) if each and each.strip()]
    kept = [_keeps(each, language) for each in sentences]
    keeping = [each for each, keeps in zip(sentences, kept, strict=True) if keeps]
    found = []
    if lost := sorted(set(range(1, references + 1)) - {int(k) for each in keeping for k in NAME.findall(each)}):
        found.append(Fault("unkept", ", ".join(f"image_{k}" for k in lost)))
    elif references and not any(kept[-TAIL - 1 :]):
        found.append(Fault("kept_early"))
    elif references and category in PERSONS and not any(map(_FACE[language].search, keeping)):
        found.append(Fault("faceless"))
    scene = [_before_keeping(each, language) if keeps else each for each, keeps in zip(sentences, kept, strict=True)]
    if sum(amount_of(each, language) for each in scene) < SCENE[language]:
        found.append(Fault("sceneless"))
    return found


def _keeps(sentence: str, language: Language) -> bool:
    """Whether a sentence says what is kept of a reference: a name, a verb that keeps, and something that is kept."""
    if not NAME.search(sentence) or not _KEEPS[language].search(sentence) or _KEEPS_NOT[language].search(sentence):
        return False
    bare = _KEEPS[language].sub(" ", NAME.sub(" ", sentence))
    if language == "zh":
        return len(_HAN.findall(_HOLLOW["zh"].sub("", bare))) >= 2
    return len(_WORD.findall(_HOLLOW["en"].sub(" ", bare))) >= 2


def _before_keeping(sentence: str, language: Language) -> str:
    """The clauses of a sentence that come before the one that keeps."""
    at = _KEEPS[language].search(sentence)
    clauses = re.split(r"[,，;；]", sentence[: at.start()] if at else "")
    return ", ".join(clauses[:-1])
