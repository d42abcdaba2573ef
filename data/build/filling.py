"""Words of a file with what an item says put in: text from outside stays one line of plain text and fills no gap."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from unify_agent.agent.evidence import one_line

FOLDER = Path(__file__).parent / "words"
REMARK = 300
"""Characters of a list's remark that are shown to a model."""


def fill(template: str, values: Mapping[str, object]) -> str:
    """`{key}` becomes its value, in one pass; braces with another word between them stay as they are."""
    return re.sub(r"\{(\w+)\}", lambda found: str(values.get(found[1], found[0])), template)


def told(text: str, limit: int = REMARK) -> str:
    """Text from outside as one line without tags; a dash where there is none."""
    return one_line(text, limit) or "-"
