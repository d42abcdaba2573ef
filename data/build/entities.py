"""Stage 0: the entities of the list with their parts, then each with what it can be recognised by."""

from __future__ import annotations

from collections.abc import Sequence

from data.build import benchmark, metadata, prompts
from data.build.contracts import Dropped, Entity
from data.build.listing import LOOKS, read_list
from data.build.lookalike import Looks
from data.build.recaption_rules import LANGUAGES
from data.build.services import Services
from data.build.spec import Spec
from data.build.verification import require_language, require_truth
from unify_agent.errors import UserError


def read_entities(spec: Spec) -> tuple[Sequence[Entity], Sequence[tuple[str, Dropped]]]:
    """The entities of the spec's list with their part (training or benchmark), and what was refused.

    Raises UserError for a file that cannot be used, or with `strict` for the first row that is refused.
    """
    listed = read_list(spec.entities, Looks(spec.out / LOOKS))
    if spec.strict and listed.refused:
        _, why = listed.refused[0]
        more = f" (and {len(listed.refused) - 1} more)" if len(listed.refused) > 1 else ""
        raise UserError(f"{why.detail}{more}; mend the list, or go on without them with strict: false")
    parts = benchmark.choose(listed.entities, listed.looks, spec.benchmark.share, spec.seed)
    return benchmark.placed(listed.entities, parts), listed.refused


def describe(entity: Entity, spec: Spec, services: Services) -> Entity:
    """The entity with its attributes, found by searching.

    Raises Dropped, before anything is asked, for one that is withheld or of which no trajectory could be made; or see
    data/build/metadata.py.
    """
    if entity.part == "withheld":
        raise Dropped("entities", "like one of the benchmark", "its name or a picture of it is that of one held out")
    if entity.part == "train":
        require_truth(entity, spec)
        languages = [wish.language for wish in prompts.plan(entity, spec)]
        if not set(languages) & set(LANGUAGES):
            require_language(languages[0])
    return metadata.describe(entity, spec, services)
