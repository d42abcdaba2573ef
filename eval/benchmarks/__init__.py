"""The benchmarks, by name."""

from collections.abc import Mapping

from eval.benchmarks.base import Benchmark
from eval.benchmarks.factip import FactIP, FactIPMini
from eval.benchmarks.factual import Factual
from eval.benchmarks.kitten import Kitten
from eval.benchmarks.knowgen import KnowGen
from eval.benchmarks.mindbench import MindBench
from eval.benchmarks.picworld import PicWorld
from eval.benchmarks.wise import Wise, WiseBagel2025, WiseVerified
from unify_agent.errors import UserError, nearest

BENCHMARKS: dict[str, type[Benchmark]] = {
    each.name: each
    for each in (
        FactIP, FactIPMini, Wise, WiseBagel2025, WiseVerified, Kitten, Factual, PicWorld, KnowGen, MindBench,
    )
}  # fmt: skip


def benchmark(name: str, options: Mapping[str, str | float] | None = None) -> Benchmark:
    """A benchmark by name, with its options. Raises UserError for a name or an option that is not known."""
    if name not in BENCHMARKS:
        raise UserError(f"--bench {name!r} is not known{nearest(name, list(BENCHMARKS))}")
    return BENCHMARKS[name](options)
