"""Files appear whole or not at all.

Every write goes to a hidden neighbour, is flushed to the disk and renamed into place, so a killed process
leaves either the old content or the new one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from unify_agent.errors import UserError


@contextlib.contextmanager
def _written_beside(path: Path, data: bytes) -> Iterator[str]:
    """A finished file with `data` in the folder of `path`, which is made; what was not moved by the end is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        yield name
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def write_bytes(path: Path | str, data: bytes) -> None:
    """Write `data` to `path` atomically, making the folder when it is not there."""
    path = Path(path)
    with _written_beside(path, data) as name:
        os.replace(name, path)


def write_once(path: Path | str, data: bytes) -> bool:
    """As `write_bytes`, but only where nothing is yet; False when somebody was faster."""
    path = Path(path)
    with _written_beside(path, data) as name:
        try:
            os.link(name, path)
        except FileExistsError:
            return False
        except PermissionError:  # a file system without hard links: the last one stands
            os.replace(name, path)
    return True


def write_text(path: Path | str, text: str) -> None:
    """Write UTF-8 text atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path | str, value: Any, indent: int | None = 2) -> None:
    """Write JSON atomically; characters of every script stay readable."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=indent) + "\n")


def read_json(
    path: Path | str, what: str = "JSON file", pairs: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """Read a JSON file. `pairs` makes something else than a dict of each object's keys and values.

    A byte order mark is passed over. Raises `UserError` naming the file and the place where it does not parse.
    """
    path = Path(path)
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=pairs)
    except FileNotFoundError:
        raise UserError(f"{path}: no such {what}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: this {what} does not parse ({error})") from None


@contextlib.contextmanager
def whole_folder(path: Path | str) -> Iterator[Path]:
    """Fill a hidden folder that takes the name `path` only when the block ends without an error.

    An existing folder of that name is replaced in the same moment; on an error it stays as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"))
    try:
        yield work
        os.chmod(work, 0o755)
        old = path.with_name(f".{path.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        if path.exists():
            os.replace(path, old)
        os.replace(work, path)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def digest(*parts: bytes | str | Path) -> str:
    """SHA-256 in hex over bytes, strings and the contents of files, in order."""
    hasher = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            with open(part, "rb") as file:
                while block := file.read(1 << 20):
                    hasher.update(block)
        else:
            hasher.update(part if isinstance(part, bytes) else part.encode())
        hasher.update(b"\0")
    return hasher.hexdigest()
