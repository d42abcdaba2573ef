"""PW-Agent: a picture is judged by what its prompt implies, one checkable fact at a time (papers/picworld.txt)."""

import eval.benchmarks  # noqa: F401  its benchmarks use this package: whichever is imported first, they are complete
