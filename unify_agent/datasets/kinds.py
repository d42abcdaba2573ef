"""The kinds of source that a recipe names in `data.sources`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from unify_agent.datasets.sources import Source, SourceContext


def trajectories(
    context: SourceContext,
    path: Path | str,
    *,
    request_share: float = 0.0,
    strict: bool = True,
    name: str | None = None,
) -> Source:
    """Agent trajectories: a folder in the release's layout, or what `python -m data pack` made of one."""
    from unify_agent.datasets.folder import TrajectorySource
    from unify_agent.datasets.parquet import PackedTrajectorySource, is_packed

    kind = PackedTrajectorySource if is_packed(Path(path)) else TrajectorySource
    return kind(context, path, request_share=request_share, strict=strict, name=name)


def kinds() -> dict[str, Callable[..., Source]]:
    """Every kind by name. Each is called with a `SourceContext` and the keyword options of its signature."""
    from unify_agent.datasets.pairs import EditingSource, ImageToTextSource, TextSource, TextToImageSource

    return {
        "trajectories": trajectories,
        "text_to_image": TextToImageSource,
        "image_to_text": ImageToTextSource,
        "text": TextSource,
        "editing": EditingSource,
    }
