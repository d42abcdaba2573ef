"""A small world, a small case and a small family, for the tests of the world-agent benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eval.world_agent.cases import Case, load
from eval.world_agent.deduce.family import Family, load_family
from eval.world_agent.engine import Engine, Tier, Trigger
from eval.world_agent.judging import worksheet
from eval.world_agent.world import Capability, FieldSpec, Tile, World, Write

CASE = """
id: tiny
title: Two rooms
genre: test
size: small
facts: "Ann and Bob stand in the den; Bob is never to leave. [p1: After the lamp is lit Bob stays in the den.]"
map:
  den: {name: the den, at: [0, 0], to: [hall]}
  hall: {name: the hall, at: [1, 0]}
types:
  person: {mood: calm|glad}
  lamp: {lit: false, level: 0..9=5}
entities:
  ann: {is: person, at: den, name: Ann}
  bob: {is: person, at: den, name: Bob}
  lamp: {is: lamp, at: hall, name: the lamp}
capabilities:
  walk: {of: person, with: {to: "ref:tile"}, write: self.holder = to}
  light: {of: person, with: {what: "ref:lamp", lit: bool}, write: what.lit = lit}
  dim: {with: {by: int}, write: lamp.level += by}
  wave: {of: person, with: {whom: "ref:person"}}
rounds:
  - narrative: >-
      [e1: Ann walks into the hall]. [r1: There] [e2: Ann lights the lamp], [r2: while] [e3: the lamp dims by one].
      [v1: People wave.]
    plan: [{e1: ann walk to=hall}, {e2: ann light what=lamp lit=true, e3: "- dim by=-1"}]
    needs: {v1: capability wave}
    relations: {r1: CA e1 e2, r2: CC e2 e3 same}
  - narrative: "[e4: Ann waves to Bob], [u1: by waving], [r3: because the lamp is lit]."
    plan: [{e4: ann wave whom=bob}]
    use: {u1: e4 v1}
    relations: {r3: CA e2 e4}
  - narrative: "[e5: Ann walks back to the den], [r4: and then] [e6: Bob waves to Ann]. [r5: It takes one moment.]"
    plan: [{e5: ann walk to=den}, {e6: bob wave whom=ann}]
    probes: {p1: {after: e2, never: bob walk}}
    relations: {r4: CH e5 e6, r5: TM e5 duration 1 1}
"""

FAMILY = """
id: drip
title: The drip
unit: hour
role: the keeper
intro: A tub under a dripping roof.
horizon: 12
segment: 6
interval: 3
fields:
  tub.water: {start: 3, low: 0, high: 40, about: water in the tub}
  roof.hole: {start: 1, low: 0, high: 9, about: size of the hole}
  cat.mood: {start: dry, values: [dry, wet], about: the cat}
  sky.load: {start: 2, low: 0, high: 9, hidden: true, about: rain to come}
processes:
  dripping: {about: The roof drips into the tub., do: [tub.water += roof.hole + sky.load]}
  rotting: {about: The hole grows., every: 4, do: [roof.hole += 1]}
  soaking: {about: A full tub wets the cat., when: tub.water > 20, do: ["cat.mood = 'wet'"]}
actors:
  cat: {drinks: {about: The cat drinks., when: t % 2 == 0 and tub.water > 4, do: [tub.water -= 1]}}
actions:
  bail: {about: Bail the tub out., when: tub.water >= 5, do: [tub.water -= 5]}
  patch: {about: Patch the hole., params: {with: [wax, tin]}, do: [roof.hole -= 1]}
task: {about: keep the cat dry, goal: cat.mood == 'dry'}
upkeep: {room: {about: the tub has room, keep: tub.water < 30}}
plan: [patch with=wax, bail, bail, bail]
alternatives: [wait, patch with=tin]
folds: [{}, {roof.hole: 2}, {tub.water: 9}, {sky.load: 4}, {roof.hole: 0, tub.water: 1}]
"""


def tiny_case(folder: Path, text: str = CASE) -> Case:
    """The small case, from a file in `folder`."""
    path = folder / "tiny.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path)


def tiny_family(folder: Path, text: str = FAMILY) -> Family:
    """The small family, from a file in `folder`."""
    path = folder / "drip.yaml"
    path.write_text(text, encoding="utf-8")
    return load_family(path)


def tiny_world() -> World:
    """Two tiles, two people, a box and a bag that can hold and be held, and seats that swap."""
    world = World({"den": Tile("den", neighbors=("hall",)), "hall": Tile("hall", neighbors=("den",))})
    world.add_type("person", {"seat": FieldSpec(kind="str"), "coins": FieldSpec(kind="int", low=0, high=9)})
    world.add_type("thing", {})
    for name, seat in (("ann", "left"), ("bob", "right")):
        world.add_entity(name, "person", "den", {"seat": seat, "coins": 4})
    for name in ("box", "bag"):
        world.add_entity(name, "thing", "den", {})
    any_ref, whole = FieldSpec(kind="ref"), FieldSpec(kind="int")
    person = FieldSpec(kind="ref", of="person")
    made = {
        "go": Capability(owner_type="person", params={"to": any_ref},
                         write=Write(target="self", field="holder", op="move", value="to")),
        "pack": Capability(owner_type="person", params={"what": any_ref, "to": any_ref},
                           write=Write(target="what", field="holder", op="move", value="to")),
        "sit_like": Capability(owner_type="person", params={"whom": person},
                               write=Write(target="self", field="seat", value="whom.seat")),
        "earn": Capability(owner_type="person", params={"by": whole},
                           write=Write(target="self", field="coins", op="add", value="by")),
        "pay": Capability(owner_type="person", params={"to": person, "by": whole}, guard="self.coins >= by",
                          write=Write(target="self", field="coins", op="add", value="-by")),
        "nod": Capability(owner_type="person"),
    }  # fmt: skip
    for name, capability in made.items():
        world.add_capability(name, capability)
    return world


def tiny_engine(tier: Tier = "easy", rounds: int = 3) -> Engine:
    """An engine over the small world."""
    return Engine(tiny_world(), tier, rounds)


def fire(actor: str | None, capability: str, **args: Any) -> Trigger:
    """A trigger."""
    return Trigger(capability=capability, actor=actor, args=args)


def verdicts_of(case: Case, engine: Engine, judge: Any) -> dict[str, dict[str, Any]]:
    """A judge's verdicts on every question of the worksheet."""
    return {each.item: judge.verdict(each) for each in worksheet(case, engine.tier, engine.log)}
