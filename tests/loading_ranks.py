"""Run by torchrun in test_model_loading: each rank fills its shard of a folder's weights, then all compare the whole.

loading_ranks.py FOLDER OUT      -> OUT/RANK.json
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from tests.loading_memory import Peak
from unify_agent.model.folder import ModelFolder
from unify_agent.model.loading import Weights, load_model, on_meta
from unify_agent.training import parallel
from unify_agent.training.config import ParallelConfig
from unify_agent.training.parallelize import parallelize

if __name__ == "__main__":
    folder, out = ModelFolder(sys.argv[1]), Path(sys.argv[2])
    world = parallel.start(config := ParallelConfig(shard=2, packs_per_step=2))
    weights = Weights(folder)
    with Peak() as peak:
        model = parallelize(on_meta(weights.config), world, config).to_empty(device=world.device)
        weights.fill(model, parallel.shard)
    held = sum(parallel.local(p).untyped_storage().nbytes() for p in model.parameters())
    whole = load_model(folder)
    equal = [torch.equal(parallel.full(p.detach()), whole.get_parameter(name)) for name, p in model.named_parameters()]
    total = sum(p.numel() * p.element_size() for p in whole.parameters())
    row = {"peak": peak.most, "held": held, "total": total, "tensors": len(equal), "equal": sum(equal)}
    (out / f"{world.rank}.json").write_text(json.dumps(row))
    dist.barrier()
    parallel.stop(world)
