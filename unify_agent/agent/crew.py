"""Who works on a request: a policy, a search back end, a judge, and the words to ask with, made from plain values.

A `Setup` is what a command, a worker process or a Python caller says; `assemble` makes a `Crew` of it. The values can
be pickled and written down, and their digest tells whether an item was made in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unify_agent import __version__
from unify_agent.agent.episode import AgentOptions, Episode
from unify_agent.agent.judge import Judge, Judged, LabelJudge, Verdict, entities_in
from unify_agent.agent.pixeljudge import PixelJudge
from unify_agent.agent.requests import Request
from unify_agent.agent.wording import Prompts, load_judging, load_prompts
from unify_agent.errors import UserError
from unify_agent.files import digest
from unify_agent.interleave.transforms import open_picture
from unify_agent.search.base import ImageHit, NoSearch, SearchBackend
from unify_agent.search.index import Index

if TYPE_CHECKING:
    from unify_agent.agent.loop import Policy
    from unify_agent.agent.unified import UnifiedPolicy
    from unify_agent.judging import ChatClient

POLICIES = ("unified", "openai")
JUDGES = ("pixels", "self", "openai", "index")


@dataclass(frozen=True)
class Service:
    """An OpenAI-compatible endpoint: `key_env` names the variable that holds its key, `mode` see `endpoint.Mode`."""

    url: str
    model: str
    key_env: str | None = None
    mode: str = "tools"


@dataclass(frozen=True)
class Setup:
    """How an agent is made. `None` is the model's own, or what suits it.

    model: a folder in BAGEL's layout or a hub id. search: a back end's name, "" for none; search_options: fields of
    `SearchOptions`, for live ones. words, judging: prompts by name or file. sampler: fields of `SamplerSettings`, and
    `preset`, a name in `GUIDANCE`. sampling: fields of `Sampling`. endpoint: who plans with the policy `openai`, and
    judges unless `judge_endpoint` does. seed, history, redraw, tools: see `Episode` and `AgentOptions`.
    """

    model: str
    search: str = ""
    policy: str = "unified"
    judge: str | None = None
    words: str | None = None
    judging: str | None = None
    size: tuple[int, int] | None = None
    aspect: float | None = None
    sampler: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    endpoint: Service | None = None
    judge_endpoint: Service | None = None
    seed: int = 0
    history: bool = False
    redraw: int = 2
    tools: bool = True
    search_options: Mapping[str, str] = field(default_factory=dict)
    dtype: str | None = None
    spread: bool = False
    quant: str | None = None

    def key(self, weights: str) -> str:
        """What an item must have been made with to count as made: all that changes what comes out."""
        values = asdict(self)
        for name in ("model", "spread"):  # where weights lie and how they are spread changes nothing
            del values[name]
        told = ("cache", "user_agent", "on_note")  # nor does where pictures are kept, or who is told what
        values["search_options"] = {k: v for k, v in self.search_options.items() if k not in told}
        files = [Path(name) for name in (self.words, self.judging) if name is not None and Path(name).is_file()]
        return digest(weights, json.dumps(values, sort_keys=True, default=str), *files)[:16]

    def made_with(self, request: Request, weights: str) -> dict[str, Any]:
        """What the record of a request says when it was made in this way."""
        return {"setup": self.key(weights), "given": [digest(file)[:16] for file in request.references]}

    def episode(self, request: Request) -> Episode:
        """The loop's view of a request."""
        options = AgentOptions(tools=self.tools, history=True if self.history else None, redraw=self.redraw)
        return Episode(
            id=request.id, request=request.prompt, language=request.language, name=request.name,
            category=request.category, country=request.country, seed=self.seed, options=options,
            references=[given_reference(file) for file in request.references],
        )  # fmt: skip


def given_reference(file: Path) -> Judged:
    """A reference that came with a request. Raises `Unusable` when it does not decode."""
    picture = open_picture(file)
    hit = ImageHit(
        id=digest(file)[:16], title=file.stem, path=file.resolve(), width=picture.width, height=picture.height,
        source=f"given: {file.name}", licence="",
    )  # fmt: skip
    return Judged(hit, picture, Verdict(10.0, "good", True))


@dataclass
class Crew:
    """What the loop needs. `painter` is the policy that draws, also where another one speaks."""

    setup: Setup
    policy: Policy
    painter: UnifiedPolicy
    search: SearchBackend
    judge: Judge
    words: Prompts

    def described(self, request: Request) -> dict[str, Any]:
        """What the record of a request says beside how its picture was drawn."""
        setup = self.setup
        told: dict[str, Any] = {
            "id": request.id, "language": request.language, **({"name": request.name} if request.name else {}),
            "version": __version__, "policy": self.policy.name, "judge": self.judge.name,
            "prompts": self.words.name,
            "search": _search_name(setup.search) if setup.tools else "none", "redraw": setup.redraw,
            **setup.made_with(request, str(self.painter.provenance.get("weights", ""))),
            **({"given_id": request.given_id} if request.given_id else {}),
        }  # fmt: skip
        if setup.policy == "openai" and setup.endpoint is not None:
            told |= {"endpoint_model": setup.endpoint.model, "endpoint_mode": setup.endpoint.mode}
        judging = setup.judge_endpoint or setup.endpoint
        if self.judge.name == "openai" and judging is not None:
            told["judge_model"] = judging.model
        return told


def open_search(setup: Setup) -> SearchBackend:
    """The back end of a setup. Raises UserError for a name that is none, and for options that it does not take."""
    if not setup.tools or not setup.search:
        check_search_options(setup)
        return NoSearch()
    from unify_agent.search.registry import open_backend

    return open_backend(setup.search, **setup.search_options)


def check_search_options(setup: Setup) -> None:
    """Raises UserError for a search that is none, and for options that it does not take; opens nothing."""
    if setup.tools and setup.search:
        from unify_agent.search.registry import check_search

        check_search(setup.search, setup.search_options)
    elif setup.search_options:
        raise UserError(f"search option '{next(iter(setup.search_options))}': nothing is searched; leave it out")


def _search_name(spec: str) -> str:
    """The kind of a back end and the last part of its place: records hold no paths of a machine."""
    kind, _, place = spec.partition(":")
    return f"{kind}:{Path(place).name}" if place else kind


def client_of(service: Service | None, what: str) -> ChatClient:
    """A client of an endpoint. Raises UserError for an address or a key that is none."""
    if service is None:
        raise UserError(f"{what} openai: no endpoint is given; use --endpoint URL and --endpoint-model NAME")
    from unify_agent.judging import ChatClient, Endpoint

    return ChatClient(Endpoint.parse(service.url, service.model, key_env=service.key_env))


def clients_of(setup: Setup) -> dict[str, ChatClient]:
    """The clients that a setup needs, by who speaks through them: "policy", "judge"."""
    found = {}
    if setup.policy == "openai":
        found["policy"] = client_of(setup.endpoint, "--policy")
    if setup.judge == "openai":
        found["judge"] = client_of(setup.judge_endpoint or setup.endpoint, "--judge")
    return found


def assemble(setup: Setup) -> Crew:
    """Loads and connects everything. Raises UserError for whatever in the setup is wrong, the cheapest first."""
    clients = clients_of(setup)
    search = open_search(setup)
    judging = load_judging(setup.judging) if setup.judging else load_judging()
    if setup.judge == "index" and not isinstance(search, Index):
        raise UserError(f"--judge index reads the labels of an index; --search is {setup.search or 'none'}")

    from unify_agent.agent.load import load_policy  # torch

    painter, words = load_policy(
        setup.model, prompts=setup.words if setup.policy == "unified" else None, size=setup.size, aspect=setup.aspect,
        dtype=setup.dtype, spread=setup.spread, quant=setup.quant, **setup.sampler,
    )  # fmt: skip
    if setup.history and painter.preset == "isolated":
        raise UserError(
            f"--history: {setup.model} has layout isolated, which never draws from the history; leave it out"
        )
    painter.sampling = replace(painter.sampling, **setup.sampling)
    policy: Policy = painter
    if setup.policy == "openai":
        from unify_agent.agent.endpoint import EndpointPolicy

        words = load_prompts(setup.words or "full")
        mode = setup.endpoint.mode if setup.endpoint else "tools"
        policy = EndpointPolicy(clients["policy"], painter, mode)  # type: ignore[arg-type]
    kind = setup.judge or ("pixels" if painter.provenance["prompts"] == "compact" else "self")
    judge: Judge = PixelJudge()
    if kind == "self":
        from unify_agent.agent.selfjudge import SelfJudge

        judge = SelfJudge(painter, judging)
    elif kind == "openai":
        from unify_agent.agent.endpointjudge import EndpointJudge

        judge = EndpointJudge(clients["judge"], judging)
    elif kind == "index":
        assert isinstance(search, Index)
        judge = LabelJudge(search.labels, entities_in(search))
    return Crew(setup, policy, painter, search, judge, words)
