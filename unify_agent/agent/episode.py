"""One request on its way through the loop: options, what has been said, what was found, how it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from PIL import Image

from unify_agent.agent.judge import Judged
from unify_agent.search.base import TextHit

STOPS = {
    "direct": "ok", "grounded": "ok", "text_only": "ok", "no_reference": "ok",
    "search_limit": "partial", "bad_calls": "partial", "no_recaption": "partial", "search_failed": "partial",
    "other_language": "partial",
    "policy_error": "failed", "draw_error": "failed", "write_error": "failed", "bad_input": "failed",
    "crashed": "failed", "not_run": "failed",
}  # fmt: skip
"""Every reason for which an episode ends, and what that makes of the item.

direct: nothing was missing. grounded: with one or two references. text_only: read, asked for no picture.
no_reference: pictures were asked for, none was usable. search_limit: still searching when the rounds were used up.
bad_calls: too many replies that were neither a call nor a recaption. no_recaption: the last reply held no complete
recaption; the picture is drawn from the request. search_failed: a search or the judge did not answer, and there is no
reference. other_language: the recaption is not in the language of the request, also after it was sent back for that.
policy_error, draw_error: the model failed; there is no picture. The rest befalls items of a batch.
write_error: the disk did not take it. bad_input: the request could not be read. crashed: the process that ran it died
twice. not_run: a service is down, or no worker is left.
"""


@dataclass(frozen=True)
class AgentOptions:
    """What the agent may do. The defaults are the full agent; the rest are the switches of the ablation (Table 5).

    tools: False tells the model that there is nothing to search with (closed book).
    text_search, image_search: False makes that tool find nothing.
    recaption: False draws from the request instead of the recaption.
    edit_recaption: replaces the text of the recaption that the picture is drawn from.
    hide_while_recaptioning: the references' tokens of one kind are absent while the recaption is written.
    replace_references: given an episode and its chosen references, those that take their place.
    history: draw from the history cache; False draws from a fresh context; None takes the layout's own way.
    redraw: how often a reply is drawn again, with sampling, that was cut off at its limit without a call or a
        recaption. What was said before is out of the context, and stays in the record.
    """

    tools: bool = True
    text_search: bool = True
    image_search: bool = True
    recaption: bool = True
    edit_recaption: Callable[[str], str] | None = None
    hide_while_recaptioning: Literal["vae", "vit"] | None = None
    replace_references: Callable[[Episode, list[Judged]], list[Judged]] | None = None
    history: bool | None = None
    redraw: int = 2
    max_text_searches: int = 3
    max_image_searches: int = 2
    max_rounds: int = 7
    max_bad_calls: int = 2
    max_references: int = 2


CUT_OFF, OTHER_LANGUAGE = "cut_off", "other_language"


@dataclass(frozen=True)
class Discarded:
    """A reply that was drawn again: `cut_off` before it held what was asked for, or a recaption in `other_language`."""

    text: str
    ids: tuple[int, ...] | None = None
    reason: str = CUT_OFF


@dataclass
class Exchange:
    """One turn: what the user side said, what the policy replied, what the tools answered.

    `discarded`: replies that were drawn before this one and are no part of the context.
    """

    input: str
    reply: str = ""
    ids: tuple[int, ...] | None = None
    tokenizer: str | None = None
    truncated: bool = False
    stage: int = 3
    tool_output: str | None = None
    tool_error: str | None = None
    mended: tuple[str, ...] = ()
    discarded: tuple[Discarded, ...] = ()
    calls: list[dict[str, Any]] = field(default_factory=list)
    read: list[TextHit] = field(default_factory=list)
    judged: list[Judged] = field(default_factory=list)


@dataclass
class Episode:
    """The state of one item. `input` is what the policy replies to next; `final` says that it must recaption;
    `discarded` are the replies to this input that are to be drawn again.

    References that are there from the beginning were given with the request: nothing is searched.
    language: of the request, and so of the prompts and the recaption. `subject` is the name under which pictures were
    last judged. `picture` is uint8 [H, W, 3]. `fault` is the last error of a search or a judge; `down` says that it, or
    the one that ended the episode, is a service's that does not work.
    """

    id: str
    request: str
    language: str = "en"
    name: str = ""
    category: str = "prompts"
    country: str = ""
    seed: int = 0
    options: AgentOptions = field(default_factory=AgentOptions)
    turns: list[Exchange] = field(default_factory=list)
    input: str = ""
    final: bool = False
    discarded: list[Discarded] = field(default_factory=list)
    stop: str = ""
    error: str = ""
    fault: str = ""
    read: list[TextHit] = field(default_factory=list)
    subject: str = ""
    text_searches: int = 0
    image_searches: int = 0
    failed_searches: int = 0
    down: bool = False
    bad_calls: int = 0
    references: list[Judged] = field(default_factory=list)
    recaption: str = ""
    picture: Any = None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def sent_back(self) -> bool:
        """Whether a recaption was sent back because of its language; none is, twice."""
        kept = (each for turn in self.turns for each in turn.discarded)
        return any(each.reason == OTHER_LANGUAGE for each in (*kept, *self.discarded))

    @property
    def cut_off(self) -> int:
        """How many replies to this input were cut off."""
        return sum(each.reason == CUT_OFF for each in self.discarded)

    @property
    def done(self) -> bool:
        """Nothing more will be said; what is left is to draw."""
        return bool(self.stop)

    @property
    def status(self) -> str:
        """`ok`, `partial` or `failed`."""
        if self.picture is None and self.done:
            return "failed"
        return STOPS.get(self.stop, "failed")

    @property
    def reference_pictures(self) -> list[Image.Image]:
        """The chosen references as RGB pictures, best first."""
        return [each.picture for each in self.references if each.picture is not None]
