# shellcheck shell=bash
# What the job scripts share: settings, the code snapshot, and how a job is stopped and requeued. Sourced, never run.
# docs/cluster.md explains every setting.

signalled=  # a trap ran, so `wait` returned early
stopping=   # the time limit is near

say() { echo "$(date '+%F %T') job $SLURM_JOB_ID on $(hostname): $*"; }

fail() {
  echo "error: $*" >&2
  exit 2
}

# prepare FOLDER CODE: settings, traps, and the code that this job and its requeued lives run.
prepare() {
  mkdir -p "$1"
  echo '*' >"$1/.gitignore"
  settings "$1"
  [[ -d $2 ]] || snapshot "$2"
  code=$(realpath "$2")
  export PYTHONSAFEPATH=1 PYTHONPATH="$code${PYTHONPATH:+:$PYTHONPATH}"
  mark=$1/.life-$SLURM_JOB_ID
  touch "$mark"
  trap stop USR1
  trap 'signalled=1' TERM  # SLURM signals what srun started as well; this shell waits for it
  say "life $((${SLURM_RESTART_COUNT:-0} + 1)), code $(cat "$code/COMMIT"), in $1"
}

# alone RUN: no other job that SLURM still knows may work in this folder.
alone() {
  local other=''
  mkdir -p "$1"
  [[ ! -f $1/job ]] || read -r other <"$1/job"
  if [[ -n $other && $other != "$SLURM_JOB_ID" && -n $(squeue --noheader --jobs="$other" 2>/dev/null || true) ]]; then
    fail "$1: job $other, which is not over yet, works in this folder; cancel it first, or name another folder"
  fi
  echo "$SLURM_JOB_ID" >"$1/job"
}

settings() {
  ulimit -c 0
  export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"
  export OMP_NUM_THREADS="${OMP_NUM_THREADS:-4}"
  export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1
  export HF_HUB_OFFLINE="${HF_HUB_OFFLINE:-1}"
  export PYTORCH_ALLOC_CONF="${PYTORCH_ALLOC_CONF:-expandable_segments:True}"
  export TORCH_ELASTIC_SHUTDOWN_TIMEOUT="${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-840}"
  export NCCL_DEBUG="${NCCL_DEBUG:-WARN}"
  export TORCH_FR_BUFFER_SIZE="${TORCH_FR_BUFFER_SIZE:-2000}" TORCH_NCCL_DUMP_ON_TIMEOUT=1
  export TORCH_FR_DUMP_TEMP_FILE="$1/flight/rank_"
  mkdir -p "$1/flight"
  if [[ -n ${DEBUG_COMMUNICATION:-} ]]; then
    export NCCL_DEBUG=INFO NCCL_DEBUG_FILE="$1/flight/nccl.%h.%p" TORCH_DISTRIBUTED_DEBUG=DETAIL
  fi
}

# snapshot FOLDER: every file that git tracks, as it is now, and new code. Appears whole; of several jobs one makes it.
snapshot() {
  local work="$1.$SLURM_JOB_ID" file commit
  rm -rf "$work"
  mkdir -p "$work"
  { git ls-files -z && git ls-files -z --others --exclude-standard -- '*.py' '*.yaml' '*.sh' '*.sbatch'; } |
    while IFS= read -r -d '' file; do if [[ -e $file ]]; then printf '%s\0' "$file"; fi; done |
    tar --create --null --files-from=- --file=- | tar --extract --directory="$work" --file=-
  commit=$(git rev-parse --short=12 HEAD)
  git diff --quiet HEAD -- || commit+=+changes
  echo "$commit" >"$work/COMMIT"
  mv --no-target-directory "$work" "$1" 2>/dev/null || rm -rf "$work"
  [[ -d $1 ]] || fail "$1: the code cannot be copied there"
}

# The first free port of this node, counted from one that follows from the job.
free_port() {
  local port=$((20000 + SLURM_JOB_ID % 20000))
  while (exec 3<>"/dev/tcp/$1/$port") 2>/dev/null; do port=$((port + 1)); done
  echo "$port"
}

# On SIGUSR1: every node's torchrun gets SIGTERM and hands it to its ranks, which save together after their step. Once
# only: a second SIGTERM would end torchrun before its ranks.
stop() {
  signalled=1
  [[ -z $stopping ]] || return 0
  stopping=1
  say "the time limit is near: asking all ranks to save and end"
  scancel --signal=TERM "$SLURM_JOB_ID" || say "scancel failed; the last checkpoint is what remains"
}

# step COMMAND...: what srun starts on every node; returns its status, however often a trap interrupts the waiting.
step() {
  local process status
  srun --kill-on-bad-exit=0 --wait=120 "$@" &
  process=$!
  while :; do
    signalled='' status=0
    wait "$process" || status=$?
    [[ -n $signalled ]] || return "$status"
  done
}

# finish STATUS FOLDER FILE: a job that was stopped by its time limit goes on in another one, if a FILE in FOLDER is
# newer than its start; without that every life would end like this one.
finish() {
  local status=$1 progress
  progress=$(find "$2" -name "$3" -newer "$mark" -print -quit)
  rm -f "$mark"
  if [[ $status == 0 ]]; then
    say "done"
  elif [[ -z $stopping ]]; then
    say "ended with exit code $status; nothing is requeued"
  elif [[ -z $progress ]]; then
    say "no $3 in $2 is newer than this job's start: more --time is needed; nothing is requeued"
  elif scontrol requeue "$SLURM_JOB_ID"; then
    say "requeued"
    status=0
  else
    say "scontrol could not requeue this job; submit it again and name $2 as its folder"
  fi
  exit "$status"
}

# train RUN CODE OVERRIDES...: a training on every GPU of the job, begun or continued in the folder RUN.
train() {
  local run=$1 status=0 setting
  local output="output='${1//\'/\\\'}'"  # in quotes Hydra takes any character for itself
  alone "$1"
  prepare "$1" "$2"
  shift 2
  for setting in "$@"; do
    [[ $setting != output=* ]] || fail "$setting: the run folder is named by RUN=FOLDER sbatch ..."
  done
  read -r MASTER_ADDR < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  MASTER_PORT=$(free_port "$MASTER_ADDR")
  export MASTER_ADDR MASTER_PORT
  step bash "$code/slurm/node.sh" "$code/train.py" "$@" "$output" preflight=true || status=$?
  if [[ $status == 0 && -z $stopping ]]; then
    step bash "$code/slurm/node.sh" "$code/train.py" "$@" "$output" || status=$?
  fi
  finish "$status" "$run" commit.json
}
