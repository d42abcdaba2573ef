"""Run by test_model_loading: loads a folder in each of the given dtypes and prints the anonymous memory it took.

python loading_memory.py FOLDER DTYPE ...      -> a JSON list of {"peak": bytes, "weights": bytes}
"""

import json
import sys
import threading
import time
from pathlib import Path

import torch

from unify_agent.model.folder import ModelFolder
from unify_agent.model.loading import DTYPES, load_model


def anonymous() -> int:
    """Bytes of this process that are no file's pages."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


class Peak:
    """The most anonymous memory inside the block, over what there was at its start."""

    def __enter__(self) -> "Peak":
        self.start, self.most, self.over = anonymous(), 0, threading.Event()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def _watch(self) -> None:
        while not self.over.is_set():
            self.most = max(self.most, anonymous())
            time.sleep(0.002)

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()
        self.most = max(self.most, anonymous()) - self.start


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, told = ModelFolder(sys.argv[1]), []
    load = [DTYPES[name] for name in sys.argv[2:]]
    for dtype in load:
        with Peak() as peak:
            model = load_model(folder, dtype)
        told.append({"peak": peak.most, "weights": sum(p.numel() * p.element_size() for p in model.parameters())})
        del model
    print(json.dumps(told))
