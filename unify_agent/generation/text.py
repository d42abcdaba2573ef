"""Decoding: the model writes a text segment in many rows at once.

What is fed is exactly the block that training packs, [bos] ids [eos], so the cache can go on from there. All
rows feed their i-th slot in the same step, whatever their lengths; a row that has ended idles until half of
the batch has, then the batch is cut down to those that still write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from unify_agent.errors import UserError
from unify_agent.generation.appending import Entry
from unify_agent.generation.cache import Step
from unify_agent.interleave.randomness import generator
from unify_agent.interleave.visibility import Range

if TYPE_CHECKING:
    from unify_agent.generation.session import Session


Watch = Callable[[Sequence[Sequence[int]]], None]


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen: greedily at temperature 0, else drawn from the `top_k` most likely tokens
    (0: all) and of these the fewest whose probability reaches `top_p`. No id is written more than `max_run` times in a
    row (0: as often as it likes).

    A row stops at the end marker, after an id in `stop_ids` (which it keeps), or after `max_new` ids. Markers
    that the model must not write and rows of the table past the tokenizer's size are always forbidden,
    `forbidden` too.
    """

    max_new: int = 512
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    max_run: int = 0
    stop_ids: tuple[int, ...] = ()
    forbidden: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if min(self.max_new, self.temperature, self.top_k, self.max_run) < 0 or not 0 < self.top_p <= 1:
            raise UserError(
                f"sampling: {self} is out of range (max_new, temperature, top_k, max_run >= 0; 0 < top_p <= 1)"
            )


@dataclass(frozen=True)
class Decoded:
    """`ids` without markers, prefix included; `span`: its tokens in the row, both markers included.

    `stopped`: the model ended by itself; false where `max_new` cut it off.
    """

    ids: tuple[int, ...]
    span: Range
    stopped: bool

    def tokens(self, start: int, stop: int) -> Range:
        """The row's tokens of ids [start, stop)."""
        return self.span[0] + 1 + start, self.span[0] + 1 + stop


@torch.no_grad()
def decode(
    session: Session,
    rows: Sequence[int],
    sampling: Sampling,
    *,
    prefix: Sequence[Sequence[int]] | None = None,
    seeds: Sequence[int] | None = None,
    watch: Watch | None = None,
) -> list[Decoded]:
    """Write one text segment in each of `rows`. `prefix`: ids that a row has to begin with.

    `seeds` (one a row, default 0) key the draws, which therefore do not depend on the batch. `watch` is shown, after
    each step, the ids that each row has so far; what it raises ends the call, and the rows are then of no use.
    """
    if not rows:
        return []
    rows = list(rows)
    given = prefix if prefix is not None else [()] * len(rows)
    prefixes = [tuple(each) for each in given]
    starts = [session.lengths[row] for row in rows]
    writer = _Writer(session, rows, sampling, prefixes, seeds or [0] * len(rows))
    written, stopped = writer.run(watch)
    results = []
    for number, row in enumerate(rows):
        ids = written[number]
        span = (starts[number], starts[number] + len(ids) + 2)
        session.history[row].append(Entry("text", *span, session.rope[row], ids))
        session.rope[row] += len(ids) + 2
        results.append(Decoded(ids, span, stopped[number]))
    return results


class _Writer:
    """The loop. `held[i]`: which of the call's rows is row i of the current batch, whose cache is `cache`."""

    def __init__(
        self,
        session: Session,
        rows: list[int],
        sampling: Sampling,
        prefixes: list[tuple[int, ...]],
        seeds: Sequence[int],
    ) -> None:
        self.session, self.rows, self.sampling = session, rows, sampling
        self.most = max(len(p) for p in prefixes) + sampling.max_new + 2
        self.starts = [session.lengths[row] for row in rows]
        self.held = list(range(len(rows)))
        self.cache = session.cache if rows == list(range(session.rows)) else session.cache.select(rows)
        self.step = Step(self.cache)
        device = session.device
        self.rope = torch.tensor([session.rope[row] for row in rows], device=device)
        self.limit = torch.tensor([len(p) + sampling.max_new for p in prefixes], device=device)
        self.forced = torch.full((len(rows), max(len(p) for p in prefixes)), -1, device=device)
        for number, ids in enumerate(prefixes):
            self.forced[number, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
        self.begun = torch.tensor([len(p) for p in prefixes], device=device)
        self.last, self.run_of_last = self.limit.new_full((len(rows),), -1), torch.zeros_like(self.limit)
        self.draws = None
        if sampling.temperature > 0:
            draws = [generator(seed, 0, "text").random(self.most) for seed in seeds]
            self.draws = torch.from_numpy(np.stack(draws)).to(device)
        self.bias = self._bias()
        self.stops = torch.tensor(sampling.stop_ids, dtype=torch.int64, device=device)

    def _bias(self) -> Tensor:
        markers, vocabulary = self.session.markers, self.session.config.llm.vocab_size
        bias = torch.zeros(vocabulary, device=self.session.device)
        bias[min(markers.size, vocabulary) :] = -torch.inf
        banned = (markers.bos, markers.start_of_image, markers.end_of_image, *self.sampling.forbidden)
        bias[torch.tensor(banned, device=bias.device)] = -torch.inf
        return bias

    def run(self, watch: Watch | None = None) -> tuple[list[tuple[int, ...]], list[bool]]:
        """-> the ids and whether the model stopped by itself, in the order of the call's rows."""
        eos = self.session.markers.eos
        count = len(self.rows)
        written: list[list[int]] = [[] for _ in range(count)]
        stopped = [False] * count
        token = torch.full((count,), self.session.markers.bos, device=self.session.device)
        ended = [False] * count
        for index in range(self.most):
            predicted = self._feed(token, index)
            cut = index >= self.limit
            halted = torch.isin(token, self.stops) & (index > self.begun)
            following = torch.where(cut | halted, eos, predicted)
            if index < self.forced.shape[1]:
                forced = self.forced[:, index]
                following = torch.where(forced >= 0, forced, following)
            own = halted | (predicted == eos)
            for place, (fed, then, mine) in enumerate(
                zip(token.tolist(), following.tolist(), own.tolist(), strict=True)
            ):
                number = self.held[place]
                if ended[number]:
                    continue
                if index and fed == eos:
                    ended[number] = True
                elif then == eos:
                    stopped[number] = mine
                else:
                    written[number].append(then)
            if watch is not None:
                watch(written)
            token = following
            alive = [place for place, number in enumerate(self.held) if not ended[number]]
            if not alive:
                break
            if 2 * len(alive) <= len(self.held):
                self._settle(written, [place for place in range(len(self.held)) if place not in alive])
                token = token[torch.tensor(alive, device=token.device)]
                self._keep(alive, index + 1)
        self._settle(written, range(len(self.held)))
        return [tuple(each) for each in written], stopped

    def _feed(self, token: Tensor, index: int) -> Tensor:
        """Feed slot `index` of every row; -> the id chosen next [R]."""
        model, step = self.session.model, self.step
        step.begin()
        every = torch.arange(len(token), device=token.device)
        hidden = model.language_model.model(model.embed_text(token), every, every[:0], self.rope + index, step)
        step.at = step.at + 1
        logits = model.logits(hidden).float() + self.bias
        if self.sampling.max_run:
            self.run_of_last = torch.where(token == self.last, self.run_of_last + 1, 1)
            self.last = token
            full = self.run_of_last >= self.sampling.max_run
            logits[every[full], token[full]] = -torch.inf
        if self.draws is None:
            return logits.argmax(-1)
        return draw_token(logits, self.sampling, self.draws[:, index])

    def _settle(self, written: list[list[int]], places: Sequence[int]) -> None:
        """Give the session what the rows at `places`, which have ended, hold."""
        numbers = [self.held[place] for place in places]
        for place, number in zip(places, numbers, strict=True):
            self.cache.lengths[place] = self.starts[number] + len(written[number]) + 2
        if self.cache is not self.session.cache:
            targets, starts = [self.rows[n] for n in numbers], [self.starts[n] for n in numbers]
            self.session.cache.put(targets, self.cache, places, starts)

    def _keep(self, alive: list[int], slots: int) -> None:
        """Go on with the rows at places `alive`, which hold `slots` slots of the new segment."""
        self.held = [self.held[place] for place in alive]
        self.cache = self.cache.select(alive, [self.starts[number] + slots for number in self.held])
        self.step = Step(self.cache)
        index = torch.tensor(alive, device=self.rope.device)
        self.rope, self.limit, self.forced = self.rope[index], self.limit[index], self.forced[index]
        self.begun, self.last, self.run_of_last = self.begun[index], self.last[index], self.run_of_last[index]
        if self.draws is not None:
            self.draws = self.draws[index]


def draw_token(logits: Tensor, sampling: Sampling, uniform: Tensor) -> Tensor:
    """Choose an id from logits [R, V] by inverting the cumulative distribution at `uniform` [R] in [0, 1)."""
    ordered, ids = (logits / sampling.temperature).double().sort(dim=-1, descending=True, stable=True)
    if sampling.top_k:
        ordered[:, sampling.top_k :] = -torch.inf
    chances = ordered.softmax(-1)
    before = chances.cumsum(-1) - chances
    chances = chances.masked_fill(before >= sampling.top_p, 0)
    total = chances.cumsum(-1)
    place = torch.searchsorted(total, (uniform[:, None] * total[:, -1:]), right=True)
    return ids.gather(-1, place.clamp(max=logits.shape[-1] - 1))[:, 0]
