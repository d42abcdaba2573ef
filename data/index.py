"""`python -m data index --docs FILE|FOLDER... --images FOLDER --out DIR`: a search index of your own files.

The index holds what the command names: run again, it reads what is new or has changed, takes out what is gone, and
goes on where it was stopped. Until it is whole the index that was there stays as it is. What can't be read is listed
and counted, and the exit code is then 3. docs/search.md describes the files.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from data.documents import READERS, Fault, csv_lines, json_lines
from data.indexing import Input, update
from unify_agent.errors import UserError
from unify_agent.files import digest
from unify_agent.search.base import well_formed

SOME_SKIPPED = 3
SHOWN = 50  # faults that are printed
VERSION = 1  # of how files are read: with another one all are read again


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m data index`."""
    kinds = ", ".join(sorted(suffix[1:] for suffix in READERS))
    parser.add_argument("--docs", type=Path, nargs="+", default=[], metavar="PATH", help=f"texts, or folders: {kinds}")
    parser.add_argument("--images", type=Path, metavar="FOLDER", help="a folder of pictures, of any format and depth")
    parser.add_argument("--captions", type=Path, metavar="FILE",
                        help="of the pictures: jsonl or csv with file, title, licence, source "
                             "(default: captions.jsonl or captions.csv in FOLDER)")  # fmt: skip
    parser.add_argument("--lang", default="", metavar="CODE", help="of texts that don't say it (default: any)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the index")


def main(args: argparse.Namespace) -> int:
    """`python -m data index`."""
    faults: list[Fault] = []
    inputs = list(_documents(args.docs, args.lang))
    if args.images is not None:
        inputs += _pictures(args.images, args.captions, args.out, faults)
    elif args.captions is not None:
        raise UserError("--captions needs --images, the folder that they describe")
    if not inputs:
        raise UserError("nothing to index: give --docs, --images, or both, with files in them")
    counts = update(inputs, args.out, faults)
    print(f"{args.out}: " + ", ".join(f"{number} {what}" for what, number in counts.items()))
    for fault in faults[:SHOWN]:
        print(f"skipped: {fault.where}: {fault.reason}", file=sys.stderr)
    if len(faults) > SHOWN:
        print(f"skipped: ... and {len(faults) - SHOWN} more", file=sys.stderr)
    return SOME_SKIPPED if faults else 0


# ---------------------------------------------------------------- what there is


def _documents(paths: Iterable[Path], lang: str) -> Iterator[Input]:
    seen: set[str] = set()
    for path in paths:
        if path.is_file():
            if path.suffix.lower() not in READERS:
                raise UserError(f"--docs {path}: a {path.suffix or 'nameless'} file; known: {', '.join(READERS)}")
            found = [(path, path.name)]
        elif path.is_dir():
            found = [(each, _name(each, path)) for each in _walk(path)]
            other = Counter(each.suffix.lower() or "none" for each, _ in found if each.suffix.lower() not in READERS)
            if other:
                shown = ", ".join(f"{count} {suffix}" for suffix, count in other.most_common(5))
                print(f"{path}: files of other kinds are left out ({shown})", file=sys.stderr)
            found = [(each, name) for each, name in found if each.suffix.lower() in READERS]
        else:
            raise UserError(f"--docs {path}: no such file or folder")
        for each, name in found:
            name = name if name not in seen else f"{path.name}/{name}"
            if name in seen:
                raise UserError(f"--docs {path}: two files would both be called {name}; name the folder above them")
            seen.add(name)
            yield Input(each, name, f"{VERSION} {_state(each)} {lang}", False, lang)


def _pictures(folder: Path, captions: Path | None, out: Path, faults: list[Fault]) -> list[Input]:
    if not folder.is_dir():
        raise UserError(f"--images {folder}: no such folder")
    if out.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"--out {out}: lies inside {folder}; choose a folder outside of it")
    if captions is None:
        captions = next((each for n in ("jsonl", "csv") if (each := folder / f"captions.{n}").is_file()), None)
    files = {_name(each, folder): each for each in _walk(folder)}
    if captions is not None and captions.resolve().is_relative_to(folder.resolve()):
        files.pop(_name(captions.resolve(), folder.resolve()), None)
    said = dict(_captions(captions, files, faults)) if captions is not None else {}
    found = []
    for name, path in files.items():
        caption = said.get(name, {})
        stamp = f"{VERSION} {_state(path)} {digest(json.dumps(caption, sort_keys=True))[:16]}"
        found.append(Input(path, name, stamp, True, caption=caption))
    return found


def _captions(path: Path, files: dict[str, Path], faults: list[Fault]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What the captions file says of each picture; what is wrong with it goes to `faults`."""
    readers = {".jsonl": json_lines, ".csv": lambda path, name: csv_lines(path, name, ("file",))}
    if path.suffix.lower() not in readers:
        raise UserError(f"--captions {path}: expected a .jsonl or .csv file")
    seen: set[str] = set()
    try:
        for number, record in readers[path.suffix.lower()](path, path.name):
            found = record if isinstance(record, Fault) else _caption(record, f"{path.name}:{number}", files, seen)
            if isinstance(found, Fault):
                faults.append(found)
            else:
                yield found
    except FileNotFoundError:
        raise UserError(f"--captions {path}: no such file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"--captions {path}: not UTF-8 text (byte {error.start})") from None


def _caption(
    record: dict[str, Any], where: str, files: dict[str, Path], seen: set[str]
) -> tuple[str, dict[str, Any]] | Fault:
    name = record.get("file")
    if not isinstance(name, str) or not name:
        return Fault(where, "'file' is missing or empty")
    if name not in files:
        return Fault(where, f"{name!r} is not in the folder of pictures")
    if name in seen:
        return Fault(where, f"{name!r} was described before")
    titles = record.get("title") or ""
    if not isinstance(titles, dict):  # columns of a table: title, title_en, title_zh, ...
        titles = {"": titles} | {key[6:]: value for key, value in record.items() if key.startswith("title_")}
    titles = {lang: title for lang, title in titles.items() if title}
    rest = {key: record.get(key) or "" for key in ("licence", "source")}
    if not all(isinstance(value, str) for value in (*titles.values(), *rest.values())):
        return Fault(where, "title, licence and source must be texts (title may be an object of texts by language)")
    seen.add(name)
    return name, {"titles": titles, **rest}


def _walk(folder: Path) -> list[Path]:
    """Every file below a folder, hidden ones left out, in order."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(place) / name for name in sorted(names) if not name.startswith(".")]
    return found


def _name(path: Path, folder: Path) -> str:
    return well_formed(path.relative_to(folder).as_posix())


def _state(path: Path) -> str:
    with contextlib.suppress(OSError):
        found = path.stat()
        return f"{found.st_size} {found.st_mtime_ns}"
    return "unreadable"
