"""Maintenance cases as data: one YAML file a case, and `ID.LANG.yaml` with its words in another language.

docs/world_agent.md explains the format. In a narrative, `[e1: Ada bolts the door]` marks the words that requirement e1
comes from; marks are cut out before anyone sees the text, so every requirement traces to what the player reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml
from pydantic import Field, StrictInt, StrictStr, ValidationError

from eval.world_agent.contracts import Round
from eval.world_agent.engine import Engine, Row, Tier, world_of
from eval.world_agent.rounds import RoundFile, Rounds
from eval.world_agent.shorthand import cut, parameter_of, spec_of, write_of
from eval.world_agent.world import Capability, FieldSpec, Refusal, Strict, Tile, World
from unify_agent.errors import UserError, nearest
from unify_agent.files import digest

FOLDER = Path(__file__).parent / "cases"
SIZES = ("small", "medium", "large")


class _Tile(Strict):
    name: StrictStr
    terrain: StrictStr = ""
    at: tuple[StrictInt, StrictInt]
    to: list[StrictStr] = Field(default_factory=list)
    fields: dict[str, Any] = Field(default_factory=dict)


class _Capability(Strict):
    of: StrictStr | None = None
    with_: dict[str, Any] = Field(default_factory=dict, alias="with")
    guard: StrictStr | None = None
    write: StrictStr | None = None
    about: StrictStr = ""


class _File(Strict):
    id: StrictStr
    version: StrictInt = 1
    title: StrictStr
    genre: StrictStr
    size: StrictStr
    language: StrictStr = "en"
    facts: StrictStr = ""
    map: dict[str, _Tile]
    types: dict[str, dict[str, Any]]
    entities: dict[str, dict[str, Any]]
    capabilities: dict[str, _Capability]
    rounds: list[RoundFile] = Field(min_length=1)


class _Words(Strict):
    """Another language: the same marks in other words. Names that are not given stay."""

    title: StrictStr
    facts: StrictStr = ""
    names: dict[str, StrictStr] = Field(default_factory=dict)
    narratives: list[StrictStr]


@dataclass(frozen=True)
class Case:
    """A case, ready to run. `digest` covers everything that it was read from."""

    id: str
    version: int
    title: str
    genre: str
    size: str
    language: str
    facts: str
    marks: Mapping[str, str]
    tiles: Mapping[str, Tile]
    full: World
    rounds: tuple[Round, ...]
    files: tuple[Path, ...]
    digest: str

    def world(self, tier: Tier) -> World:
        """The initial world of a tier: everything, everything but capabilities, or the map alone."""
        world = world_of(dict(self.tiles))
        if tier != "extreme":
            for name, fields in self.full.types.items():
                world.add_type(name, fields)
            for name, entity in self.full.entities.items():
                world.add_entity(name, entity.type, None, {}, entity.name)
            for name, entity in self.full.entities.items():
                world.entities[name].holder = entity.holder
                world.entities[name].fields = dict(entity.fields)
        if tier == "easy":
            for name, capability in self.full.capabilities.items():
                world.add_capability(name, capability)
        return world

    def engine(self, tier: Tier, row: Callable[[Row], None] = lambda _: None) -> Engine:
        """An engine at the beginning. A round accepts twice the triggers of the reference course and six more."""
        limits = [2 * sum(map(len, round_.plan)) + 6 for round_ in self.rounds]
        return Engine(self.world(tier), tier, len(self.rounds), row, limits)

    @property
    def events(self) -> int:
        """How many events are scored."""
        return sum(len(round_.events) for round_ in self.rounds)


def known_cases(folder: Path = FOLDER / "maintain") -> dict[str, Path]:
    """Id and file of every case; `ID.zh` is the same case in Chinese."""
    return {path.name.removesuffix(".yaml"): path for path in sorted(folder.glob("*.yaml"))}


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML where only true and false are truth values: `on` and `no` are words that a story needs."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, rule) for tag, rule in rules if tag != "tag:yaml.org,2002:bool"]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping in which no key stands twice."""
        found = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if double := next((key for key in found if found.count(key) > 1), None):
            raise yaml.constructor.ConstructorError(None, None, f"the key {double!r} stands twice", node.start_mark)
        made: dict[Any, Any] = super().construct_mapping(node, deep)
        return made


_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"(?:true|false)$"), ["t", "f"])


def read_yaml(path: Path, what: str) -> Any:
    """A YAML file. Raises UserError with the line where it does not parse."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except FileNotFoundError:
        raise UserError(f"{path}: no such {what}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: this {what} is not UTF-8") from None
    except IsADirectoryError:
        raise UserError(f"{path}: a folder, not a {what}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: this {what} does not parse ({error})") from None


def parse_model(model: type[Strict], value: Any, where: str) -> Any:
    """Data from outside as a model. Raises UserError that names the first key that is wrong."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        faults = error.errors()
        unknown = [fault for fault in faults if fault["type"] == "extra_forbidden"]
        first = (unknown or faults)[0]
        key = ".".join(str(part) for part in first["loc"])
        if unknown:
            missing = [str(fault["loc"][-1]) for fault in faults if fault["type"] == "missing"]
            raise UserError(f"{where}: unknown key {key!r}{nearest(str(first['loc'][-1]), missing)}") from None
        raise UserError(f"{where}: {key or 'the whole'}: {first['msg']}") from None


def load(name: str | Path) -> Case:
    """A case by id (`mill`, `mill.zh`) or by the path of its file. Raises UserError."""
    path = Path(name) if str(name).endswith(".yaml") else known_cases().get(str(name))
    if path is None:
        raise UserError(f"no maintenance case {str(name)!r}{nearest(str(name), list(known_cases()))}")
    stem = path.name.removesuffix(".yaml")
    base, _, language = stem.partition(".")
    words, parts = None, [path]
    if language:
        words = parse_model(_Words, read_yaml(path, "translation"), str(path))
        path = path.with_name(f"{base}.yaml")
        parts.append(path)
    file = parse_model(_File, read_yaml(path, "case"), str(path))
    if file.id != base:
        raise UserError(f"{path}: its id is {file.id!r}; name the file {file.id}.yaml")
    if file.size not in SIZES:
        raise UserError(f"{path}: size {file.size!r}{nearest(file.size, SIZES)}")
    narratives = [round_.narrative for round_ in file.rounds]
    if words is not None:
        if len(words.narratives) != len(narratives):
            raise UserError(f"{parts[0]}: {len(words.narratives)} narratives for {len(narratives)} rounds")
        if unknown := words.names.keys() - file.map.keys() - file.entities.keys():
            named = [*file.map, *file.entities]
            raise UserError(f"{parts[0]}: names: nothing is called {min(unknown)!r}{nearest(min(unknown), named)}")
        narratives = words.narratives
    try:
        full = _world(file, words.names if words else {})
        facts, fact_marks = cut((words or file).facts)
        known = {"type": file.types, "entity": file.entities, "capability": file.capabilities}
        own = [each.model_copy(update={"text": {}}) for each in file.rounds] if words else file.rounds
        rounds = Rounds(own, narratives, fact_marks, known).parse()
    except ValidationError as error:  # of a field or capability written in full
        first = error.errors()[0]
        raise UserError(f"{parts[0]}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except Refusal as error:
        raise UserError(f"{parts[0]}: {error}") from None
    return Case(
        file.id, file.version, (words or file).title, file.genre, file.size, language or file.language, facts,
        fact_marks, full.tiles, full, rounds, tuple(parts), digest(*parts),
    )  # fmt: skip


# -- the world


def _world(file: _File, names: Mapping[str, str]) -> World:
    tiles = {
        key: Tile(names.get(key, tile.name), tile.terrain, tile.at, tuple(tile.to), dict(tile.fields))
        for key, tile in file.map.items()
    }
    for key, tile in tiles.items():  # roads go both ways
        for other in tile.neighbors:
            if other in tiles and key not in tiles[other].neighbors:
                tiles[other].neighbors = (*tiles[other].neighbors, key)
    world = World(tiles)
    for key, fields in file.types.items():
        world.add_type(key, {name: spec_of(value, f"type {key!r}, field {name!r}") for name, value in fields.items()})
    for key, entity in file.entities.items():
        if not isinstance(entity.get("is"), str):
            raise Refusal(f"entity {key!r}: 'is' names its type")
        world.add_entity(key, entity["is"], None, {}, names.get(key, str(entity.get("name", key))))
    for key, entity in file.entities.items():
        holder = entity.get("at")
        world.check_value(holder, FieldSpec(kind="ref"), f"entity {key!r}, at")
        world.entities[key].holder = holder
        for name, value in entity.items():
            if name not in ("is", "at", "name"):
                world.entities[key].fields[name] = world.check_value(
                    value, world.spec_of(key, name), f"entity {key!r}, field {name!r}"
                )
    if held := world.cycle():
        raise Refusal(f"entity {held!r} holds itself")
    for key, each in file.capabilities.items():
        where = f"capability {key!r}"
        params = {name: parameter_of(value, f"{where}, parameter {name!r}") for name, value in each.with_.items()}
        world.add_capability(
            key, Capability(owner_type=each.of, params=params, guard=each.guard, write=write_of(each.write, where),
                            about=each.about)
        )  # fmt: skip
    return world
