"""Evidence: where the agent's two tools look. `index` is a local SQLite index with pictures on disk."""

from unify_agent.search.base import ImageHit, SearchBackend, TextHit

__all__ = ["ImageHit", "SearchBackend", "TextHit"]
