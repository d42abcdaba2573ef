"""The branches of guidance: what a picture sees in each.

Guidance compares the full context with two others:

* text hidden: the picture sees its references only;
* pictures hidden: the row's texts are computed anew without any picture, because their keys have seen them.

A branch whose context would equal the full one is not computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unify_agent.generation.cache import Cache
from unify_agent.interleave.segments import Gap, Text
from unify_agent.interleave.visibility import Range, intersect

if TYPE_CHECKING:
    from unify_agent.generation.session import Session


@dataclass(frozen=True)
class Context:
    """What the pictures `members` (indices into the drawn rows) see in one branch.

    `ranges[i]` of row `rows[i]` of `cache`; `rope[i]` is the picture's rope id there.
    """

    cache: Cache
    members: list[int]
    rows: list[int]
    ranges: list[list[Range]]
    rope: list[int]

    def only(self, wanted: Sequence[int]) -> Context:
        """The same for some of the drawn rows, renumbered in their order."""
        place = {member: i for i, member in enumerate(self.members)}
        kept = [(new, place[old]) for new, old in enumerate(wanted) if old in place]
        return Context(
            self.cache,
            [new for new, _ in kept],
            [self.rows[i] for _, i in kept],
            [self.ranges[i] for _, i in kept],
            [self.rope[i] for _, i in kept],
        )


def contexts(
    session: Session,
    rows: Sequence[int],
    sees: Sequence[Sequence[Range] | None],
    *,
    branches: Sequence[str],
    keep_rope: bool,
) -> list[Context]:
    """The context of each of `branches` (see `sampler.BRANCHES`; the first is `full`) of a picture in each row.

    `sees` None is the whole row. `keep_rope`: hidden segments still use up their rope ids, as in training's
    condition dropout of presets `paper` and `isolated`; otherwise a branch is numbered as if they had never been
    there, as in BAGEL.
    """
    every = list(range(len(rows)))
    visible = [
        [(0, session.lengths[row])] if seen is None else intersect(sorted(seen), [(0, session.lengths[row])])
        for row, seen in zip(rows, sees, strict=True)
    ]
    rope = [session.rope[row] for row in rows]
    found = [Context(session.cache, every, list(rows), visible, rope)]
    texts, pictures = [], []
    for row, ranges in zip(rows, visible, strict=True):
        held = session.history[row]
        texts.append(intersect(ranges, [(e.start, e.stop) for e in held if e.kind == "text"]))
        pictures.append(intersect(ranges, [(e.start, e.stop) for e in held if e.kind in ("vae", "vit")]))
    if "text" in branches:
        members = [i for i in every if texts[i]]
        moved = []
        for i in members:
            hidden = [
                e for e in session.history[rows[i]] if e.kind == "text" and intersect(texts[i], [(e.start, e.stop)])
            ]
            moved.append(rope[i] - (0 if keep_rope else sum(e.stop - e.start for e in hidden)))
        found.append(Context(session.cache, members, [rows[i] for i in members], [pictures[i] for i in members], moved))
    if "image" in branches:
        found.append(_pictures_hidden(session, rows, texts, pictures, keep_rope))
    return found


def _pictures_hidden(
    session: Session, rows: Sequence[int], texts: list[list[Range]], pictures: list[list[Range]], keep_rope: bool
) -> Context:
    """Rows as they would be had no picture ever been shown. What precedes a row's first picture is copied; a row whose
    drawing sees no picture, and no text that has seen one, is left out."""
    members, cuts, parts, ranges = [], [], [], []
    for i, row in enumerate(rows):
        held = session.history[row]
        first = next((n for n, entry in enumerate(held) if entry.kind in ("vae", "vit")), None)
        last = texts[i][-1][1] if texts[i] else 0
        if first is None or (keep_rope and not pictures[i] and last <= held[first].start):
            continue
        rest: list[Text | Gap] = []
        for entry in held[first:]:
            if entry.kind == "text" and entry.start < last:
                rest.append(Text(entry.ids))
            elif entry.kind == "gap" or (keep_rope and entry.kind != "text"):
                rest.append(Gap())
        members.append(i)
        cuts.append(held[first].start)
        parts.append(rest)
        ranges.append([_without(held, each) for each in texts[i]])
    chosen = [rows[i] for i in members]
    fresh = session.fork(chosen, cuts)
    if members:
        fresh.append(range(len(members)), parts)
    shown = [sum(e.kind in ("vae", "vit") for e in session.history[row]) for row in chosen]
    rope = [session.rope[row] - (0 if keep_rope else n) for row, n in zip(chosen, shown, strict=True)]
    return Context(fresh.cache, members, list(range(len(members))), ranges, rope)


def _without(held: Sequence, span: Range) -> Range:
    """Where the tokens of a range inside texts stand once all pictures are gone."""
    gone = sum(e.stop - e.start for e in held if e.kind in ("vae", "vit") and e.stop <= span[0])
    return span[0] - gone, span[1] - gone
