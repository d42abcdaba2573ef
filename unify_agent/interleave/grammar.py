"""From text to token ids and back: tags, special tokens, what is trusted.

One encoder serves training and inference. A tag in text that we or the model wrote is a special token; a tag in
text that came from outside (search results) stays plain text, so a web page can neither close an observation nor
open a tool call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from unify_agent.errors import UserError
from unify_agent.files import digest

MARKERS = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>")
TAGS = (
    "<observation>", "</observation>", "<tool_call>", "</tool_call>",
    "<think>", "</think>", "<recaption>", "</recaption>",
)  # fmt: skip
"""The release's order: on a BAGEL tokenizer the missing ones take the next spare rows of the table."""

STRUCTURE_TAGS = tuple(tag for tag in TAGS if "observation" not in tag)
"""Tags whose CE weight is raised (paper, Table 6): those that open or close a thought, a call, a recaption."""

_OBSERVATION = re.compile(r"(<observation>)(.*)(</observation>)", re.DOTALL)


SPELLED = "<\u200b"
"""How a tag begins that was spelled out in ordinary tokens: with a space of no width."""
_UNCLOSED = re.compile(r"^<observation>", re.MULTILINE)
_ANY_TAG = re.compile("|".join(map(re.escape, TAGS + MARKERS)))
_SPEAKS = re.compile(rf"{'|'.join(map(re.escape, TAGS))}|<\|")
"""What a reader may take for a token: our tags, and the beginning of any token of a tokenizer, `<|endoftext|>` say."""


def misplaced_tag(text: str) -> str | None:
    """The first tag of an assistant's text that is out of place, None when all are well-formed.

    Well-formed is `<tag> ... </tag>` of a structure tag with no other tag inside. Observation tags and markers are
    not for an assistant to write.
    """
    opened = ""
    for found in _ANY_TAG.finditer(text):
        tag = found[0]
        if tag not in STRUCTURE_TAGS or (opened and tag != f"</{opened[1:]}") or (not opened and tag[1] == "/"):
            return tag
        opened = "" if opened else tag
    return opened or None


def unsafe_in_user(text: str) -> str | None:
    """What makes a user turn's text mean something else than it says: an observation that begins a line and never
    ends (what came from outside would be trusted), or a marker outside the observation. None when all is well."""
    found = _OBSERVATION.search(text)
    if found is None and _UNCLOSED.search(text):
        return "<observation>"
    outside = text if found is None else text[: found.start()] + text[found.end() :]
    return next((tag for tag in _ANY_TAG.findall(outside) if tag in MARKERS), None)


def spell_tags(text: str) -> str:
    """The text with an invisible mark in every tag and special token, so that nobody takes them for such."""
    return _SPEAKS.sub(lambda tag: tag[0].replace("<", SPELLED), text)


def spell_markers(text: str) -> str:
    """The same, with our tags left as they are: for text of an assistant, who may write tags but no markers."""
    return text.replace("<|", f"{SPELLED}|")


def spell_tags_in_observation(text: str) -> str:
    """A user turn's text for readers who know no tokens: the tags within its observation are spelled out."""
    return _OBSERVATION.sub(lambda found: f"{found[1]}{spell_tags(found[2])}{found[3]}", text, count=1)


class Grammar:
    """A tokenizer with the markers and tags of Unify-Agent.

    `encode` is for trusted text, `encode_untrusted` for everything else, `encode_user` for a user turn as
    records store it. `fingerprint` identifies the mapping from text to ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        known = tokenizer.get_vocab(with_added_tokens=True)
        special = MARKERS + TAGS
        tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
        self.added = tuple(token for token in special if token not in known)
        self._trusted = tokenizer
        self._plain = Tokenizer.from_str(tokenizer.to_str())
        self._plain.encode_special_tokens = True
        self.bos, self.eos, self.start_of_image, self.end_of_image = (self.id_of(t) for t in MARKERS)
        self.tag_ids = {tag: self.id_of(tag) for tag in TAGS}
        self._special = frozenset(self.id_of(token) for token in special)
        self.size = tokenizer.get_vocab_size(with_added_tokens=True)
        self.fingerprint = digest(tokenizer.to_str())[:16]

    def __setstate__(self, state: dict) -> None:
        """Pickling a tokenizer forgets `encode_special_tokens`, and with it what is trusted: set it again."""
        self.__dict__.update(state)
        self._plain.encode_special_tokens = True

    @classmethod
    def load(cls, folder: Path | str) -> Grammar:
        """Read the tokenizer of a model folder (tokenizer.json, or vocab.json with merges.txt)."""
        folder = Path(folder)
        if (folder / "tokenizer.json").is_file():
            try:
                return cls(Tokenizer.from_file(str(folder / "tokenizer.json")))
            except Exception as error:  # tokenizers raises bare Exception
                raise UserError(f"{folder / 'tokenizer.json'}: not a tokenizer ({error})") from None
        if not (folder / "vocab.json").is_file() or not (folder / "merges.txt").is_file():
            raise UserError(f"{folder}: no tokenizer here; expected tokenizer.json, or vocab.json and merges.txt")
        from transformers import AutoTokenizer

        return cls(AutoTokenizer.from_pretrained(folder).backend_tokenizer)

    def id_of(self, token: str) -> int:
        """The id of a marker or a tag."""
        number = self._trusted.token_to_id(token)
        if number is None:
            raise KeyError(token)
        return number

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of trusted text: tags and markers in it become special tokens."""
        return tuple(self._trusted.encode(text, add_special_tokens=False).ids)

    def encode_untrusted(self, text: str) -> tuple[int, ...]:
        """Ids of text from outside: whatever it contains, none of them is a special token."""
        return tuple(self._plain.encode(text, add_special_tokens=False).ids)

    def encode_user(self, text: str) -> tuple[int, ...]:
        """Ids of a user turn: between its first <observation> and its last </observation> nothing is trusted."""
        found = _OBSERVATION.search(text)
        if not found:
            return self.encode(text)
        before, after = text[: found.start()], text[found.end() :]
        opening, closing = self.tag_ids["<observation>"], self.tag_ids["</observation>"]
        return (*self.encode(before), opening, *self.encode_untrusted(found[2]), closing, *self.encode(after))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, tags included."""
        return self._trusted.decode(list(ids), skip_special_tokens=False)

    def said(self, ids: Sequence[int]) -> str:
        """Text of ids that a model generated. A tag that it only spelled out in ordinary tokens is no tag: an invisible
        mark is put into it, so that nobody who reads the text, and no other tokenizer, takes it for one."""
        text = self.decode(ids)
        if [t for t in ids if t in self._special] == [t for t in self.encode(text) if t in self._special]:
            return text
        pieces: list[str] = []
        for special, run in groupby(ids, self._special.__contains__):
            piece = self.decode(list(run))
            pieces.append(piece if special else spell_tags(piece))
        return "".join(pieces)

    def between(self, ids: Sequence[int], tag: str) -> tuple[int, int] | None:
        """The range [open, close + 1) of the last complete `<tag> ... </tag>` in `ids`, tags included."""
        opening, closing = self.tag_ids[f"<{tag}>"], self.tag_ids[f"</{tag}>"]
        ids = list(ids)
        if closing not in ids:
            return None
        stop = len(ids) - 1 - ids[::-1].index(closing)
        before = ids[:stop]
        if opening not in before:
            return None
        start = len(before) - 1 - before[::-1].index(opening)
        return start, stop + 1
