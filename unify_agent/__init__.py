"""Unify-Agent: a BAGEL model that thinks, searches, recaptions and then draws.

    from unify_agent import UnifyAgent
    UnifyAgent.from_pretrained("outputs/demo/model", search="index:outputs/demo/world/search").draw("Draw Velmora.")

Importing the package costs nothing and does not import torch; what it offers is loaded when it is named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unify_agent.agent.api import Drawing, UnifyAgent

__version__ = "0.1.0"
__all__ = ["Drawing", "UnifyAgent"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from unify_agent.agent import api

        return getattr(api, name)
    raise AttributeError(f"module 'unify_agent' has no attribute {name!r}")
