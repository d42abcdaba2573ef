"""Second names for files, so that one folder can be shown as another without a copy."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def link(file: Path, place: Path) -> None:
    """A second name for a file, or a copy where the file system has none to give; what is there already stays."""
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file, place)
    except FileExistsError:
        return
    except OSError:
        shutil.copy2(file, place)


def link_tree(folder: Path, place: Path) -> None:
    """Every file below a folder, at the same place below another one."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        for name in names:
            file = Path(parent, name)
            if not name.startswith("."):
                link(file, place / file.relative_to(folder))
