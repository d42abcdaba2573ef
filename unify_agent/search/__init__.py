"""Evidence: where the agent's two tools look. registry.py opens a back end by name; docs/search.md tells of each."""

from unify_agent.search.base import ImageHit, SearchBackend, SearchError, TextHit

__all__ = ["ImageHit", "SearchBackend", "SearchError", "TextHit"]
