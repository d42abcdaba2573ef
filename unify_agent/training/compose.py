"""Command line -> typed `Config`, through Hydra's compose API.

Hydra composes `configs/config.yaml`, the chosen groups, the recipe and the overrides; the dataclasses of
`config.py` are the schema. Composing through the API (not `hydra.main`) keeps Hydra from creating output folders,
changing the working directory or setting up logging in every rank.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args, get_type_hints

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from unify_agent.errors import UserError, nearest
from unify_agent.training import config as schema

ConfigStore.instance().store(name="schema", node=schema.Config)


def recipe_names(recipes: Path) -> list[str]:
    return sorted(path.stem for path in (recipes / "recipe").glob("*.yaml"))


def load_config(overrides: Sequence[str], configs: Path, recipes: Path) -> schema.Config:
    """Compose and check one run's configuration.

    overrides: Hydra's grammar, e.g. ["+recipe=openmoji_cpu", "optim.lr=1e-3"].
    Raises UserError with one line: unknown recipe, group option or key (the nearest real one named), bad value.
    """
    overrides, recipe = _take_recipe(overrides, recipes)
    search_path = f"hydra.searchpath=[file://{recipes.resolve()}]"
    try:
        with initialize_config_dir(str(configs.resolve()), version_base="1.3"):
            composed = compose("config", overrides=[search_path, *overrides])
        # `+key=value` opens the struct, so the schema has the last word.
        strict = OmegaConf.merge(OmegaConf.structured(schema.Config), OmegaConf.to_container(composed))
        if strict.recipe is not None:
            raise UserError(f"recipe={strict.recipe} was not loaded; use +recipe=NAME with a file in {recipes}/recipe")
        strict.recipe = recipe
        config = _typed(strict)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(_one_line(error)) from None
    check(config)
    return config


def read_config(path: Path) -> schema.Config:
    """The configuration that a run has written. Raises UserError in one line, as `load_config`."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; a run folder has one")
    try:
        strict = OmegaConf.merge(OmegaConf.structured(schema.Config), OmegaConf.load(path))
        config = _typed(strict)
    except (OmegaConfBaseException, YAMLError) as error:
        raise UserError(f"{path}: {_one_line(error)}") from None
    check(config)
    return config


def _typed(strict: Any) -> schema.Config:
    config = OmegaConf.to_object(strict)
    assert isinstance(config, schema.Config)
    config.plan = config.plan.lower()  # YAML's true is a boolean, whose name is True
    return config


def to_yaml(config: schema.Config) -> str:
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def _take_recipe(overrides: Sequence[str], recipes: Path) -> tuple[list[str], str | None]:
    """Accept `recipe=NAME` and `+recipe=NAME`; an unknown name is an error that lists the nearest ones."""
    kept, chosen = [], None
    for override in overrides:
        match = re.fullmatch(r"\+?\+?recipe=(.*)", override)
        if match is None:
            kept.append(override)
            continue
        if chosen is not None:
            raise UserError(f"two recipes given ({chosen} and {match[1]}); choose one")
        chosen = match[1].strip("'\"")
        names = recipe_names(recipes)
        if chosen not in names:
            raise UserError(f"unknown recipe {chosen!r}{nearest(chosen, names)}")
        kept.append(f"+recipe={chosen}")
    return kept, chosen


def keys(node: Any = schema.Config, prefix: str = "") -> Iterator[str]:
    """Every dotted key of the schema, groups and the fields of list entries included."""
    hints = get_type_hints(node)
    for item in fields(node):
        yield prefix + item.name
        for inner in (hints[item.name], *get_args(hints[item.name])):
            if is_dataclass(inner):
                yield from keys(inner, f"{prefix}{item.name}.")


def _one_line(error: Exception) -> str:
    """Hydra's and OmegaConf's multi-line errors as one line that names the key and the nearest real one."""
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    text = str(error)
    if text.startswith(str(cause)):
        text = str(cause)
    full_key = getattr(cause, "full_key", None) or _search(r"full_key: (\S+)", text)
    where = _search(r"^In '([^']+)'", text)
    where = f" in {where}.yaml" if where and where != "config" else ""
    missing = _search(r"Could not find '([^']+)'", text)
    if missing:
        group, _, option = missing.rpartition("/")
        options = re.findall(
            r"^\t(.+)$", text.partition("Available options")[2].partition("Config search path")[0], re.M
        )
        return f"unknown option {option!r} for {group}{nearest(option, options)}"
    for line in (str(cause), text):
        if full_key and re.search(r"\bnot in\b", line):
            known = list(keys())
            wanted = _search(r"Could not override '([^']+)'", text) or full_key
            if wanted in known:  # the unknown key lies inside a list's entry
                wanted += "." + (_search(r"Key '([^']+)'", str(cause)) or "?")
            return f"unknown key {wanted!r}{where}; {_nearest_key(wanted, known)}"
    summary = str(cause).splitlines()[0]
    if full_key:
        return f"{full_key}{where}: {summary}"
    if "parsing override" in text or "viable alternative" in text or "mismatched input" in text:
        asked = _search(r"parsing override '([^']*)'", text)
        return f"cannot read the argument {asked or summary!r}: write key=value"
    return summary


def _nearest_key(wanted: str, known: Sequence[str]) -> str:
    """Compare whole dotted keys and last parts, so that `lr` and `optim.lrr` both find `optim.lr`."""
    leaf = wanted.rpartition(".")[2]
    by_leaf = {key.rpartition(".")[2]: key for key in reversed(known)}
    names = difflib.get_close_matches(wanted, known, n=2, cutoff=0.7)
    names += [by_leaf[name] for name in difflib.get_close_matches(leaf, list(by_leaf), n=2, cutoff=0.7)]
    unique = list(dict.fromkeys(names))[:3]
    if unique:
        return "did you mean " + " or ".join(unique) + "?"
    return "python train.py --cfg job lists every key"


def _search(pattern: str, text: str) -> str | None:
    found = re.search(pattern, text, re.M)
    return found[1] if found else None


def check(config: schema.Config) -> None:
    """Values that the types cannot express. Raises UserError naming the key."""

    def require(ok: bool, key: str, rule: str) -> None:
        if not ok:
            raise UserError(f"{key}={attrgetter(key)(config)}: {rule}")

    def one_of(key: str, choices: Sequence[str]) -> None:
        value = attrgetter(key)(config)
        if value not in choices:
            raise UserError(f"{key}={value}: unknown; choose one of {', '.join(choices)}")

    one_of("task", schema.TASKS)
    one_of("layout", schema.LAYOUTS)
    one_of("model.init", schema.INITS)
    one_of("model.attention", schema.ATTENTIONS)
    one_of("optim.schedule", schema.SCHEDULES)
    one_of("export.weights", schema.WEIGHTS)
    one_of("export.dtype", schema.DTYPES)
    one_of("parallel.dtype", schema.DTYPES)
    one_of("parallel.strategy", schema.STRATEGIES)
    one_of("parallel.checkpointing", schema.CHECKPOINTING)
    one_of("lora.base_dtype", schema.DTYPES)
    one_of("plan", schema.PLANS)
    for key in (
        "steps",
        "parallel.packs_per_step",
        "checkpoint.every",
        "checkpoint.keep_last",
        "guards.spike_steps",
        "logging.every",
        "data.window_steps",
        "data.noise_copies",
        "data.expected_tokens",
        "vae.batch_size",
    ):
        require(attrgetter(key)(config) >= 1, key, "must be at least 1")
    require(len(config.optim.betas) == 2, "optim.betas", "two numbers, e.g. [0.9,0.95]")
    for key in ("guards.first_ce", "guards.spike", "logging.stuck_after"):
        value = attrgetter(key)(config)
        require(value is None or value > 0, key, "must be above 0")
    if config.logging.samples.every is not None:
        _samples(config.logging.samples, require)
    require(0 <= config.ema.decay < 1, "ema.decay", "must be at least 0 and below 1")
    require(config.optim.clip > 0, "optim.clip", "must be above 0")
    require(config.lora.rank >= 0, "lora.rank", "must not be negative; 0 trains the weights themselves")
    require(config.lora.alpha > 0, "lora.alpha", "must be above 0")
    require(0 <= config.lora.dropout < 1, "lora.dropout", "must be at least 0 and below 1")
    if config.lora.rank:
        require(config.model.init == "pretrained", "model.init", "lora.rank is for stored weights; leave one out")
        half = config.lora.base_dtype == "bf16" and config.parallel.dtype != "bf16"
        require(not half, "lora.base_dtype", "is only computed with parallel.dtype=bf16")
    _strategy(config, require)
    _planning(config, require)
    require(config.export.shard_gib > 0, "export.shard_gib", "must be above 0")
    require(config.data.workers >= 0, "data.workers", "must not be negative")
    require(
        config.data.expected_tokens <= config.data.max_tokens,
        "data.expected_tokens",
        f"must not exceed data.max_tokens={config.data.max_tokens}",
    )
    require(
        config.data.max_tokens_per_sample <= config.data.max_tokens,
        "data.max_tokens_per_sample",
        f"must not exceed data.max_tokens={config.data.max_tokens}",
    )
    for name in ("text", "vit", "vae"):
        require(0 <= getattr(config.data.dropout, name) <= 1, f"data.dropout.{name}", "must lie in [0, 1]")


def _samples(samples: schema.SamplesConfig, require: Callable[[bool, str, str], None]) -> None:
    key = "logging.samples"
    require(samples.every is not None and samples.every >= 1, f"{key}.every", "must be at least 1")
    require(bool(samples.prompts or samples.file), f"{key}.every", f"needs {key}.prompts or {key}.file")
    require(samples.steps >= 2, f"{key}.steps", "must be at least 2")


def _strategy(config: schema.Config, require: Callable[[bool, str, str], None]) -> None:
    """What DeepSpeed has no place for."""
    parallel = config.parallel
    if parallel.strategy == "fsdp":
        return
    only = f"parallel.strategy={parallel.strategy}"
    for key in ("shard", "replicate"):
        require(getattr(parallel, key) is None, f"parallel.{key}", f"{only} shards over all ranks; leave it out")
    for key in ("compile", "offload"):
        require(not getattr(parallel, key), f"parallel.{key}", f"not with {only}; parallel.strategy=fsdp has it")
    require(config.lora.rank == 0, "lora.rank", f"not with {only}; parallel.strategy=fsdp has it")
    every = config.logging.samples.every
    require(every is None, "logging.samples.every", f"not with {only}; parallel.strategy=fsdp has it")


def _planning(config: schema.Config, require: Callable[[bool, str, str], None]) -> None:
    planning = config.planning
    require(planning.world is None or planning.world >= 1, "planning.world", "must be at least 1")
    require(planning.node >= 1, "planning.node", "must be at least 1")
    require(planning.network > 0, "planning.network", "must be above 0")
    require(bool(planning.mfu) and all(0 < each <= 1 for each in planning.mfu), "planning.mfu", "numbers in (0, 1]")
    require(planning.references >= 0, "planning.references", "must not be negative")
    require(planning.picture >= 1, "planning.picture", "must be at least 1")
    require(0 <= planning.trained_text <= 1, "planning.trained_text", "must lie in [0, 1]")
