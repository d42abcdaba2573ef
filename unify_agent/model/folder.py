"""What a model folder says, without reading its weights; a folder may also be a repository on the hub."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import isqrt
from pathlib import Path
from typing import Any

import torch

from unify_agent import files
from unify_agent.errors import UserError, nearest
from unify_agent.interleave.grammar import Grammar
from unify_agent.interleave.layout import PRESETS
from unify_agent.interleave.transforms import Transform
from unify_agent.model.config import (
    BagelConfig,
    VaeConfig,
    llm_from_json,
    vae_from_json,
    vae_to_json,
    vit_from_json,
)
from unify_agent.model.tensors import Stored, WeightsError, stored
from unify_agent.model.vae import FluxVae, load_vae

DESCRIPTION = "unify_agent.json"
WEIGHTS = ("ema", "model")
TABLES = {"latent_pos_embed.pos_embed": "max_latent_size", "vit_pos_embed.pos_embed": "vit_max_num_patch_per_side"}
"""Fixed position tables and the size that each states. They are computed, never read."""
_SIZES = ("latent_patch_size", "max_latent_size", "vit_max_num_patch_per_side", "timestep_shift")


@dataclass(frozen=True)
class Description:
    """unify_agent.json apart from the architecture. The defaults describe the public release."""

    layout: str = "released"
    transforms: Mapping[str, Transform] = field(
        default_factory=lambda: {"vae": Transform(1024, 512, 16), "vit": Transform(980, 378, 14)}
    )
    prompts: str = "full"
    provenance: Mapping[str, Any] = field(default_factory=dict)


class ModelFolder:
    """`source`: a local path, or the id of a repository on the hub.

    Raises:
        UserError: in one line, what is no folder in BAGEL's layout, or which key of which file is wrong.
    """

    def __init__(self, source: Path | str) -> None:
        self.path = _local(source)
        for name in ("llm_config.json", "vit_config.json", "ae.safetensors"):
            if not (self.path / name).is_file():
                raise UserError(f"{self.path}: {name} is missing, so this is no folder in BAGEL's layout")
        file = self.path / DESCRIPTION
        raw = files.read_json(file, "model description") if file.is_file() else {}
        if not isinstance(raw, dict):
            raise UserError(f"{file}: must be an object")
        known = ("vae", "sizes", "layout", "transforms", "prompts", "provenance")
        for key in raw:
            if key not in known:
                raise UserError(f"{file}: unknown key {key!r}{nearest(key, known)}")
        self.description = _description(raw, file)
        self.config = self._config(raw, file)

    @property
    def transforms(self) -> Mapping[str, Transform]:
        return self.description.transforms

    @property
    def layout(self) -> str:
        return self.description.layout

    @property
    def prompts(self) -> str:
        return self.description.prompts

    def grammar(self) -> Grammar:
        return Grammar.load(self.path)

    def vae(self, dtype: torch.dtype = torch.float32) -> FluxVae:
        """The frozen autoencoder."""
        return load_vae(self.path / "ae.safetensors", self.config.vae, dtype)

    @cached_property
    def tensors(self) -> dict[str, Stored]:
        """Every tensor of the weights: where it is, its shape and dtype.

        Raises:
            UserError: there are no weights, a shard is absent or a file is cut short.
        """
        for stem in WEIGHTS:
            whole, index = self.path / f"{stem}.safetensors", self.path / f"{stem}.safetensors.index.json"
            if whole.is_file():
                return stored(whole)
            if index.is_file():
                return self._sharded(index)
        raise UserError(
            f"{self.path}: no weights; expected ema.safetensors, model.safetensors or one of them in shards "
            "with an index"
        )

    def _sharded(self, index: Path) -> dict[str, Stored]:
        raw = files.read_json(index, "index of weights")
        placed = raw.get("weight_map") if isinstance(raw, dict) else None
        if not isinstance(placed, dict):
            raise UserError(f"{index}: weight_map is missing")
        shards = {shard: stored(self.path / shard) for shard in sorted(set(placed.values()))}
        lost = [
            f"{index}: tensor {name} is not in {shard}" for name, shard in placed.items() if name not in shards[shard]
        ]
        if lost:
            raise WeightsError(index, {"missing": lost})
        return {name: shards[shard][name] for name, shard in placed.items()}

    def _config(self, raw: dict[str, Any], file: Path) -> BagelConfig:
        llm = llm_from_json(files.read_json(self.path / "llm_config.json"), str(self.path / "llm_config.json"))
        vit = vit_from_json(files.read_json(self.path / "vit_config.json"), str(self.path / "vit_config.json"))
        vae = vae_from_json(raw["vae"], f"{file}: vae") if "vae" in raw else VaeConfig()
        sizes = raw.get("sizes")
        if sizes is None:  # a public release keeps its sizes in its tables
            sizes = {key: self._side(name) for name, key in TABLES.items() if name in self.tensors}
        for key, value in sizes.items():
            if key not in _SIZES:
                raise UserError(f"{file}: sizes: unknown key {key!r}{nearest(key, _SIZES)}")
            if not isinstance(value, (int, float) if key == "timestep_shift" else int) or value <= 0:
                raise UserError(f"{file}: sizes: {key} is {value!r}, a number above 0 is expected")
        return BagelConfig(llm=llm, vit=vit, vae=vae, **sizes)

    def _side(self, table: str) -> int:
        where = self.tensors[table]
        side = isqrt(where.shape[0])
        if side**2 != where.shape[0]:
            raise UserError(f"{where.file}: the position table {table} has {where.shape[0]} rows, which is no square")
        return side


def describe(config: BagelConfig, description: Description) -> dict[str, Any]:
    """unify_agent.json, as `ModelFolder` reads it."""
    return {
        "layout": description.layout,
        "prompts": description.prompts,
        "transforms": {use: dataclasses.asdict(t) for use, t in description.transforms.items()},
        "sizes": {key: getattr(config, key) for key in _SIZES},
        **({} if config.vae == VaeConfig() else {"vae": vae_to_json(config.vae)}),
        "provenance": dict(description.provenance),
    }


def _local(source: Path | str) -> Path:
    path = Path(source)
    if path.is_dir():
        return path
    if str(source).count("/") == 1 and not str(source).startswith((".", "/", "~")):
        return _fetched(str(source))
    raise UserError(f"{source}: no such folder")


def _fetched(repository: str) -> Path:
    """The folder of a hub repository, downloaded once."""
    from httpx import HTTPError
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        return Path(snapshot_download(repository, allow_patterns=["*.json", "*.safetensors", "*.txt"]))
    except (LocalEntryNotFoundError, OfflineModeIsEnabled):
        raise UserError(
            f"{repository}: no such folder, not fetched before, and the hub cannot be reached from here; fetch it "
            f"where there is a network (hf download {repository} --local-dir DIR) and name that folder"
        ) from None
    except (HTTPError, HFValidationError, OSError) as error:
        raise UserError(
            f"{repository}: neither a folder nor a model that the hub gives out ({str(error).splitlines()[0]})"
        ) from None


def _description(raw: dict[str, Any], file: Path) -> Description:
    given: dict[str, Any] = {key: raw[key] for key in ("layout", "prompts", "provenance") if key in raw}
    if given.get("layout", "paper") not in PRESETS:
        raise UserError(f"{file}: layout {given['layout']!r} is unknown{nearest(str(given['layout']), PRESETS)}")
    if "transforms" in raw:
        try:
            given["transforms"] = {use: Transform(**raw["transforms"][use]) for use in ("vae", "vit")}
        except (KeyError, TypeError) as error:
            raise UserError(
                f"{file}: transforms must give max_size, min_size and stride for vae and vit ({error})"
            ) from None
    return Description(**given)
