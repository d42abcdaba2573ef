"""The spec of a build: one YAML file. Unknown keys are refused with the nearest real one, the file and the place named.

    spec = read_spec(Path("build.yaml"))
    spec.services.teacher.concurrency
    spec.digest          # of what changes results: equal for all shards of one build

Paths in a spec are read from the folder of the file. Keys never stand in one: `key_env` names a variable.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Role = Literal["teacher", "metadata", "prompts", "references", "verifier"]
"""Who is asked over the chat protocol: the teacher of trajectories and recaptions, and so on."""


class Part(BaseModel):
    """Base of all parts: closed and frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Price(Part):
    """What a service takes, in one currency for the whole spec. prompt, completion: a million tokens."""

    prompt: float = Field(0.0, ge=0)
    completion: float = Field(0.0, ge=0)
    call: float = Field(0.0, ge=0)
    picture: float = Field(0.0, ge=0)


class Budget(Part):
    """What a service may take in all runs of a shard together; None is no bound. Reached, no further call is made."""

    money: float | None = Field(None, ge=0)
    calls: int | None = Field(None, ge=0)


class Paced(Part):
    """How a service is asked. rate: attempts a second. attempts: tries of one call, the first included."""

    concurrency: int = Field(8, ge=1, le=1024)
    rate: float | None = Field(None, gt=0)
    attempts: int = Field(5, ge=1, le=100)
    timeout: float = Field(120.0, gt=0)
    price: Price = Price()
    budget: Budget = Budget()


class Chat(Paced):
    """A model at an OpenAI-compatible endpoint.

    same_as: the role whose url, key, pace and budget this one shares; model, price, timeout and extra may differ.
    mode: whether the teacher calls tools natively or writes tags. extra: merged into the body of each request.
    """

    url: str = ""
    model: str = ""
    key_env: str | None = None
    same_as: Role | None = None
    mode: Literal["tools", "tags"] = "tools"
    temperature: float = Field(0.0, ge=0, le=2)
    extra: dict[str, object] = {}


class Image(Paced):
    """Who draws: an endpoint that speaks OpenAI's images and edits protocol, or our own model (`own`, a folder).

    size: `HEIGHTxWIDTH` in pixels. extra: merged into each request, for switches such as quality.
    """

    url: str = ""
    model: str = ""
    key_env: str | None = None
    own: str = ""
    size: str = "1024x1024"
    extra: dict[str, object] = {}


class Search(Paced):
    """Where evidence comes from. spec: as `--search` of infer.py. options: as `--search-option`."""

    spec: str = ""
    options: dict[str, str] = {}


class ServiceParts(Part):
    """All services. Roles that are not given are `same_as: teacher`. concurrency: calls at a time over all of them."""

    teacher: Chat
    metadata: Chat = Chat(same_as="teacher")
    prompts: Chat = Chat(same_as="teacher")
    references: Chat = Chat(same_as="teacher")
    verifier: Chat = Chat(same_as="teacher")
    image: Image
    search: Search
    concurrency: int | None = Field(None, ge=1)


class Prompts(Part):
    """Stage 1. languages: those asked for; none: those of the entity's names. words: a YAML file in place of ours."""

    per_entity: int = Field(2, ge=1, le=100)
    languages: tuple[str, ...] = ()
    words: Path | None = None


class Metadata(Part):
    """Stage 0: `common` entities, which any model knows, are left out unless keep_common."""

    keep_common: bool = False
    results: int = Field(5, ge=1, le=50)
    words: Path | None = None


class References(Part):
    """Equation 9: weights of the four criteria, what a reference must reach (0 to 10), how many are kept."""

    identity: float = Field(0.4, ge=0)
    salience: float = Field(0.2, ge=0)
    clarity: float = Field(0.2, ge=0)
    cleanliness: float = Field(0.2, ge=0)
    threshold: float = Field(6.0, ge=0, le=10)
    keep: int = Field(2, ge=1, le=2)
    candidates: int = Field(8, ge=1, le=50)


class Trajectories(Part):
    """Stages 2 and 3. words: prompts of the agent loop; recaption_words: of the recaption."""

    rounds: int = Field(8, ge=1, le=50)
    words: str = "full"
    recaption_words: Path | None = None
    recaption_tries: int = Field(3, ge=1, le=10)


class Verification(Part):
    """Stage 5. threshold: of each of the judge's criteria (0 to 10). trials: drawings before a task is dropped."""

    threshold: float = Field(6.0, ge=0, le=10)
    trials: int = Field(5, ge=1, le=20)
    words: Path | None = None


class Benchmark(Part):
    """share: of the entities, held out from training. mini: share of the benchmark in the stratified mini split."""

    share: float = Field(0.05, ge=0, lt=1)
    mini: float = Field(0.2, gt=0, le=1)


class Spec(Part):
    """A build. at_once: tasks in work at a time. `file`: where it was read from."""

    file: Path
    entities: Path
    out: Path
    seed: int = Field(0, ge=0)
    at_once: int = Field(64, ge=1, le=4096)
    services: ServiceParts
    metadata: Metadata = Metadata()
    prompts: Prompts = Prompts()
    references: References = References()
    trajectories: Trajectories = Trajectories()
    verification: Verification = Verification()
    benchmark: Benchmark = Benchmark()

    @property
    def digest(self) -> str:
        """SHA-256 of what changes results: concurrency, rates, budgets, prices, timeouts, `out`, `at_once` do not."""
        raise NotImplementedError

    def chat(self, role: Role) -> Chat:
        """The settings of a role, `same_as` resolved."""
        raise NotImplementedError


def read_spec(path: Path) -> Spec:
    """The spec in a file. Raises UserError: the file, the key and what is wrong with it."""
    raise NotImplementedError
