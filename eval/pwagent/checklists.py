"""Check-lists: what a prompt implies, as questions. Made once for a data set, frozen, shared by all models.

They depend on the prompt only (the first two roles see no picture), so models are compared on the same questions and
half of the calls are saved. A file of them is JSON lines, one check-list each; an entry is never changed.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from eval.benchmarks.base import Ask, Item, Unresolved, read_lines
from eval.pwagent.roles import EXTRACTOR, FORMULATOR, Expectation, Expectations, Question, Questions
from unify_agent.errors import UserError
from unify_agent.files import digest, write_text
from unify_agent.judging import system, user

AGAIN = """The expectations that you gave before led to no question about a state. Give them anew, with at least one \
visible State that the prompt implies."""


class Checked(BaseModel):
    """An expectation with its questions, Existence first."""

    model_config = ConfigDict(frozen=True)

    expectation: Expectation
    questions: tuple[Question, ...]


class Checklist(BaseModel):
    """The check-list of one item. `prompt` tells whether it still belongs to it."""

    model_config = ConfigDict(frozen=True)

    id: str
    prompt: str
    expectations: tuple[Checked, ...]

    @property
    def has_state(self) -> bool:
        """Whether S2 is defined."""
        return any(q.type == "State" for each in self.expectations for q in each.questions)

    def numbered(self) -> list[tuple[str, int, Expectation, Question]]:
        """(id, number of the expectation, expectation, question) of each question, such as `1.2`."""
        return [
            (f"{number}.{k}", number, each.expectation, question)
            for number, each in enumerate(self.expectations, 1)
            for k, question in enumerate(each.questions, 1)
        ]


def made(item: Item, ask: Ask) -> Checklist:
    """A new check-list. One without a State question is asked for once more; then the item is unresolved."""
    checklist = _asked(item, ask, "")
    if not checklist.has_state:
        checklist = _asked(item, ask, AGAIN)
    if not checklist.has_state:
        raise Unresolved("no_state_fact", "the prompt's check-list has no question about a state, asked twice")
    return checklist


def _asked(item: Item, ask: Ask, more: str) -> Checklist:
    said = user(f"Prompt: {item.prompt}", *([more] if more else []))
    wanted = ask("extractor", [system(EXTRACTOR), said], Expectations, 2048)
    checked = []
    for each in wanted.expectations:
        asked = user(f"Expectation: {each.expectation}")
        found = ask("formulator", [system(FORMULATOR), asked], Questions)
        ordered = sorted(found.questions, key=lambda question: question.type != "Existence")
        checked.append(Checked(expectation=each, questions=tuple(ordered)))
    return Checklist(id=item.id, prompt=item.prompt, expectations=tuple(checked))


class Checklists:
    """The check-lists in a file, to which new ones are added."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._known: dict[str, Checklist] = {}
        if self.path.is_file():
            self._read()

    def of(self, item: Item, ask: Ask) -> Checklist:
        """The frozen check-list, or a new one, which is frozen now. Raises ChatError or Unresolved.

        Raises UserError when the file's entry is that of another prompt.
        """
        known = self._known.get(item.id)
        if known is None:
            known = self._freeze(made(item, ask))
        if known.prompt != item.prompt:
            raise UserError(f"{self.path}: the check-list of {item.id} is that of another prompt; choose another file "
                            "for this data set (--checklists)")  # fmt: skip
        return known

    def sha256(self, items: Sequence[Item]) -> str:
        """Over the check-lists of these items."""
        return digest(json.dumps([self._plain(item.id) for item in sorted(items, key=lambda each: each.id)]))

    def copy_to(self, path: Path, items: Sequence[Item]) -> None:
        """Writes the check-lists of these items."""
        some = [self._plain(item.id) for item in items if item.id in self._known]
        write_text(path, "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in some))

    def _plain(self, item_id: str) -> Any:
        known = self._known.get(item_id)
        return None if known is None else known.model_dump()

    def _read(self) -> None:
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1].decode("utf-8", "replace")  # a torn last line was never frozen
        for checklist in read_lines(whole, self.path, Checklist):
            self._known.setdefault(checklist.id, checklist)

    def _freeze(self, checklist: Checklist) -> Checklist:
        """Appends, unless another process froze one for this item meanwhile: then that one counts."""
        line = (checklist.model_dump_json() + "\n").encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                self._drop_torn_line(file)
                self._read()
                if checklist.id not in self._known:
                    os.write(file, line)
                    os.fsync(file)
                    self._known[checklist.id] = checklist
            finally:
                os.close(file)
        return self._known[checklist.id]

    def _drop_torn_line(self, file: int) -> None:
        content = self.path.read_bytes()
        if content and not content.endswith(b"\n"):
            os.ftruncate(file, content.rfind(b"\n") + 1)
