"""Print what pyproject.toml depends on, with the extras named: `python dependencies.py pyproject.toml [EXTRA ...]`.

For images that hold dependencies and not this package; pip has no such option.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def dependencies(pyproject: Path, extras: list[str]) -> list[str]:
    """Requirements in the file's order. Raises KeyError for an extra that the file has not."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *(each for extra in extras for each in project["optional-dependencies"][extra])]


if __name__ == "__main__":
    print("\n".join(dependencies(Path(sys.argv[1]), sys.argv[2:])))
