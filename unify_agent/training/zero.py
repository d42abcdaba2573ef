"""DeepSpeed's ZeRO-2 and ZeRO-3 behind the interface of `engine.py`. docs/deepspeed.md says what holds there.

DeepSpeed shards by itself, so the model comes whole; it averages gradients over ranks and over the packs of a step,
where the loss is already divided by global denominators, so the loss is multiplied by both numbers first.
"""

from __future__ import annotations

import os
import re
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from unify_agent.errors import UserError
from unify_agent.training.config import Config
from unify_agent.training.ema import Ema
from unify_agent.training.parallel import World, held

OLDEST = (0, 19, 8)
"""A DeepSpeed that looks at the gradient's norm before it takes a step, whatever the dtype (0.17.6 does not)."""


class ZeroEngine:
    """An `Engine`. `model`: what is called in training."""

    def __init__(self, model: nn.Module, config: Config, world: World) -> None:
        """Raises UserError when DeepSpeed is not installed, or too old."""
        os.environ.setdefault("DS_ACCELERATOR", world.device.type)
        os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed wants it of a single process too
        try:
            import deepspeed
        except ImportError:
            raise UserError(
                f"parallel.strategy={config.parallel.strategy} needs the extra: pip install 'unify-agent[deepspeed]'"
            ) from None
        if _version(deepspeed.__version__) < OLDEST:
            raise UserError(
                f"deepspeed {deepspeed.__version__} may take steps whose gradient is not finite; "
                f"pip install 'deepspeed>={'.'.join(map(str, OLDEST))}'"
            )
        # gloo as it is: DeepSpeed's kernel for CPUs would be compiled at the start, by all ranks at once
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        optim, parallel = config.optim, config.parallel
        self.stage, self.world, self.module = int(parallel.strategy[-1]), world, model
        trained = [p for p in model.parameters() if p.requires_grad]
        first, second = optim.betas
        adam = torch.optim.AdamW(
            trained, lr=optim.lr, betas=(first, second), eps=optim.eps, weight_decay=optim.weight_decay
        )
        settings = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": parallel.packs_per_step // world.size,
            "gradient_clipping": optim.clip,
            # whole on every rank are only parameters as small as a head's norm
            "zero_optimization": {"stage": self.stage, "stage3_param_persistence_threshold": 1000},
            "zero_allow_untested_optimizer": True,
            "bf16": {"enabled": parallel.dtype == "bf16", "check_grad_overflow": True},
            "communication_data_type": "fp32",
            "steps_per_print": 2**31 - 1,
        }
        self.factor = world.size
        self.model, self.optimiser, _, _ = deepspeed.initialize(model=model, optimizer=adam, config=settings)
        self.masters = self._masters()
        for master in self.masters:
            self.optimiser.optimizer.state[master] = {
                "step": torch.zeros((), dtype=torch.float32),
                "exp_avg": torch.zeros_like(master),
                "exp_avg_sq": torch.zeros_like(master),
            }

    def begin(self) -> None:
        """DeepSpeed has cleared the gradients at the end of the step before."""

    def backward(self, loss: Tensor, last: bool) -> None:
        self.model.backward(loss * self.factor, scale_wrt_gas=False)
        if not last:
            self.model.step()  # counts the pack, changes nothing

    def update(self, rate: float) -> float:
        """DeepSpeed takes no step whose norm is not finite, and calls every such norm infinite."""
        for group in self.optimiser.optimizer.param_groups:
            group["lr"] = rate
        self.model.step()
        return float(self.model.get_global_grad_norm())

    def tensors(self, ema: Ema) -> dict[str, Tensor]:
        """What a checkpoint holds (a collective): weights and averages, whole, for the export; and this rank's parts
        of everything, into which a checkpoint is loaded."""
        mine = {f"{index}/master": master for index, master in enumerate(self.masters)}
        for index, master in enumerate(self.masters):
            mine |= {f"{index}/{key}": value for key, value in self.optimiser.optimizer.state[master].items()}
        parameters = dict(self.module.named_parameters())
        weights = {name: held(p) for name, p in parameters.items()}
        if self.stage == 2:
            whole = {f"model/{name}": value for name, value in weights.items()}
            whole |= {f"ema/{name}": value for name, value in ema.tensors.items()}
        else:
            mine |= {f"model/{name}": value for name, value in weights.items()}
            mine |= {f"ema/{name}": value for name, value in ema.tensors.items()}
            whole = {}
            for kind, parts in (("model", weights), ("ema", ema.tensors)):
                for name, part in parts.items():
                    value = self._gathered(part, parameters[name])
                    if self.world.main:
                        whole[f"{kind}/{name}"] = value
        return whole | {f"zero/{self.world.rank}/{name}": value for name, value in mine.items()}

    def _masters(self) -> list[Tensor]:
        """This rank's float32 weights: flat, one tensor for each group of the optimiser."""
        optimiser: Any = self.optimiser
        if self.stage == 2:
            return list(optimiser.single_partition_of_fp32_groups)
        return list(optimiser.fp32_partitioned_groups_flat)

    def _gathered(self, part: Tensor, parameter: Any) -> Tensor:
        """The whole of what each rank has an equal part of, on the CPU."""
        parts = [torch.empty_like(part) for _ in range(self.world.size)]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts)[: parameter.ds_numel].view(parameter.ds_shape).cpu()


def _version(text: str) -> tuple[int, ...]:
    """`0.19.8+a1b2` -> (0, 19, 8)."""
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])
