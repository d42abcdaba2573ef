"""The maintenance engine: it checks structure and writes atomically, and supplies nothing (facts/benchmarks.md 3.3).

A batch of triggers is one set of concurrent events: every trigger is checked against the same state before it, and
either all are applied and Step grows by one, or none is and nothing changes. Each operation, accepted or not, is a row
of an append-only log; a round's end freezes a snapshot, and what is frozen is never touched again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, ValidationError

from eval.world_agent.expressions import ExpressionError, Scalar
from eval.world_agent.world import Capability, FieldSpec, Plain, Refusal, Strict, Tile, World
from unify_agent.errors import UserError, nearest

Tier = Literal["easy", "hard", "extreme"]
TIERS: tuple[Tier, ...] = ("easy", "hard", "extreme")
BUILDS: dict[str, tuple[str, ...]] = {
    "easy": (), "hard": ("define_capability",), "extreme": ("define_type", "create_entity", "define_capability"),
}  # fmt: skip
"""What a player may build in each tier; the rest is given."""

Row = dict[str, Any]
"""seq, call, round, step_before, step_after, kind, batch, accepted, errors, state_hash."""


class Trigger(Strict):
    """One use of a capability. `actor` is left out for a capability of the world itself."""

    capability: str
    actor: str | None = None
    args: dict[str, Plain] = Field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """The state as it was when a round ended. `rows`: rows of the log up to and with that end."""

    round: int
    step: int
    rows: int
    state_hash: str
    state: dict[str, Any]


class Engine:
    """One world under one tier for a number of rounds. `row` is called with each new row of the log. `limits`: how many
    triggers each round accepts (None: any number), so that nobody hits what a story tells by doing everything.

    `call` names what the next operation comes from (a turn of the conversation); it is written into the row.
    """

    def __init__(
        self, world: World, tier: Tier, rounds: int, row: Callable[[Row], None] = lambda _: None,
        limits: Sequence[int] | None = None,
    ):  # fmt: skip
        self.world, self.tier, self.rounds, self.limits = world, tier, rounds, limits
        self._done = 0
        self.round, self.call = 1, ""
        self.log: list[Row] = []
        self.snapshots: list[Snapshot] = []
        self._row = row
        self._hash = world.hash()

    @property
    def over(self) -> bool:
        """Whether every round has ended."""
        return self.round > self.rounds

    @property
    def left(self) -> int | None:
        """How many triggers this round still accepts; None: any number."""
        return None if self.limits is None or self.over else self.limits[self.round - 1] - self._done

    # -- building: each operation stands alone and costs no Step

    def define_type(self, id: str, fields: dict[str, FieldSpec]) -> Row:
        """Define a type of entities."""
        record = {"id": id, "fields": {key: spec.model_dump(exclude_defaults=True) for key, spec in fields.items()}}
        return self._build("define_type", record, lambda: self.world.add_type(id, fields))

    def create_entity(self, id: str, type: str, holder: str | None, fields: dict[str, Any], name: str = "") -> Row:
        """Create an entity of a defined type."""
        record = {"id": id, "type": type, "holder": holder, "fields": fields, "name": name}
        return self._build("create_entity", record, lambda: self.world.add_entity(id, type, holder, fields, name))

    def define_capability(self, id: str, capability: Capability) -> Row:
        """Define what entities of a type, or the world itself, can do."""
        record = {"id": id, **capability.model_dump(exclude_defaults=True)}
        return self._build("define_capability", record, lambda: self.world.add_capability(id, capability))

    def _build(self, kind: str, record: dict[str, Any], build: Callable[[], None]) -> Row:
        errors = []
        if self.over:
            errors.append("every round has ended")
        elif kind not in BUILDS[self.tier]:
            errors.append(f"{kind} is not open in tier {self.tier}: the world is given")
        else:
            try:
                build()
            except Refusal as refusal:
                errors.append(str(refusal))
        return self._append(kind, [record], errors, None)

    # -- running

    def trigger(self, batch: Sequence[Trigger]) -> Row:
        """Concurrent triggers: all are applied and Step grows by one, or nothing happens."""
        seq, errors, found = len(self.log) + 1, [], []
        records: list[dict[str, Any]] = []
        if self.over:
            errors.append("every round has ended")
        if not batch:
            errors.append("a batch holds at least one trigger")
        if self.left is not None and len(batch) > self.left:
            errors.append(f"this round accepts {self.left} more triggers, not {len(batch)}")
        for number, trigger in enumerate(batch, 1):
            name = f"t{seq}.{number}"
            record = {"trigger_id": name, **trigger.model_dump(), "write": None}
            records.append(record)
            try:
                record["write"] = self._effect(trigger)
            except (Refusal, ExpressionError) as error:
                errors.append(f"{name} ({trigger.capability[:48]}): {error}")
        written: dict[str, str] = {}
        for record in records:
            if (write := record["write"]) is not None:
                if write["path"] in written:
                    errors.append(f"{record['trigger_id']} and {written[write['path']]} both write {write['path']}")
                written[write["path"]] = record["trigger_id"]
                found.append(write)
        if not errors:
            errors += self._apply(found)
        if errors:
            for record in records:
                record["write"] = None
        else:
            self._done += len(batch)
        return self._append("trigger", records, errors, None if errors else self.world.step)

    def _effect(self, trigger: Trigger) -> dict[str, Any] | None:
        world = self.world
        capability = world.capabilities.get(trigger.capability)
        if capability is None:
            known = nearest(trigger.capability, list(world.capabilities))
            raise Refusal(f"no capability {trigger.capability[:48]!r}{known}")
        names: dict[str, Scalar] = {}
        if capability.owner_type is None:
            if trigger.actor is not None:
                raise Refusal("a capability of the world itself has no actor; leave 'actor' out")
        else:
            actor = trigger.actor
            if actor is None or actor not in world.entities:
                known = nearest(str(actor), [k for k, e in world.entities.items() if e.type == capability.owner_type])
                raise Refusal(f"actor {actor!r} is no entity{known}")
            if world.entities[actor].type != capability.owner_type:
                raise Refusal(f"actor {actor!r} is a {world.entities[actor].type}, not a {capability.owner_type}")
            names["self"] = actor
        for key in trigger.args:
            if key not in capability.params:
                raise Refusal(f"no parameter {key!r}{nearest(key, list(capability.params))}")
        for key, spec in capability.params.items():
            if key not in trigger.args and spec.default is None:
                raise Refusal(f"parameter {key!r} is missing")
            names[key] = world.check_value(trigger.args.get(key, spec.default), spec, f"parameter {key!r}")
        guard, value = world.parsed(trigger.capability)
        if guard is not None and not guard.truth(lambda path: world.look(path, names)):
            raise Refusal(f"its guard does not hold: {guard.text}")
        write = capability.write
        if write is None:
            return None
        target = names.get(write.target, write.target)
        if not isinstance(target, str):
            raise Refusal(f"target {write.target!r} is {target!r}, no entity or tile")
        new = write.value if value is None else value.evaluate(lambda path: world.look(path, names))
        if write.op == "move":
            if target not in world.entities:
                raise Refusal(f"{target!r} is no entity, so it cannot be moved")
            world.check_value(new, FieldSpec(kind="ref"), "holder")
            return {"path": f"{target}.holder", "old": world.entities[target].holder, "new": new}
        if target not in world.entities and target not in world.tiles:
            raise Refusal(f"target {target!r} is no entity or tile{nearest(target, [*world.entities, *world.tiles])}")
        spec = world.spec_of(target, write.field)
        old = world.read(target, write.field)
        if write.op == "add":
            if type(old) is not int or type(new) is not int:
                raise Refusal(f"op 'add' wants whole numbers, not {old!r} and {new!r}")
            new = old + new
        return {"path": f"{target}.{write.field}", "old": old, "new": world.check_value(new, spec, write.field)}

    def _apply(self, writes: list[dict[str, Any]]) -> list[str]:
        for write in writes:
            self.world.write(write["path"], write["new"])
        held = self.world.cycle() if any(write["path"].endswith(".holder") for write in writes) else None
        if held is not None:
            for write in writes:
                self.world.write(write["path"], write["old"])
            return [f"{held!r} would hold itself"]
        self.world.step += 1
        return []

    def end_round(self, forced: bool = False) -> Row:
        """End the round and freeze its snapshot. `forced`: the player did not end it, the runner did."""
        if self.over:
            return self._append("end_round", [], ["every round has ended"], None)
        row = self._append("end_round", [{"forced": forced}], [], None)
        state = json.loads(json.dumps(self.world.as_dict()))
        self.snapshots.append(Snapshot(self.round, self.world.step, len(self.log), self._hash, state))
        self.round, self._done = self.round + 1, 0
        return row

    def _append(self, kind: str, batch: list[dict[str, Any]], errors: list[str], step_after: int | None) -> Row:
        if not errors and kind != "end_round":
            self._hash = self.world.hash()
        row: Row = {
            "seq": len(self.log) + 1, "call": self.call, "round": self.round,
            "step_before": self.world.step if step_after is None else step_after - 1, "step_after": step_after,
            "kind": kind, "batch": batch, "accepted": not errors, "errors": errors, "state_hash": self._hash,
        }  # fmt: skip
        self.log.append(row)
        self._row(row)
        return row


def replay(engine: Engine, log: Sequence[Row], where: str = "log") -> Engine:
    """Apply saved rows to an engine at its beginning and compare every hash. Raises UserError where they differ.

    Rejected rows are repeated too: they must be rejected again, with the same words.
    """
    for number, row in enumerate(log, 1):
        try:
            made = _again(engine, row)
        except (ValidationError, AttributeError, KeyError, IndexError, TypeError):
            raise UserError(f"{where}: row {number} is no row of such a log") from None
        if made != row:
            keys = [key for key in made if made[key] != row.get(key)]
            raise UserError(f"{where}: row {row['seq']} ({row['kind']}) replays differently in {', '.join(keys)}")
    return engine


def _again(engine: Engine, row: Row) -> Row:
    """Do what a row tells."""
    engine.call = row.get("call", "")
    made_by_engine = ("trigger_id", "write") if row["kind"] == "trigger" else ()
    items = [{key: value for key, value in item.items() if key not in made_by_engine} for item in row["batch"]]
    match row["kind"]:
        case "define_type":
            return engine.define_type(items[0]["id"], {key: FieldSpec(**s) for key, s in items[0]["fields"].items()})
        case "create_entity":
            return engine.create_entity(**items[0])
        case "define_capability":
            name = items[0].pop("id")
            return engine.define_capability(name, Capability.model_validate(items[0]))
        case "trigger":
            return engine.trigger([Trigger.model_validate(item) for item in items])
        case "end_round":
            return engine.end_round(bool(items and items[0]["forced"]))
        case kind:
            raise KeyError(kind)


def world_of(tiles: dict[str, Tile]) -> World:
    """A world with nothing but its map, whose tiles are copied."""
    return World({name: Tile(t.name, t.terrain, t.at, t.neighbors, dict(t.fields)) for name, t in tiles.items()})
