"""The tools of the maintenance track: their schemas by tier, and what a call does. A wrong call is answered with one
line that says what would be right; it never ends the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field, StrictInt, StrictStr, ValidationError

from eval.world_agent.cases import Case
from eval.world_agent.engine import BUILDS, Engine, Row, Tier, Trigger
from eval.world_agent.world import Capability, FieldSpec, Plain, Strict
from unify_agent.errors import nearest
from unify_agent.judging import FunctionCall
from unify_agent.judging.structured import LONGEST

LONGEST_ANSWER = 12_000
"""Characters of one answer."""
LONGEST_ERROR = 600


class ReadNarrative(Strict):
    """Read the narrative of this round or of an earlier one."""

    round: StrictInt | None = None


class QueryState(Strict):
    """Look at the world: an overview, or the things of one part, narrowed by ids, type or holder."""

    part: Literal["overview", "tiles", "types", "entities", "capabilities"] = "overview"
    ids: list[StrictStr] | None = None
    type: StrictStr | None = None
    holder: StrictStr | None = None


class QueryLog(Strict):
    """The last rows of the log, at most 50."""

    last: int = Field(default=10, ge=1, le=50, strict=True)


class DefineType(Strict):
    """Define a type of entities and its fields. It stays as it is defined."""

    id: StrictStr
    fields: dict[str, FieldSpec] = Field(default_factory=dict)


class CreateEntity(Strict):
    """Create an entity of a defined type. 'holder' is a tile, an entity, or null when it isn't on the map."""

    id: StrictStr
    type: StrictStr
    holder: StrictStr | None = None
    name: StrictStr = ""
    fields: dict[str, Plain] = Field(default_factory=dict)


class DefineCapability(Capability):
    """Define something that entities of a type can do. It writes at most one field.

    'guard' and 'write.value' are expressions over 'self', the parameters and ids, such as
    "what.holder == self.holder" or "to"; a text needs quotes inside: "'open'".
    """

    id: StrictStr


class TriggerBatch(Strict):
    """Concurrent events: all are checked against the state before the batch; all happen and Step grows by one, or
    nothing does. What depends on something else belongs into a later batch."""

    batch: list[Trigger] = Field(min_length=1, max_length=100)


class EndRound(Strict):
    """End the round. Its events can't be repaired afterwards; the next narrative follows."""


TOOLS: dict[str, type[Strict]] = {
    "read_narrative": ReadNarrative, "query_state": QueryState, "query_log": QueryLog, "define_type": DefineType,
    "create_entity": CreateEntity, "define_capability": DefineCapability, "trigger": TriggerBatch,
    "end_round": EndRound,
}  # fmt: skip
BUILDING = BUILDS["extreme"]


def open_tools(tier: Tier) -> list[str]:
    """Names of the tools of a tier."""
    return [name for name in TOOLS if name not in BUILDING or name in BUILDS[tier]]


def schemas(tier: Tier) -> list[dict[str, Any]]:
    """The tools of a tier as an OpenAI-compatible endpoint wants them."""
    result = []
    for name in open_tools(tier):
        schema = TOOLS[name].model_json_schema(by_alias=True)
        about = " ".join(str(schema.pop("description", "")).split())
        schema.pop("title", None)
        result.append({"type": "function", "function": {"name": name, "description": about, "parameters": schema}})
    return result


class Tools:
    """Carries out calls on one engine."""

    def __init__(self, case: Case, engine: Engine):
        self.case, self.engine = case, engine

    def call(self, call: FunctionCall) -> str:
        """Carry out a call; the answer is JSON. Errors come as `{"error": ...}`."""
        try:
            answer = self._call(call)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"])
            answer = {"error": f"{call.name}: argument {key or '(all)'}: {first['msg']}"}
        if len(answer.get("error", "")) > LONGEST_ERROR:
            answer["error"] = answer["error"][:LONGEST_ERROR] + "..."
        text = json.dumps(answer, ensure_ascii=False)
        if len(text) > LONGEST_ANSWER and "accepted" in answer:
            del answer["writes"]  # it has happened, however long the telling
            text = json.dumps(answer, ensure_ascii=False)
        elif len(text) > LONGEST_ANSWER:
            told = f"the answer would have {len(text)} characters; ask for less (ids, type, holder, last)"
            text = json.dumps({"error": told})
        return text

    def _call(self, call: FunctionCall) -> dict[str, Any]:
        known = open_tools(self.engine.tier)
        if call.name not in known:
            closed = f" in tier {self.engine.tier}" if call.name in TOOLS else ""
            return {"error": f"no tool {call.name!r}{closed}{nearest(call.name, known)}"}
        if len(call.text) > LONGEST:
            return {"error": f"{call.name}: the arguments have {len(call.text)} characters, at most {LONGEST} are read"}
        try:
            arguments = json.loads(call.text or "{}")
            json.dumps(arguments, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:  # half a surrogate pair is no text either
            return {"error": f"{call.name}: the arguments are no JSON ({' '.join(str(error).split())[:200]})"}
        if not isinstance(arguments, dict):
            return {"error": f"{call.name}: the arguments are an object, not {type(arguments).__name__}"}
        carry_out: dict[str, Callable[[Any], dict[str, Any]]] = {
            "read_narrative": self._narrative, "query_state": self._state, "query_log": self._log,
            "define_type": lambda a: _told(self.engine.define_type(a.id, a.fields)),
            "create_entity": lambda a: _told(self.engine.create_entity(a.id, a.type, a.holder, a.fields, a.name)),
            "define_capability": self._capability,
            "trigger": lambda a: _told(self.engine.trigger(a.batch)) | {"triggers_left": self.engine.left},
            "end_round": lambda a: _told(self.engine.end_round()),
        }  # fmt: skip
        return carry_out[call.name](TOOLS[call.name].model_validate(arguments))

    def _capability(self, asked: DefineCapability) -> dict[str, Any]:
        capability = Capability.model_validate(asked.model_dump(exclude={"id"}))
        return _told(self.engine.define_capability(asked.id, capability))

    def _narrative(self, asked: ReadNarrative) -> dict[str, Any]:
        number = self.engine.round if asked.round is None else asked.round
        if not 1 <= number <= self.engine.round:
            return {"error": f"read_narrative: round {number} isn't told yet; rounds 1 to {self.engine.round} are"}
        return {"round": number, "narrative": self.case.rounds[number - 1].narrative}

    def _log(self, asked: QueryLog) -> dict[str, Any]:
        return {"rows": [{k: v for k, v in row.items() if k != "call"} for row in self.engine.log[-asked.last :]]}

    def _state(self, asked: QueryState) -> dict[str, Any]:
        world = self.engine.world
        if asked.part == "overview":
            return {
                "step": world.step, "round": self.engine.round, "tiles": list(world.tiles),
                "types": list(world.types), "capabilities": list(world.capabilities),
                "entities": {name: entity.type for name, entity in world.entities.items()},
            }  # fmt: skip
        found = world.as_dict()[asked.part]
        for name in asked.ids or ():
            if name not in found:
                return {"error": f"query_state: no {name!r} among the {asked.part}{nearest(name, list(found))}"}
        if (asked.type is not None or asked.holder is not None) and asked.part != "entities":
            return {"error": "query_state: type and holder narrow part 'entities' only"}
        kept = {
            name: value
            for name, value in found.items()
            if (asked.ids is None or name in asked.ids)
            and (asked.type is None or value["type"] == asked.type)
            and (asked.holder is None or value["holder"] == asked.holder)
        }
        return {"step": world.step, asked.part: kept}


def _told(row: Row) -> dict[str, Any]:
    """What a player hears of a row of the log."""
    if not row["accepted"]:
        return {"accepted": False, "error": "; ".join(row["errors"]), "changed": "nothing"}
    told: dict[str, Any] = {"accepted": True, "seq": row["seq"]}
    if row["kind"] == "trigger":
        told |= {"step": row["step_after"], "writes": [item["write"] for item in row["batch"] if item["write"]]}
    return told
