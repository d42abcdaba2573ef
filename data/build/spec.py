"""The spec of a build: one YAML file. Unknown keys are refused with the nearest real one, the file and the place named.

    spec = read_spec(Path("build.yaml"))
    spec.services.teacher.concurrency
    spec.digest          # of what changes results: equal for all shards of one build

Paths in a spec are read from the folder of the file. Keys never stand in one: `key_env` names a variable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from unify_agent.errors import UserError, nearest
from unify_agent.files import digest

Role = Literal["teacher", "metadata", "prompts", "references", "verifier"]
"""Who is asked over the chat protocol: the teacher of trajectories and recaptions, and so on."""
WORDS = (("metadata", "words"), ("prompts", "words"), ("trajectories", "words"), ("trajectories", "recaption_words"),
         ("verification", "words"))  # fmt: skip
"""Keys that may name a file of words in place of ours."""
SHARED = ("url", "key_env", "concurrency", "rate", "budget")
"""What a role takes over from the one that it is the `same_as`."""


class Part(BaseModel):
    """Base of all parts: closed and frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


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

    @model_validator(mode="after")
    def _priced(self) -> Paced:
        if self.budget.money is not None and not any(self.price.model_dump().values()):
            raise ValueError("budget.money is never reached without a price; give one, or budget.calls")
        return self


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

    @model_validator(mode="after")
    def _complete(self) -> Chat:
        if self.same_as is None and not (self.url and self.model):
            raise ValueError("give url and model, or same_as: teacher")
        if self.same_as is not None and (given := [name for name in SHARED if name in self.model_fields_set]):
            raise ValueError(f"{given[0]} is that of {self.same_as}, whom this service is the same as; leave one out")
        return self


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

    @field_validator("size")
    @classmethod
    def _is_size(cls, value: str) -> str:
        if re.fullmatch(r"[1-9]\d{1,4}x[1-9]\d{1,4}", value) is None:
            raise ValueError(f"{value!r} is no HEIGHTxWIDTH")
        return value

    @model_validator(mode="after")
    def _complete(self) -> Image:
        if bool(self.own) == bool(self.url):
            raise ValueError("give either url (and model) of an endpoint, or own, the folder of a model")
        return self


class Search(Paced):
    """Where evidence comes from. spec: as `--search` of infer.py. options: as `--search-option`."""

    spec: str
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

    @model_validator(mode="after")
    def _ends(self) -> ServiceParts:
        for role in get_args(Role):
            seen = [role]
            while (other := getattr(self, seen[-1]).same_as) is not None:
                if other in seen:
                    raise ValueError(f"{role}: same_as goes round in a circle ({' -> '.join([*seen, other])})")
                seen.append(other)
        return self


class Prompts(Part):
    """Stage 1. languages: those asked for, as far as an entity has names in them; none: its own. words: a YAML file in
    place of ours."""

    per_entity: int = Field(2, ge=1, le=100)
    languages: tuple[str, ...] = ()
    words: Path | None = None

    @field_validator("languages")
    @classmethod
    def _are_codes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := next((each for each in value if re.fullmatch(r"[a-z]{2,3}", each) is None), None):
            raise ValueError(f"{wrong!r} is no code of a language, such as en or zh")
        return value


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

    @property
    def weights(self) -> dict[str, float]:
        """By criterion, summing to 1."""
        given = {name: getattr(self, name) for name in ("identity", "salience", "clarity", "cleanliness")}
        return {name: weight / sum(given.values()) for name, weight in given.items()}

    @model_validator(mode="after")
    def _weighed(self) -> References:
        if not self.identity + self.salience + self.clarity + self.cleanliness:
            raise ValueError("one of the weights must be more than 0")
        return self


class Trajectories(Part):
    """Stages 2 and 3. words: prompts of the agent loop; recaption_words: of the recaption.

    endings: of trajectories that are trained on (unify_agent/agent/episode.py).
    """

    rounds: int = Field(8, ge=1, le=50)
    words: str = "full"
    recaption_words: Path | None = None
    recaption_tries: int = Field(3, ge=1, le=10)
    endings: tuple[Literal["grounded", "text_only", "direct", "no_reference"], ...] = (
        "grounded", "text_only", "direct",
    )  # fmt: skip


class Verification(Part):
    """Stage 5. threshold: of each of the judge's criteria (0 to 10). trials: drawings before a task is dropped.

    without_seeds: an entity without seed pictures is refused before anything is spent on it, or its drawings are
    compared with the references that were found, which the record then says.
    """

    threshold: float = Field(6.0, ge=0, le=10)
    trials: int = Field(5, ge=1, le=20)
    without_seeds: Literal["refuse", "references"] = "refuse"
    words: Path | None = None


class Benchmark(Part):
    """share: of the entities, held out from training. mini: share of the benchmark in the stratified mini split."""

    share: float = Field(0.05, ge=0, lt=1)
    mini: float = Field(0.2, gt=0, le=1)


class Spec(Part):
    """A build. at_once: tasks in work at a time. currency: of prices and budgets, a label. patience: seconds that a
    service may answer nothing at all before the run stops. strict: a row of the list that is refused stops it, too.
    `file`: where it was read from; `parts`: digests of what changes results, by the name of the part."""

    entities: Path
    out: Path
    seed: int = Field(0, ge=0)
    at_once: int = Field(64, ge=1, le=4096)
    strict: bool = False
    currency: str = "USD"
    patience: float = Field(30.0, ge=0)
    services: ServiceParts
    metadata: Metadata = Metadata()
    prompts: Prompts = Prompts()
    references: References = References()
    trajectories: Trajectories = Trajectories()
    verification: Verification = Verification()
    benchmark: Benchmark = Benchmark()
    file: Path = Field(Path(), exclude=True)
    parts: dict[str, str] = Field({}, exclude=True)

    @property
    def digest(self) -> str:
        """SHA-256 of what changes results: concurrency, rates, budgets, prices, timeouts, `out`, `at_once` do not."""
        return digest(json.dumps(self.parts, sort_keys=True))

    def chat(self, role: Role) -> Chat:
        """The settings of a role, `same_as` resolved."""
        given: Chat = getattr(self.services, role)
        if given.same_as is None:
            return given
        base = self.chat(given.same_as)
        return base.model_copy(update={name: getattr(given, name) for name in given.model_fields_set - {"same_as"}})

    def root(self, role: Role) -> Role:
        """The role whose pace and budget this one shares: itself, or where its chain of `same_as` ends."""
        given: Chat = getattr(self.services, role)
        return role if given.same_as is None else self.root(given.same_as)


def read_spec(path: Path) -> Spec:
    """The spec in a file. Raises UserError: the file, the key and what is wrong with it."""
    try:
        value = yaml.load(path.read_text(encoding="utf-8"), _Once)
    except FileNotFoundError:
        raise UserError(f"{path}: no such spec") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: this spec cannot be read ({error})") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: this spec does not parse ({error})") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: a spec is a table of keys and values")
    for name in ("file", "parts"):
        if name in value:
            raise UserError(f"{path}: {name}: not a key of a spec")
    try:
        spec = Spec.model_validate(value)
    except ValidationError as error:
        raise UserError(f"{path}: {_told(error, value)}") from None
    return _placed(spec, path)


class _Once(yaml.SafeLoader):
    """YAML in which a key stands once."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if twice := [key for number, key in enumerate(keys) if key in keys[:number]]:
            raise yaml.constructor.ConstructorError(None, None, f"{twice[0]!r} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _told(error: ValidationError, value: Any) -> str:
    """The first thing that is wrong, in one line."""
    first = error.errors()[0]
    where = [str(part) for part in first["loc"]]
    if first["type"] == "extra_forbidden":
        known = list(_part_at(where[:-1]).model_fields)
        known = [name for name in known if name not in ("file", "parts")]
        return f"{'.'.join(where)}: not a key of a spec{nearest(where[-1], known)}"
    if first["type"] == "missing":
        return f"{'.'.join(where)}: this key is missing"
    said = first["msg"].removeprefix("Value error, ")
    return f"{'.'.join(where)}: {said}" if where else said


def _part_at(where: Sequence[str]) -> type[BaseModel]:
    """The part that a path of keys leads to."""
    part: type[BaseModel] = Spec
    for name in where:
        part = part.model_fields[name].annotation  # type: ignore[assignment]
    return part


def _placed(spec: Spec, path: Path) -> Spec:
    """The spec with its paths read from its own folder, and the digests of its parts."""
    folder = path.resolve().parent

    def place(given: Path | str) -> Path:
        return folder / Path(given).expanduser()

    changes: dict[str, Any] = {"file": path, "entities": place(spec.entities), "out": place(spec.out)}
    for name, key in WORDS:
        part = changes.get(name, getattr(spec, name))
        given = getattr(part, key)
        if given is not None and str(given).endswith((".yaml", ".yml")):
            placed = place(given)
            changes[name] = part.model_copy(update={key: type(given)(placed) if isinstance(given, str) else placed})
    services = spec.services
    image, search = services.image, services.search
    if image.own and place(image.own).exists():
        image = image.model_copy(update={"own": str(place(image.own))})
    kind, _, rest = search.spec.partition(":")
    if kind in ("index", "replay"):
        search = search.model_copy(update={"spec": f"{kind}:{place(rest)}"})
    changes["services"] = services.model_copy(update={"image": image, "search": search})
    made = spec.model_copy(update=changes)
    return made.model_copy(update={"parts": _parts(spec, made)})


def _parts(written: Spec, placed: Spec) -> dict[str, str]:
    """Digests of what changes results, by part; of files their contents, so that machines may differ in their paths."""
    said: dict[str, Any] = {"seed": written.seed}
    for name in ("metadata", "prompts", "references", "trajectories", "verification", "benchmark"):
        said[name] = getattr(written, name).model_dump(mode="json")
    for name, key in WORDS:
        file = getattr(getattr(placed, name), key)
        if file is not None and str(file).endswith((".yaml", ".yml")):
            said[name][key] = _content(placed.file, f"{name}.{key}", Path(file))
    for role in get_args(Role):
        chat = placed.chat(role)
        said[f"services.{role}"] = chat.model_dump(mode="json", include={"model", "mode", "temperature", "extra"})
    image, search = written.services.image, written.services.search
    drawn = image.model_dump(mode="json", include={"model", "size", "extra"})
    said["services.image"] = drawn | {"own": Path(image.own).name}
    said["services.search"] = [search.spec.partition(":")[0], search.options]
    parts = {name: digest(json.dumps(value, sort_keys=True)) for name, value in said.items()}
    return parts | {"entities": _content(placed.file, "entities", placed.entities)}


def _content(spec: Path, key: str, file: Path) -> str:
    try:
        return digest(file)
    except OSError as error:
        raise UserError(f"{spec}: {key}: {file} cannot be read ({error.strerror})") from None
