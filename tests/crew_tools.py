"""A crew without a model, for tests of what stands around the loop."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
from agent_tools import FINAL, IMAGE_CALL, TEXT_CALL, MemorySearch, NameJudge, hits, replies

from unify_agent.agent.crew import Crew, Setup
from unify_agent.agent.scripted import ScriptedPolicy
from unify_agent.agent.wording import load_prompts


def grey(episode):
    return np.full((32, 32, 3), 128, np.uint8)


def crew(folder: Path, say=None, paint=grey, setup: Setup | None = None, search=None) -> Crew:
    """A scripted crew that finds two good pictures and a blurred one; its painter has the model's hooks."""
    folder.mkdir(exist_ok=True)
    policy = ScriptedPolicy(say or replies(TEXT_CALL, IMAGE_CALL, FINAL), paint)
    for name in ("on_text", "on_preview", "on_step"):
        setattr(policy, name, None)
    policy.provenance = {"weights": "0"}
    policy.sampling = SimpleNamespace()
    found = search or MemorySearch({"kiwi fruit": hits(folder, "good-1", "blurred-1", "good-22")})
    made = setup or Setup("nowhere", search="memory")
    return Crew(made, policy, policy, found, NameJudge(), load_prompts("compact"))  # type: ignore[arg-type]
