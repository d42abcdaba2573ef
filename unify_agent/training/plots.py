"""Loss curves of a run as one PNG, from its metrics.jsonl."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from unify_agent import files


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Trailing mean over up to `window` values; the first ones use what there is."""
    total = np.cumsum(np.insert(values, 0, 0.0))
    stop = np.arange(1, len(values) + 1)
    start = np.maximum(0, stop - window)
    return (total[stop] - total[start]) / (stop - start)


def losses(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw CE (total and by role), MSE (total and by timestep), gradient norm with learning rate, and throughput."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 2)
    window = max(1, len(rows) // 50)

    def curve(axis: Any, key: str, label: str, **style: Any) -> None:
        points = [(row["step"], row[key]) for row in rows if key in row]
        if points:
            x, y = np.array(points, dtype=float).T
            axis.plot(x, smooth(y, window), label=label, **style)

    def prefixed(prefix: str) -> list[str]:
        return sorted({key for row in rows for key in row if key.startswith(prefix)})

    ce, mse, gradient, speed = panels.flat
    curve(ce, "ce_mean", "all", color="black")
    for key in prefixed("ce_role/"):
        curve(ce, key, key.removeprefix("ce_role/"), linewidth=1)
    ce.set(title="cross-entropy per trained token", xlabel="step", ylabel="nats")
    curve(mse, "mse", "all", color="black")
    for key in prefixed("mse_t/"):
        curve(mse, key, "t " + key.removeprefix("mse_t/"), linewidth=1)
    mse.set(title="flow matching: mean squared error of the velocity", xlabel="step")
    for axis in (ce, mse):
        axis.set_yscale("log")
        axis.legend(fontsize=8)
    curve(gradient, "grad_norm", "gradient norm before clipping", color="tab:blue")
    gradient.set(title="gradient norm and learning rate", xlabel="step", ylabel="L2")
    rate = gradient.twinx()
    curve(rate, "lr", "learning rate", color="tab:orange")
    rate.set_ylabel("learning rate")
    curve(speed, "tokens_per_second", "tokens/s", color="tab:green")
    speed.set(title="throughput", xlabel="step", ylabel="tokens/s")
    flops = speed.twinx()
    curve(flops, "tflops", "TFLOP/s", color="tab:gray", linewidth=1)
    flops.set_ylabel("TFLOP/s a rank")
    for axis in panels.flat:
        axis.grid(alpha=0.3)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    files.write_bytes(path, buffer.getvalue())
