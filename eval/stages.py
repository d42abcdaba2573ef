"""Stages of a long command: each runs once for given inputs, goes on where it was stopped, and is measured.

`stages.json` holds for each stage the key of its inputs, whether it is done, and the seconds and memory that it took
so far. A stage whose key changed starts anew, and so does every later one, since keys are chained.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from unify_agent.errors import UserError
from unify_agent.files import digest, read_json, write_json

INTERVAL = 0.5
"""Seconds between two looks at the memory."""


def say(line: str) -> None:
    """Print a line at once, so that it stands before what a child prints."""
    print(line, flush=True)


@dataclass
class Record:
    """What is known of a stage. `peak_gib` is the resident memory of the whole process tree."""

    key: str
    done: bool = False
    seconds: float = 0.0
    peak_gib: float = 0.0


def tree_gib(root: int) -> float:
    """Resident memory of a process and its descendants, in GiB; 0 where /proc is not there.

    Pages that processes share are counted for each of them, so this is an upper bound.
    """
    parents: dict[int, list[int]] = {}
    pages: dict[int, int] = {}
    try:
        found = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return 0.0
    for pid in found:
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        parents.setdefault(int(fields[1]), []).append(pid)
        pages[pid] = int(fields[21])
    total, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        total += pages.get(pid, 0)
        waiting += parents.get(pid, [])
    return total * os.sysconf("SC_PAGE_SIZE") / 2**30


class Memory:
    """Watches this process and its children while the block runs: `peak_gib`."""

    def __init__(self) -> None:
        self.peak_gib = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.peak_gib = max(self.peak_gib, tree_gib(os.getpid()))

    def _watch(self) -> None:
        while not self._ended.wait(INTERVAL):
            self.peak_gib = max(self.peak_gib, tree_gib(os.getpid()))


class Stages:
    """Runs the stages of one output folder."""

    def __init__(self, out: Path, total: int, say: Callable[[str], None] = say) -> None:
        self.path, self.total, self.say = Path(out) / "stages.json", total, say
        kept = read_json(self.path, "stage list") if self.path.is_file() else {}
        self.records = {name: Record(**record) for name, record in kept.items()}
        self._previous, self._number = "", 0

    def run(
        self,
        name: str,
        title: str,
        inputs: Iterable[str | Path],
        folder: Path,
        work: Callable[[], None],
        keep: bool = False,
    ) -> Record:
        """Run a stage unless it is done for these inputs.

        `folder` is what it makes: removed when it was made from other inputs, kept when the stage was only
        interrupted, so that `work` can go on. With `keep`, `work` itself tells old parts from new ones and the folder
        is never removed. Raises what `work` raises, after noting what it has taken.
        """
        self._number += 1
        key = self._previous = digest(self._previous, name, *inputs)[:16]
        head = f"[{self._number}/{self.total}] {title}"
        record = self.records.get(name)
        if record is not None and record.key == key and record.done and folder.exists():
            self.say(f"{head}: done before")
            return record
        if record is None or record.key != key or record.done:
            if not keep:
                shutil.rmtree(folder, ignore_errors=True)
            record = self.records[name] = Record(key)
            self._save()
        self.say(head)
        started = time.monotonic()
        with Memory() as memory:
            try:
                work()
                record.done = True
            finally:
                record.seconds = round(record.seconds + time.monotonic() - started, 2)
                record.peak_gib = round(max(record.peak_gib, memory.peak_gib, tree_gib(os.getpid())), 3)
                self._save()
        self.say(f"    done in {record.seconds:.0f} s")
        return record

    def _save(self) -> None:
        write_json(self.path, {name: asdict(record) for name, record in self.records.items()})


def command(arguments: Sequence[str | Path], root: Path) -> None:
    """Run one of the project's own commands with its output shown. Raises UserError when it fails."""
    line = [sys.executable, *map(str, arguments)]
    with subprocess.Popen(line, cwd=root) as child:
        try:
            code = child.wait()
        except KeyboardInterrupt:  # the child was interrupted too, and may be writing down how far it came
            child.wait()
            raise
    if code in (130, -signal.SIGINT):
        raise KeyboardInterrupt
    if code:
        how = f"was ended by signal {-code}" if code < 0 else "failed"
        raise UserError(f"this command {how}: {shlex.join(['python', *line[1:]])}", max(1, code))


def sources(root: Path, *patterns: str) -> list[str]:
    """Names and contents of source files, as inputs of a stage."""
    found = sorted({path for pattern in patterns for path in root.glob(pattern) if path.is_file()})
    return [f"{path.relative_to(root)} {digest(path)}" for path in found]
