"""From a configuration to the parts of a run: model, frozen VAE, grammar and the loader of packs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from torch import Tensor

from unify_agent import files
from unify_agent.datasets.kinds import kinds
from unify_agent.datasets.loader import Dropout, Loader
from unify_agent.datasets.sources import Mixture, Source, SourceContext, count_reasons
from unify_agent.errors import UserError, nearest
from unify_agent.interleave.batch import PackedBatch, PackRules
from unify_agent.interleave.blocks import BLOCK
from unify_agent.interleave.grammar import STRUCTURE_TAGS, Grammar
from unify_agent.interleave.layout import Pixels, Preset
from unify_agent.interleave.packing import Limits
from unify_agent.interleave.transforms import Transform
from unify_agent.model.bagel import Bagel
from unify_agent.model.config import PRESETS, BagelConfig, vae_from_json
from unify_agent.model.initialise import initialise
from unify_agent.model.loading import grown, on_meta, shapes
from unify_agent.model.vae import FluxVae, encode_batch, load_vae
from unify_agent.model.weights import ModelFolder, Weights
from unify_agent.training import plugins
from unify_agent.training.config import Config, SourceConfig, TransformConfig
from unify_agent.training.parallel import World


@dataclass(frozen=True)
class Start:
    """What a run starts from. `folder`: where its weights are, None for random ones; `origin` says so in words."""

    shape: BagelConfig
    vae: FluxVae
    grammar: Grammar
    tokenizer: Path
    folder: ModelFolder | None
    origin: str


@dataclass
class Assembly:
    """What a trainer works with. With `weights` the model has no storage yet; they are to fill it."""

    start: Start
    model: Bagel
    weights: Weights | None
    vae: FluxVae
    grammar: Grammar
    pixels: Pixels
    loader: Loader
    encode: Callable[[PackedBatch], Tensor]

    @property
    def origin(self) -> str:
        return self.start.origin

    @property
    def data_line(self) -> str:
        plan, skipped = self.loader.plan(0), self.loader.skipped
        samples = sum(len(pack) for pack in plan.packs)
        line = f"an epoch is {samples} samples in {plan.steps} steps, fill {plan.fill:.0%}"
        if skipped:
            reasons = ", ".join(f"{number} {reason}" for reason, number in count_reasons(skipped).items())
            line += f"; skipped {len(skipped)}: {reasons}"
        return line


def assemble(config: Config, world: World) -> Assembly:
    """Raises UserError, in one line, for whatever of the configuration's files is missing or does not fit."""
    if config.model.attention == "flex" and world.device.type != "cuda":
        raise UserError("model.attention=flex trains on a GPU only: FlexAttention has no backward pass on a CPU")
    if not config.data.sources:
        raise UserError("data.sources is empty: name a folder of trajectories, or choose a recipe with +recipe=NAME")
    begin = start(config)
    shape, vae, grammar = begin.shape, begin.vae.to(world.device), begin.grammar
    weights = Weights(begin.folder, shape) if begin.folder else None
    pixels = pixels_of(config, shape)
    loader = loader_of(config, world, grammar, pixels, shape)
    return Assembly(
        start=begin,
        model=on_meta(shape) if weights else initialise(Bagel(shape), config.seed),
        weights=weights,
        vae=vae,
        grammar=grammar,
        pixels=pixels,
        loader=loader,
        encode=lambda batch: encode_batch(vae, batch, shape.latent_patch_size),
    )


def start(config: Config) -> Start:
    """Reads everything a run starts from but the weights. Raises UserError as `assemble`."""
    return _pretrained(config) if config.model.init == "pretrained" else _random(config)


def _pretrained(config: Config) -> Start:
    if config.model.path is None:
        raise UserError(
            "model.path is not set: name a BAGEL-layout folder to fine-tune; model.init=random trains from scratch"
        )
    folder = ModelFolder(config.model.path)
    if config.model.arch is not None:
        _same_architecture(folder, str(config.model.arch))
    grammar, origin = folder.grammar(), str(config.model.path)
    shape = replace(grown(folder.config, grammar.size), timestep_shift=config.loss.timestep_shift)
    if shape.llm.vocab_size > folder.config.llm.vocab_size:
        origin += f", its vocabulary grown from {folder.config.llm.vocab_size} to {shape.llm.vocab_size} rows"
    return Start(shape, folder.vae(), grammar, folder.path, folder, origin)


def _same_architecture(folder: ModelFolder, arch: str) -> None:
    ours, theirs = shapes(folder.config), shapes(architecture(arch))
    for name in [*theirs, *ours]:
        if ours.get(name) != theirs.get(name):
            raise UserError(
                f"{folder.path}: not of model.arch={arch}: {name} is {ours.get(name, 'absent')}, "
                f"there {theirs.get(name, 'absent')}; leave model.arch out to train what the folder holds"
            )


def _random(config: Config) -> Start:
    for key in ("arch", "vae", "tokenizer"):
        if getattr(config.model, key) is None:
            raise UserError(
                f"model.{key} is not set: model.init=random needs model.arch, model.vae and model.tokenizer"
            )
    arch = str(config.model.arch)
    base = architecture(arch)
    folder, tokenizer = Path(str(config.model.vae)), Path(str(config.model.tokenizer))
    if not (folder / "vae.json").is_file():
        raise UserError(f"model.vae={folder}: no autoencoder here; train one: python train.py +recipe=openmoji_vae")
    shape = replace(
        base,
        vae=vae_from_json(files.read_json(folder / "vae.json"), str(folder / "vae.json")),
        timestep_shift=config.loss.timestep_shift,
    )
    grammar = Grammar.load(tokenizer)
    if grammar.size > shape.llm.vocab_size:
        raise UserError(
            f"{tokenizer}: {grammar.size} tokens do not fit the model's table of {shape.llm.vocab_size} rows"
        )
    vae = load_vae(folder / "ae.safetensors", shape.vae)
    return Start(shape, vae, grammar, tokenizer, None, f"random weights ({arch}, seed {config.seed})")


def architecture(name: str) -> BagelConfig:
    """A preset, or the `BagelConfig` that `package.module:NAME` names."""
    if ":" in name:
        return plugins.load(name, "model.arch")
    if name not in PRESETS:
        raise UserError(f"model.arch={name}: no such preset{nearest(name, list(PRESETS))}")
    return PRESETS[name]


def pixels_of(config: Config, shape: BagelConfig) -> Pixels:
    """How pictures enter. Raises UserError for transforms that the model's patches or position tables can't take."""
    data, vit = config.data, shape.vit
    return Pixels(
        vae=_transform(data.vae_transform, "data.vae_transform", shape.pixels_per_token, shape.max_latent_size),
        vit=_transform(data.vit_transform, "data.vit_transform", vit.patch_size, shape.vit_max_num_patch_per_side),
        vae_patch=shape.pixels_per_token,
        vit_patch=shape.vit.patch_size,
    )


def _transform(config: TransformConfig, key: str, patch: int, side: int) -> Transform:
    """Sizes are checked against the model's patches and position table before anything is trained."""
    if config.stride % patch:
        raise UserError(f"{key}.stride={config.stride}: must be a multiple of the model's patch of {patch} pixels")
    if config.max < config.min:
        raise UserError(f"{key}.max={config.max}: must not be below {key}.min={config.min}")
    if config.max > side * patch:
        raise UserError(
            f"{key}.max={config.max}: the model's position table holds {side} patches of {patch} pixels, "
            f"so pictures of at most {side * patch}"
        )
    return Transform(config.max, config.min, config.stride)


def loader_of(config: Config, world: World, grammar: Grammar, pixels: Pixels, shape: BagelConfig) -> Loader:
    """The packs of this rank. Raises UserError for sources that are not there or can't be used."""
    data, preset = config.data, cast(Preset, config.layout)  # one of them: compose.check looked
    context = SourceContext(
        grammar=grammar,
        pixels=pixels,
        preset=preset,
        copies=data.noise_copies,
        cache=Path(config.output) / "index",
    )
    sources = [_source(each, context, f"data.sources[{n}]") for n, each in enumerate(data.sources)]
    mixture = Mixture(sources, [each.weight for each in data.sources], limit=data.max_tokens_per_sample)
    limits = Limits(
        expected_tokens=data.expected_tokens,
        max_tokens=data.max_tokens,
        max_tokens_per_sample=data.max_tokens_per_sample,
        packs_per_step=config.parallel.packs_per_step,
        window_steps=data.window_steps,
        group_by_cost=data.group_by_cost,
    )
    return Loader(
        mixture,
        limits,
        rules_of(config, grammar, shape),
        seed=config.seed,
        rank=world.rank,
        world=world.size,
        workers=data.workers,
        preset=preset,
        dropout=Dropout(data.dropout.text, data.dropout.vit, data.dropout.vae),
        pad_to=padding_of(config),
        pin=world.device.type == "cuda",
        leave_out=data.leave_out,
    )


def rules_of(config: Config, grammar: Grammar, shape: BagelConfig) -> PackRules:
    """What packing must know of model and recipe."""
    return PackRules(
        bos=grammar.bos,
        eos=grammar.eos,
        start_of_image=grammar.start_of_image,
        end_of_image=grammar.end_of_image,
        latent_side=shape.max_latent_size,
        vit_side=shape.vit_max_num_patch_per_side,
        tag_ids=frozenset(grammar.tag_ids[tag] for tag in STRUCTURE_TAGS),
        tag_weight=config.loss.special_token_weight,
    )
def padding_of(config: Config) -> int:
    """Packs are padded to a multiple of this many slots."""
    return BLOCK if config.model.attention == "flex" else 1


def _source(config: SourceConfig, context: SourceContext, key: str) -> Source:
    options = dict(config.options)
    if config.path is not None:
        options["path"] = config.path
    known = kinds()
    if config.kind in known:
        if config.path is None:
            raise UserError(f"{key}.path is not set: name the folder or file of {config.kind}")
        kind = known[config.kind]
    elif ":" in config.kind:
        kind = plugins.load(config.kind, f"{key}.kind")
    else:
        raise UserError(f"{key}.kind={config.kind}: no such kind of source{nearest(config.kind, list(known))}")
    return plugins.call(kind, (context,), options, f"{key}.options")
