"""The state of a maintained world: tiles, types, entities with a holder, capabilities (facts/benchmarks.md 3.2).

    world = {step, tiles: {id: {name, terrain, at, neighbors, fields}}, types: {id: {fields: {name: spec}}},
             entities: {id: {type, name, holder: tile | entity | null, fields}},
             capabilities: {id: {owner_type, params: {name: spec}, guard, write: null | {target, field, op, value}}}}

Numbers are whole (a tenth of a degree is a unit, not a fraction). Whatever breaks a rule raises `Refusal`, one line
that says what would be right; the engine turns it into an error that the player can act on.
"""

from __future__ import annotations

import json
import keyword
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from eval.world_agent.expressions import Expression, ExpressionError, Path, Scalar
from unify_agent.errors import nearest
from unify_agent.files import digest

RESERVED = {"self", "holder", "type", "true", "false", "null", "min", "max", "abs", *keyword.kwlist}
"""Names that expressions use themselves."""
_ID = re.compile(r"[a-z][a-z0-9_]{0,47}")
_KINDS: dict[type, Literal["bool", "int", "str"]] = {bool: "bool", int: "int", str: "str"}
"""Kinds of the fields of tiles, which have no specification: a value keeps the kind that it begins with."""


class Refusal(Exception):
    """Something that the world's rules do not allow: one line that says what would be right."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))


class Strict(BaseModel):
    """Data from outside: unknown keys and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Plain = StrictBool | StrictInt | StrictStr | None


class FieldSpec(Strict):
    """What a field or a parameter may hold. `of` narrows a ref to tiles ('tile') or to one type of entities."""

    kind: Literal["int", "bool", "str", "enum", "ref"]
    default: Plain = None
    values: list[StrictStr] | None = None
    low: StrictInt | None = None
    high: StrictInt | None = None
    of: StrictStr | None = None


class Write(Strict):
    """One field-level write. `value` is an expression (a text is a name unless it is quoted), or a plain value."""

    target: StrictStr
    field: StrictStr
    op: Literal["set", "add", "move"] = "set"
    value: Plain


class Capability(Strict):
    """What entities of `owner_type` (or, without one, the world itself) can do."""

    owner_type: StrictStr | None = None
    params: dict[str, FieldSpec] = Field(default_factory=dict)
    guard: StrictStr | None = None
    write: Write | None = None
    about: StrictStr = ""


@dataclass
class Tile:
    """A place. `at`: column and row on the map."""

    name: str
    terrain: str = ""
    at: tuple[int, int] = (0, 0)
    neighbors: tuple[str, ...] = ()
    fields: dict[str, Scalar] = field(default_factory=dict)


@dataclass
class Entity:
    """A thing or a person. `holder` None: not on the map."""

    type: str
    name: str
    holder: str | None
    fields: dict[str, Scalar]


def check_id(name: Any, what: str) -> str:
    """An id that expressions can use. Raises Refusal."""
    if not isinstance(name, str) or not _ID.fullmatch(name) or name in RESERVED:
        raise Refusal(f"{what} id {str(name)[:40]!r}: small letters, digits and '_', a letter first, no reserved word")
    return name


def check_spec(spec: FieldSpec, where: str) -> None:
    """Whether a field's specification makes sense. Raises Refusal."""
    if (spec.values is not None) != (spec.kind == "enum"):
        raise Refusal(f"{where}: 'values' belongs to kind enum, and enum needs it")
    if spec.values is not None and (not spec.values or len(set(spec.values)) != len(spec.values)):
        raise Refusal(f"{where}: the values of an enum are different texts, at least one")
    if spec.kind != "int" and (spec.low is not None or spec.high is not None):
        raise Refusal(f"{where}: 'low' and 'high' belong to kind int")
    if spec.low is not None and spec.high is not None and spec.low > spec.high:
        raise Refusal(f"{where}: low {spec.low} lies above high {spec.high}")
    if spec.of is not None and spec.kind != "ref":
        raise Refusal(f"{where}: 'of' belongs to kind ref")


def _initial(spec: FieldSpec) -> Scalar:
    if spec.default is not None or spec.kind == "ref":
        return spec.default
    if spec.kind == "enum":
        assert spec.values is not None
        return spec.values[0]
    plain: dict[str, Scalar] = {"int": spec.low or 0, "bool": False, "str": ""}
    return plain[spec.kind]


class World:
    """The whole state. Definitions are added once and never replaced; the engine alone writes fields."""

    def __init__(self, tiles: dict[str, Tile]):
        self.step = 0
        self.tiles = tiles
        self.types: dict[str, dict[str, FieldSpec]] = {}
        self.entities: dict[str, Entity] = {}
        self.capabilities: dict[str, Capability] = {}
        self._parsed: dict[str, tuple[Expression | None, Expression | None]] = {}
        self._defined: dict[str, dict[str, Any]] = {"types": {}, "capabilities": {}}
        self._defined_digest = ""
        for name, tile in tiles.items():
            check_id(name, "tile")
            for other in tile.neighbors:
                if other not in tiles:
                    raise Refusal(f"tile {name!r}: neighbor {other!r} is no tile{nearest(other, list(tiles))}")
            for key, value in tile.fields.items():
                where = f"tile {name!r}, field {key!r}"
                check_id(key, f"{where}:")
                if type(value) not in _KINDS:
                    raise Refusal(f"{where}: {str(value)[:60]!r} is no whole number, truth value or text")
                self.check_value(value, FieldSpec(kind=_KINDS[type(value)]), where)
        ground = {name: [t.name, t.terrain, list(t.at), list(t.neighbors)] for name, t in sorted(tiles.items())}
        self._map_digest = digest(json.dumps(ground, ensure_ascii=False))

    # -- building

    def _free(self, name: str, what: str) -> None:
        check_id(name, what)
        taken = {"entity": [*self.tiles, *self.entities], "type": self.types, "capability": self.capabilities}[what]
        if name in taken or (what == "type" and name in ("tile", "entity")):
            raise Refusal(f"{what} id {name!r} is taken; choose another")

    def add_type(self, name: str, fields: dict[str, FieldSpec]) -> None:
        """Define a type. Raises Refusal."""
        self._free(name, "type")
        for key, spec in fields.items():
            where = f"type {name!r}, field {key!r}"
            check_id(key, f"{where}:")
            check_spec(spec, where)
            if spec.of not in (None, "tile", name) and spec.of not in self.types:
                raise Refusal(f"{where}: no type {spec.of!r}{nearest(str(spec.of), [*self.types, 'tile'])}")
            if spec.kind != "ref":
                self.check_value(_initial(spec), spec, where)
            elif spec.default is not None:
                raise Refusal(f"{where}: a ref begins empty; set it on the entity")
        self.types[name] = dict(fields)
        dumped = {key: spec.model_dump(exclude_defaults=True) for key, spec in fields.items()}
        self._note("types", name, {"fields": dumped})

    def add_entity(self, name: str, type_: str, holder: str | None, fields: dict[str, Any], title: str = "") -> None:
        """Create an entity. Raises Refusal."""
        self._free(name, "entity")
        if type_ not in self.types:
            raise Refusal(f"entity {name!r}: no type {type_!r}{nearest(type_, list(self.types))}")
        if holder is not None and holder not in self.tiles and holder not in self.entities:
            raise Refusal(f"entity {name!r}: holder {holder!r} is neither a tile nor an entity")
        specs = self.types[type_]
        for key in fields:
            if key not in specs:
                raise Refusal(f"entity {name!r}: type {type_!r} has no field {key!r}{nearest(key, list(specs))}")
        values = {key: fields.get(key, _initial(spec)) for key, spec in specs.items()}
        for key, spec in specs.items():
            self.check_value(values[key], spec, f"entity {name!r}, field {key!r}")
        self.entities[name] = Entity(type_, title or name, holder, values)

    def add_capability(self, name: str, capability: Capability) -> None:
        """Define a capability. Raises Refusal."""
        self._free(name, "capability")
        where = f"capability {name!r}"
        if capability.owner_type is not None and capability.owner_type not in self.types:
            raise Refusal(
                f"{where}: no type {capability.owner_type!r}{nearest(capability.owner_type, list(self.types))}"
            )
        for key, spec in capability.params.items():
            check_id(key, f"{where}: parameter")
            check_spec(spec, f"{where}, parameter {key!r}")
            if spec.of not in (None, "tile") and spec.of not in self.types:
                known = nearest(str(spec.of), [*self.types, "tile"])
                raise Refusal(f"{where}, parameter {key!r}: no type {spec.of!r}{known}")
        heads = [*capability.params, *(["self"] if capability.owner_type else [])]
        guard = self._parse(capability.guard, f"{where}, guard", heads)
        value = None
        if (write := capability.write) is not None:
            if write.target not in heads and write.target not in self.tiles and write.target not in self.entities:
                raise Refusal(f"{where}: target {write.target!r} is no parameter, entity or tile")
            if (write.op == "move") != (write.field == "holder"):
                raise Refusal(f"{where}: op 'move' and field 'holder' go together")
            if isinstance(write.value, str):
                value = self._parse(write.value, f"{where}, value", heads)
        self.capabilities[name] = capability
        self._note("capabilities", name, capability.model_dump(exclude_defaults=True))
        self._parsed[name] = guard, value

    def _note(self, kind: str, name: str, definition: dict[str, Any]) -> None:
        self._defined[kind][name] = definition
        self._defined_digest = ""  # computed anew when it's next asked for

    def _parse(self, text: str | None, where: str, heads: list[str]) -> Expression | None:
        if text is None:
            return None
        try:
            expression = Expression(text)
        except ExpressionError as error:
            raise Refusal(f"{where}: {error}") from None
        for path in expression.paths:
            if path[0] not in heads and path[0] not in self.tiles and path[0] not in self.entities:
                known = nearest(path[0], [*heads, *self.tiles, *self.entities])
                raise Refusal(f"{where}: unknown name {path[0]!r}{known} (a text needs quotes: '{path[0]}')")
        return expression

    def parsed(self, capability: str) -> tuple[Expression | None, Expression | None]:
        """The parsed guard and value of a capability."""
        return self._parsed[capability]

    # -- reading

    def check_value(self, value: Any, spec: FieldSpec, where: str) -> Scalar:
        """The value, when the field may hold it. Raises Refusal."""
        good = {
            "int": type(value) is int, "bool": type(value) is bool, "str": type(value) is str,
            "enum": type(value) is str and value in (spec.values or ()), "ref": value is None or type(value) is str,
        }[spec.kind]  # fmt: skip
        if not good:
            wanted = "one of " + ", ".join(spec.values or ()) if spec.kind == "enum" else f"kind {spec.kind}"
            hint = " (whole numbers only: choose a smaller unit)" if type(value) is float else ""
            raise Refusal(f"{where}: {str(value)[:60]!r} given, wanted {wanted}{hint}")
        if spec.kind == "int":
            if (spec.low is not None and value < spec.low) or (spec.high is not None and value > spec.high):
                raise Refusal(f"{where}: {value} lies outside {spec.low}..{spec.high}")
            if abs(value) > 10**12:
                raise Refusal(f"{where}: {value} is too large")
        if spec.kind == "str" and len(value) > 500:
            raise Refusal(f"{where}: at most 500 characters")
        if spec.kind == "ref" and value is not None:
            self._check_ref(value, spec.of, where)
        return value

    def _check_ref(self, value: str, of: str | None, where: str) -> None:
        if value not in self.tiles and value not in self.entities:
            raise Refusal(f"{where}: no entity or tile {value!r}{nearest(value, [*self.entities, *self.tiles])}")
        if of == "tile" and value not in self.tiles:
            raise Refusal(f"{where}: {value!r} is no tile")
        if of not in (None, "tile") and (value not in self.entities or self.entities[value].type != of):
            raise Refusal(f"{where}: {value!r} is no {of}")

    def spec_of(self, owner: str, key: str) -> FieldSpec:
        """The specification of `owner.key`. Raises Refusal when there is no such field."""
        if owner in self.entities:
            specs = self.types[self.entities[owner].type]
            if key in specs:
                return specs[key]
            raise Refusal(f"{owner!r} has no field {key!r}{nearest(key, list(specs))}")
        tile = self.tiles[owner]
        if key not in tile.fields:
            raise Refusal(f"tile {owner!r} has no field {key!r}{nearest(key, list(tile.fields))}")
        return FieldSpec(kind=_KINDS[type(tile.fields[key])])

    def read(self, owner: str, key: str) -> Scalar:
        """The value of a field, of `holder` or of `type`. Raises Refusal."""
        if owner in self.entities:
            entity = self.entities[owner]
            if key == "holder":
                return entity.holder
            if key == "type":
                return entity.type
            self.spec_of(owner, key)
            return entity.fields[key]
        self.spec_of(owner, key)
        return self.tiles[owner].fields[key]

    def look(self, path: Path, names: dict[str, Scalar]) -> Scalar:
        """The value of a dotted name: `names` first, then ids. Raises ExpressionError."""
        value: Scalar = names[path[0]] if path[0] in names else path[0]
        for key in path[1:]:
            if not isinstance(value, str) or (value not in self.entities and value not in self.tiles):
                raise ExpressionError(f"{'.'.join(path)}: {value!r} is no entity or tile, so it has no {key!r}")
            try:
                value = self.read(value, key)
            except Refusal as error:
                raise ExpressionError(str(error)) from None
        return value

    def write(self, path: str, value: Scalar) -> None:
        """Set the field or the holder at `owner.key` without a check: for the engine and for replays."""
        owner, key = path.split(".")
        if key == "holder":
            assert value is None or isinstance(value, str)
            self.entities[owner].holder = value
        elif owner in self.entities:
            self.entities[owner].fields[key] = value
        else:
            self.tiles[owner].fields[key] = value

    def cycle(self) -> str | None:
        """An entity that holds itself, directly or through others; None when there is none."""
        clear: set[str] = set()
        for start in self.entities:
            seen: list[str] = []
            name: str | None = start
            while name in self.entities and name not in clear:
                if name in seen:
                    return name
                seen.append(name)
                name = self.entities[name].holder
            clear.update(seen)
        return None

    def as_dict(self) -> dict[str, Any]:
        """The whole state as JSON."""
        tiles = {
            name: {"name": t.name, "terrain": t.terrain, "at": list(t.at), "neighbors": list(t.neighbors),
                   "fields": dict(t.fields)}
            for name, t in self.tiles.items()
        }  # fmt: skip
        return {
            "step": self.step, "tiles": tiles, "types": dict(self._defined["types"]), "entities": self._entities(),
            "capabilities": dict(self._defined["capabilities"]),
        }  # fmt: skip

    def _entities(self) -> dict[str, Any]:
        return {
            name: {"type": e.type, "name": e.name, "holder": e.holder, "fields": dict(e.fields)}
            for name, e in self.entities.items()
        }

    def hash(self) -> str:
        """SHA-256 over the whole state; the order in which things were defined does not matter."""
        if not self._defined_digest:
            self._defined_digest = digest(_canonical(self._defined))
        ground = {name: tile.fields for name, tile in self.tiles.items() if tile.fields}
        return digest(_canonical([self.step, self._map_digest, self._defined_digest, ground, self._entities()]))


def _canonical(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
