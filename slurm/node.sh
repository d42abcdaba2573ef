#!/bin/bash
# Started by srun once on every node: this node's torchrun, with a process for each of its GPUs.
# It takes the place of this shell, so that a signal to the task is a signal to torchrun.
set -euo pipefail
read -ra python <<<"${PYTHON:-python}"
exec "${python[@]}" -m torch.distributed.run \
  --nnodes "$SLURM_NNODES" --node-rank "$SLURM_NODEID" --nproc-per-node "${SLURM_GPUS_ON_NODE:-gpu}" \
  --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" "$@"
