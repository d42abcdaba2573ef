"""The embedded world's tokenizer: byte-level BPE in Qwen2's files, 2,048 tokens, trained on training entities only.

A tiny model copies names well only when a name is always cut in the same way. So

* words of our own sentences are whole tokens, with or without the space before them (`ignore_merges`);
* everything else is cut into pieces of at most four letters by merges that never touch a space or a quote:
  `kiwi` is the same pieces after a space, after `"` and at the start of a line;
* a Chinese character is one token when sentences or training names use it, else its three bytes.

Any text round-trips: every byte has a token. The specials come last, in `Grammar`'s order.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from data.openmoji import words
from data.openmoji.copying import LEADS, QUESTIONS, REPEAT
from data.openmoji.entities import LANGUAGES, Entity, keyed_random
from data.openmoji.scenes import Scene
from unify_agent.files import whole_folder, write_json, write_text
from unify_agent.interleave.grammar import MARKERS, TAGS

SIZE = 2048
CHARACTERS = 760
"""Chinese characters that are one token, at most."""
LONGEST = 4
"""Letters of the longest piece of a name."""

PATTERN = (
    r" ?(?:(?!\p{Han})[\p{L}_])+|\p{Han}|\p{N}| ?(?:(?!_)[^\s\p{L}\p{N}])+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen2's pre-tokenisation, but Chinese characters stand alone and punctuation never joins a word."""

_NAME = {"en": "Qqqq", "zh": "囗"}
"""Stands for a name in sentences; whatever contains it is not counted."""


def _byte_letters() -> dict[int, str]:
    """GPT-2's printable stand-in for every byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + k) for k, b in enumerate(rest)}


_LETTER = _byte_letters()


def _lettered(text: str) -> str:
    return "".join(_LETTER[b] for b in text.encode())


# ---------------------------------------------------------------- texts


def sentences() -> list[str]:
    """Our own sentences, with a stand-in wherever a name would be."""
    from data.openmoji.teacher import SPECIMEN, THOUGHTS
    from unify_agent.agent.toolcalls import ToolCall, render_call
    from unify_agent.agent.wording import load_prompts

    rng, result = keyed_random("tokenizer"), []
    for language in LANGUAGES:
        name = _NAME[language]
        for _ in range(500):
            scene = Scene.sample(rng, companion=0.5)
            result.append(words.request(scene, name, language, rng))
            result.append(words.recaption(scene, name, int(rng.integers(3)), language))
        for category in words.CATEGORIES:
            for template in range(len(words.DOCUMENTS[language])):
                colours = tuple(list(words.COLOURS)[k] for k in rng.choice(len(words.COLOURS), 2, replace=False))
                entity = Entity("0", {language: name}, {language: name}, category, "", "train", False, colours)
                result += 4 * [words.document(entity, language, template)[1]]
        said = [each for group in THOUGHTS[language].values() for each in group]
        said += [SPECIMEN[language], *LEADS[language], *QUESTIONS[language], REPEAT[language]]
        phrases = load_prompts("compact").phrases(language).model_dump()
        said += [v for v in (*phrases.values(), *phrases["verdicts"].values()) if isinstance(v, str)]
        said += [f"{name}: {', '.join(phrases['verdicts'].values())}\n", f"[1] {name}\n[2] {name}\n"]
        for each in said:
            each = each.replace("{names}", words._JOIN[language].join(("image_1", "image_2")))
            result += 20 * [re.sub(r"\{\w+\}", name, each)]
        for tool in ("text_search", "search_image"):
            result += 20 * [render_call(ToolCall(tool, {"q": name, "hl": language}))]
        result += 20 * [json.dumps({"q": name, "hl": language}, ensure_ascii=False)]
        result += 20 * [json.dumps({"q": name}, ensure_ascii=False), json.dumps([name, name], ensure_ascii=False)]
        result += 5 * list(words.WORDS[language]["companion"].values())
    tag = re.compile("|".join(map(re.escape, MARKERS + TAGS)))
    return [part for text in result for part in tag.split(text) if part]


def names(entities: Iterable[Entity]) -> list[str]:
    """Names and aliases of training entities, the only names that the tokenizer learns from."""
    return [text for e in entities if e.split == "train" for text in (*e.name.values(), *e.alias.values())]


def training_texts(entities: Iterable[Entity]) -> list[str]:
    """Everything that the tokenizer is trained on, for the check that no held-out name is among it."""
    return [*names(entities), *sorted(set(sentences()))]


# ---------------------------------------------------------------- training


def _merges(pieces: Counter[str], count: int) -> list[tuple[str, str]]:
    """The most frequent pairs, merged one after another as in BPE; ties in alphabetical order."""
    split = {piece: list(piece) for piece in pieces}
    result: list[tuple[str, str]] = []
    while len(result) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for piece, parts in split.items():
            for pair in pairwise(parts):
                if len(pair[0]) + len(pair[1]) <= LONGEST:
                    pairs[pair] += pieces[piece]
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        if pairs[best] < 2:
            break
        result.append(best)
        for parts in split.values():
            k = 0
            while k < len(parts) - 1:
                if (parts[k], parts[k + 1]) == best:
                    parts[k : k + 2] = [parts[k] + parts[k + 1]]
                k += 1
    return result


def _syllables(text: str) -> list[str]:
    found = re.findall(r"[^aeiouy]*[aeiouy]+(?:[^aeiouy]+$|[^aeiouy](?=[^aeiouy]))?|[^aeiouy]+$", text, re.IGNORECASE)
    return [each[:LONGEST] for each in found if len(each) > 1]


def train_tokenizer(entities: Sequence[Entity]) -> Tokenizer:
    """The tokenizer; a pure function of the training entities' names and our sentences."""
    cut = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    counted: Counter[str] = Counter()
    for text, times in Counter(sentences()).items():
        for piece, _ in cut.pre_tokenize_str(text):
            if not any(stand_in in piece for stand_in in _NAME.values()):
                counted[piece] += times
    known = names(entities)
    han = Counter(c for text in known for c in text if "\u4e00" <= c <= "\u9fff")
    fixed = [p for p, n in sorted(counted.items(), key=lambda x: (-x[1], x[0])) if n >= 5 and len(_lettered(p)) > 1]
    characters = [p for p in fixed if re.fullmatch(r"[\u4e00-\u9fff]", p)]
    more = [c for c, n in sorted(han.items(), key=lambda x: (-x[1], x[0])) if c not in set(characters)]
    characters += more[: max(0, CHARACTERS - len(characters))]
    whole = [_lettered(p) for p in fixed if not re.fullmatch(r"[\u4e00-\u9fff]", p)]
    whole += [_lettered(c) for c in characters]

    pieces: Counter[str] = Counter()
    for text in known:
        for word in re.findall(r"[A-Za-z]+", text):
            for form in {word, word.lower(), word.capitalize()}:
                pieces.update(_syllables(form))
    room = SIZE - len(MARKERS) - len(TAGS) - 256 - len(whole)
    if room < 100:
        raise ValueError(f"{len(whole)} whole words leave no room for pieces")
    vocabulary = {_LETTER[b]: b for b in range(256)}
    merges = _merges(pieces, 4 * room)
    kept = []
    for pair in merges:  # a merge may build a token that is a whole word already: it costs no row
        fresh = "".join(pair) not in vocabulary and "".join(pair) not in whole
        if fresh and room == 0:
            break
        room -= fresh
        kept.append(pair)
        vocabulary.setdefault("".join(pair), len(vocabulary))
    for token in whole:
        vocabulary.setdefault(token, len(vocabulary))
    filler = map(chr, range(0x4E00, 0x4E00 + SIZE))  # a small world's names do not fill the table
    for spare in (*more, *filler):
        if len(vocabulary) == SIZE - len(MARKERS) - len(TAGS):
            break
        vocabulary.setdefault(_lettered(spare), len(vocabulary))
    model = models.BPE(vocabulary, kept, ignore_merges=True, fuse_unk=False, byte_fallback=False)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in MARKERS + TAGS])
    return tokenizer


def write_tokenizer(entities: Sequence[Entity], folder: Path | str) -> Tokenizer:
    """Train and write `tokenizer.json`, `vocab.json`, `merges.txt`, `tokenizer_config.json`."""
    tokenizer = train_tokenizer(entities)
    content = json.loads(tokenizer.to_str())
    with whole_folder(folder) as work:
        write_text(work / "tokenizer.json", tokenizer.to_str(pretty=True))
        write_json(work / "vocab.json", content["model"]["vocab"], indent=None)
        merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in content["model"]["merges"]]
        write_text(work / "merges.txt", "#version: 0.2\n" + "\n".join(merges) + "\n")
        write_json(work / "tokenizer_config.json", {
            "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 32768, "add_prefix_space": False,
            "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|im_end|>", "unk_token": None,
            "clean_up_tokenization_spaces": False, "additional_special_tokens": list(MARKERS + TAGS),
        })  # fmt: skip
    return tokenizer


def piece_lengths(tokenizer: Tokenizer, texts: Iterable[str]) -> np.ndarray:
    """Tokens that each text takes."""
    return np.array([len(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts])
