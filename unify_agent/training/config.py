"""The schema of a run. Every key a recipe or a command line may set is a field here; anything else is an error.

Defaults are the paper's Table 6 where it states a value and BAGEL's where it is silent. Files under `configs/`
and `recipes/` only ever change these fields, so this module is also the reference of what can be configured.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from omegaconf import MISSING

TASKS = ("sft", "vae")
INITS = ("pretrained", "random")
ATTENTIONS = ("segments", "flex")
LAYOUTS = ("paper", "released", "isolated")
SCHEDULES = ("constant", "cosine")
WEIGHTS = ("ema", "model")
DTYPES = ("fp32", "bf16")
PLANS = ("false", "true", "json")
CHECKPOINTING = ("none", "full", "selective")
STRATEGIES = ("fsdp", "deepspeed_zero2", "deepspeed_zero3")


@dataclass
class ModelConfig:
    path: Optional[str] = None
    """BAGEL-layout folder to start from (architecture, weights, VAE and tokenizer are read from it)."""
    init: str = "pretrained"
    """`pretrained` needs `path`. `random` must be said explicitly and needs `arch`, `vae` and `tokenizer`."""
    arch: Optional[str] = None
    """Architecture: a preset such as `tiny`, or `package.module:NAME` of a BagelConfig. `init=random` needs it; with
    `path` it is what the folder must hold."""
    vae: Optional[str] = None
    """Folder whose `ae.safetensors` is used with `init=random`."""
    tokenizer: Optional[str] = None
    """Folder (or tokenizer.json) whose tokenizer is used with `init=random`."""
    attention: str = "segments"
    """`segments` runs everywhere; `flex` is FlexAttention, which trains on a GPU only. Both compute the same."""


@dataclass
class SourceConfig:
    kind: str = "trajectories"
    """`trajectories`, `text_to_image`, `image_to_text`, `text`, `editing` (docs/data.md), or `package.module:Class`."""
    path: Optional[str] = None
    weight: float = 1.0
    """Share of the tokens drawn, relative to the other sources' weights."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the source."""


@dataclass
class TransformConfig:
    """Image resize rule: long side <= max, short side >= min, both multiples of stride (facts: BAGEL transforms)."""

    max: int = MISSING
    min: int = MISSING
    stride: int = MISSING


@dataclass
class DropoutConfig:
    """Probability that a condition is hidden from the generated picture, for classifier-free guidance."""

    text: float = 0.0
    vit: float = 0.0
    vae: float = 0.0


@dataclass
class DataConfig:
    sources: list[SourceConfig] = field(default_factory=list)
    vae_transform: TransformConfig = field(default_factory=lambda: TransformConfig(1024, 512, 16))
    vit_transform: TransformConfig = field(default_factory=lambda: TransformConfig(980, 378, 14))
    expected_tokens: int = 40240
    """A pack is full once it holds this many tokens."""
    max_tokens: int = 41520
    """Hard limit of a pack."""
    max_tokens_per_sample: int = 40240
    """Longer samples are skipped and counted."""
    window_steps: int = 4
    """Best-fit-decreasing packs inside a shuffled window of this many steps."""
    group_by_cost: bool = True
    """Packs of similar cost go into the same step."""
    dropout: DropoutConfig = field(default_factory=DropoutConfig)
    noise_copies: int = 1
    """Timesteps trained per generated picture and pack (the context is computed once)."""
    workers: int = 1
    """Background workers per rank that build packs; 0 builds them in the training process."""
    leave_out: list[str] = field(default_factory=list)
    """Ids of samples that are skipped where the plan has them, so that a run gets past a pack that stopped it."""


@dataclass
class LossConfig:
    ce_weight: float = 1.0
    mse_weight: float = 1.0
    special_token_weight: float = 3.0
    """Labels that are structure tags multiply their token weight by this before normalisation."""
    timestep_shift: float = 1.0


@dataclass
class OptimConfig:
    lr: float = 5e-5
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-15
    weight_decay: float = 0.0
    warmup_steps: int = 500
    schedule: str = "constant"
    min_lr: float = 0.0
    """Where the cosine ends at the last step; unused by `constant`."""
    clip: float = 5.0
    """Global L2 norm."""


@dataclass
class EmaConfig:
    decay: float = 0.9999
    warmup: bool = False
    """Decay min(decay, (1 + n) / (10 + n)) at update n, for runs much shorter than 1 / (1 - decay) steps."""


@dataclass
class LoraConfig:
    """Low-rank adapters (peft) on every linear layer of both experts. They and the vocabulary tables are trained then,
    and everything else is frozen."""

    rank: int = 0
    """0 trains the weights themselves."""
    alpha: float = 32.0
    """Adapters are scaled by alpha / rank."""
    dropout: float = 0.0
    base_dtype: str = "fp32"
    """What the frozen weights are kept in: `fp32` or `bf16`."""


@dataclass
class ExportConfig:
    """The model folder RUN/final that inference takes."""

    weights: str = "ema"
    """`ema`, their moving average, or `model`, the weights themselves."""
    dtype: str = "fp32"
    """Of the weights: `fp32` or `bf16`."""
    shard_gib: float = 40.0
    """Largest file of weights; more become several with an index. The public code reads one file only."""
    prompts: str = "full"
    """Name of the agent's prompts that the model was trained with."""


@dataclass
class ParallelConfig:
    shard: Optional[int] = None
    """Ranks that share one copy of the parameters; the whole world when both are omitted."""
    replicate: Optional[int] = None
    """Copies of the parameters; inferred as world size / shard when omitted."""
    packs_per_step: int = 1
    """Packs in one optimiser step over all ranks; accumulation is packs_per_step / ranks. A run may continue with
    another number: what is left of the epoch is then planned anew."""
    dtype: str = "fp32"
    """Compute dtype: `fp32`, or `bf16` with fp32 master weights and reductions."""
    threads: Optional[int] = None
    """CPU threads per rank for torch; the machine's cores divided among its ranks when omitted."""
    strategy: str = "fsdp"
    """`fsdp` (FSDP2), or `deepspeed_zero2`, `deepspeed_zero3` (docs/deepspeed.md), which shard over all ranks."""
    checkpointing: str = "none"
    """Activations kept for the backward pass: all (`none`), each block's input only (`full`), or that and what its
    attention returned (`selective`: attention is not computed twice)."""
    compile: bool = False
    """torch.compile of each block of the decoder and the ViT, the attention between excepted."""
    offload: bool = False
    """Parameters, gradients and optimiser state live in host memory; needs a GPU."""


@dataclass
class PlanningConfig:
    """What `plan` assumes of machines, and of data that is not there (docs/planning.md)."""

    card: str = "h20"
    """A card of `training/planning/cards.py`: its memory, its bf16 FLOP/s, its links."""
    world: Optional[int] = None
    """Ranks to plan for; parallel.replicate x parallel.shard when omitted, else the ranks that torchrun started."""
    node: int = 8
    """Cards in a node: traffic among more of them crosses the network."""
    network: float = 50.0
    """GB/s that each card sends to other nodes (50: one 400 Gb/s adapter for each card)."""
    mfu: list[float] = field(default_factory=lambda: [0.2, 0.3, 0.4, 0.5, 0.6])
    """Shares of the card's FLOP/s for which seconds per step are stated."""
    references: int = 2
    """Reference pictures of an assumed sample."""
    picture: int = 1024
    """Pixels of its pictures' long side (4:3; the generated one is square), before the transforms."""
    trained_text: float = 0.4
    """Share of its text that carries a loss."""
    dry_run: bool = False
    """Also executes one step of rank 0 on tensors without storage, collectives included, and compares."""


@dataclass
class CheckpointConfig:
    every: int = 500
    keep_last: int = 2
    asynchronous: bool = True
    """Write while training goes on, from a copy in host memory; without it, training waits and nothing is copied."""


@dataclass
class GuardsConfig:
    """When a run stops by itself, before the step in question changes a weight. A loss or gradient that is not finite
    always stops it."""

    first_ce: Optional[float] = 0.9
    """Stop a run from stored weights whose first cross-entropy exceeds this share of ln(vocabulary)."""
    spike: Optional[float] = 5.0
    """Stop when the loss exceeds this many times the median of the steps before it."""
    spike_steps: int = 100
    """Steps of that median; nothing is called a spike before a fifth of them are done."""


@dataclass
class SamplesConfig:
    """Pictures drawn from fixed prompts with the averaged weights, while training: RUN/samples."""

    every: Optional[int] = None
    """Draw after every so many steps, and after the last one; never when omitted."""
    prompts: list[str] = field(default_factory=list)
    file: Optional[str] = None
    """More prompts, one a line."""
    size: Optional[tuple[int, int]] = None
    """Height and width in pixels; the largest square of the VAE transform when omitted."""
    steps: int = 25
    """Points of time of the sampler."""
    text_scale: float = 4.0
    """Guidance; 1 draws without."""
    seed: int = 0


@dataclass
class LoggingConfig:
    every: int = 10
    """Console line every so many steps where there is no terminal; metrics.jsonl has every step."""
    wandb: bool = False
    """Also log to Weights & Biases (offline without an API key)."""
    tensorboard: bool = False
    project: str = "unify-agent"
    stuck_after: float = 300.0
    """Seconds without progress after which a table of all ranks and what they are at is printed."""
    samples: SamplesConfig = field(default_factory=SamplesConfig)


@dataclass
class VaeTrainingConfig:
    """Task `vae`: trains a small autoencoder of `model.arch`'s shape; the top-level steps, seed and output apply."""

    pictures: Optional[str] = None
    """`package.module:Class`, a source of training pictures with `batch(step, size)`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of that class."""
    batch_size: int = 32
    lr: float = 2e-3
    warmup: int = 100
    kl_weight: float = 1e-6
    kl_floor: float = 0.5
    """nats a latent below which the KL term stops pulling"""
    latent_noise: float = 0.05
    """Extra noise on the latents the decoder sees, relative to their spread."""
    ema: float = 0.995
    clip: float = 1.0
    evaluate_pictures: int = 256
    bf16: bool = True


@dataclass
class Config:
    task: str = "sft"
    recipe: Optional[str] = None
    """Name of the recipe, filled in by the entry point; kept as provenance."""
    output: str = "outputs/train"
    """Run folder: config, metrics, checkpoints and the exported model. The same command continues it."""
    plan: str = "false"
    """`true` prints the size of what would be trained and stops, `json` prints it as one object; needs neither weights
    nor data."""
    preflight: bool = False
    """Check machines, files and the network for this run, and stop (docs/cluster.md)."""
    seed: int = 0
    steps: int = 10000
    layout: str = "paper"
    """Layout preset; stored in the export so that inference matches."""
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    ema: EmaConfig = field(default_factory=EmaConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    export: ExportConfig = field(default_factory=ExportConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    planning: PlanningConfig = field(default_factory=PlanningConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    guards: GuardsConfig = field(default_factory=GuardsConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    vae: VaeTrainingConfig = field(default_factory=VaeTrainingConfig)
