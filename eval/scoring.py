"""Judging a folder of pictures: every item ends as ok, unresolved or missing; nothing is filled in.

Live and replayed runs go through the same code, and a result holds only what the answers say, so both give the same
bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from eval.benchmarks.base import Ask, Benchmark, Item, Marks, Schema, Unresolved, mean_of
from eval.pictures import Found
from unify_agent.errors import UserError
from unify_agent.interleave.segments import Unusable
from unify_agent.judging import ChatClient, ChatError, Message, Picture, PicturePolicy
from unify_agent.judging.answers import NotRecorded
from unify_agent.judging.pool import run_bounded

Status = Literal["ok", "unresolved", "missing"]
DOWN = ("unreachable", "timeout", "server")
"""Failures that may be the server's state rather than the question's."""


@dataclass(frozen=True)
class Result:
    """What became of an item. `scores` by measure when ok (the mean over repeats). `kind` and `detail` say why not.

    repeats: the scores of each repeat. trail: what each repeat's calls answered. tokens: [prompt, completion] of the
    answers that count.
    """

    id: str
    status: Status
    scores: dict[str, float] = field(default_factory=dict)
    kind: str = ""
    detail: str = ""
    differs: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    repeats: tuple[dict[str, float], ...] = ()
    evidence: dict[str, Any] = field(default_factory=dict)
    trail: tuple[dict[str, Any], ...] = ()
    tokens: tuple[int, int] = (0, 0)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Trail(Ask):
    """Asks through a client and remembers each answer. `salt` tells repeats apart; pictures are sent under `policy`.

    `digests`: SHA-256 of pictures that were hashed before.
    """

    def __init__(
        self, client: ChatClient, policy: PicturePolicy, digests: dict[Path, str], seed: int | None, salt: str
    ) -> None:
        self._client, self._policy, self._digests = client, policy, digests
        self._seed, self._salt = seed, salt
        self.steps: list[dict[str, Any]] = []
        self.tokens = [0, 0]
        self.model = ""

    def __call__(self, role: str, messages: Sequence[Message], schema: type[Schema], max_tokens: int = 1024) -> Schema:
        answer = self._client.ask(messages, schema=schema, max_tokens=max_tokens, seed=self._seed, salt=self._salt)
        self.tokens[0] += answer.prompt_tokens or 0
        self.tokens[1] += answer.completion_tokens or 0
        self.steps.append({"role": role, "model": answer.model, "text": answer.text, "thinking": answer.thinking})
        assert isinstance(answer.parsed, schema), "an answer to a schema is parsed"
        return answer.parsed

    def picture(self, path: Path) -> Picture:
        return Picture(self._digests[path], self._policy, path)

    def aside(self) -> Ask:
        return Trail(self._client, self._policy, self._digests, self._seed, "")


def score_items(
    benchmark: Benchmark,
    items: Sequence[Item],
    found: dict[str, Found],
    client: ChatClient,
    policy: PicturePolicy,
    digests: dict[Path, str],
    *,
    repeats: int = 1,
    seed: int | None = 0,
    on_result: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Results in the order of the items. `digests`: SHA-256 of every reference.

    Raises ChatError when the judge lets nobody in, when more items in a row than there are calls at a time find it out
    of reach, or when some do and in the end it does not answer a greeting either: what was answered is in the log, and
    the same run continues there. Raises UserError for a picture that is not what it was when it was found.
    """
    live = client.log is None or not client.log.replay

    def one(item: Item) -> Result:
        return _score(benchmark, item, found[item.id], client, policy, digests, repeats, seed)

    results: dict[int, Result] = {}
    silent = 0
    for number, result in run_bounded(one, items, client.concurrency, client.stop):
        if live and result.kind == "auth":
            raise ChatError("auth", result.detail)
        if result.status != "missing":  # nobody was asked about those
            silent = silent + 1 if result.kind in DOWN else 0
        if live and silent > client.concurrency:
            raise ChatError("unreachable", f"{silent} items in a row got no answer, the last: {result.detail}")
        results[number] = result
        on_result(result)
    without = sum(result.kind in DOWN for result in results.values())
    if live and without:
        try:
            client.greet()
        except ChatError as error:
            said = f"{without} items got no answer, nor does a greeting now: {error.detail}"
            raise ChatError(error.kind, said) from None
    return [results[number] for number in range(len(items))]


def _score(
    benchmark: Benchmark,
    item: Item,
    found: Found,
    client: ChatClient,
    policy: PicturePolicy,
    digests: dict[Path, str],
    repeats: int,
    seed: int | None,
) -> Result:
    if found.problem or found.path is None:
        return Result(item.id, "missing", kind=found.problem, detail=found.detail)
    picture = Picture(found.sha256, policy, found.path)
    marks: list[Marks] = []
    trail: list[dict[str, Any]] = []
    tokens = [0, 0]
    for number in range(repeats):
        salt = f"repeat {number}" if number else ""
        ask = Trail(client, policy, digests, None if seed is None else seed + number, salt)
        try:
            marks.append(benchmark.judge(item, picture, ask))
        except (ChatError, Unresolved) as error:
            return Result(item.id, "unresolved", kind=error.kind, detail=error.detail, trail=tuple(trail + ask.steps))
        except Unusable as error:
            raise UserError(f"{item.id}: {error}: mend it and run the same command again") from None
        except NotRecorded:
            detail = "the log holds no answer: the run did not come so far"
            return Result(item.id, "unresolved", kind="not_asked", detail=detail, trail=tuple(trail + ask.steps))
        finally:
            tokens = [a + b for a, b in zip(tokens, ask.tokens, strict=True)]
        trail += [step | {"repeat": number} for step in ask.steps]
    names = dict.fromkeys(name for each in marks for name in each.scores)
    return Result(
        item.id,
        "ok",
        {name: mean_of([each.scores[name] for each in marks if name in each.scores]) for name in names},
        differs=tuple(dict.fromkeys(d for each in marks for d in each.differs)),
        flags=tuple(dict.fromkeys(f for each in marks for f in each.flags)),
        repeats=tuple(dict(each.scores) for each in marks) if repeats > 1 else (),
        evidence=dict(marks[0].detail),
        trail=tuple(trail),
        tokens=(tokens[0], tokens[1]),
    )


def models_of(results: Sequence[Result]) -> list[str]:
    """The names under which the judge answered, as it says them."""
    return sorted({step["model"] for result in results for step in result.trail})
