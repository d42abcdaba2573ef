"""A model folder in BAGEL's layout, in and out.

    llm_config.json, vit_config.json      architecture, as the public code reads it
    ema.safetensors                       weights (or model.safetensors, or shards with an index)
    ae.safetensors                        the autoencoder under FLUX's names
    tokenizer.json, vocab.json, ...       the tokenizer
    unify_agent.json                      what BAGEL's own code keeps in its source: sizes, autoencoder,
                                          layout preset, transforms, prompts, provenance. A folder without it is
                                          a public release.

Loading is strict: every tensor that is missing, unexpected or misshapen is named, a line each. Tensors are read one
by one into a model without storage, so the peak is the model itself.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unify_agent import files
from unify_agent.errors import UserError, nearest
from unify_agent.interleave.grammar import Grammar
from unify_agent.interleave.layout import PRESETS
from unify_agent.interleave.transforms import Transform
from unify_agent.model.bagel import Bagel
from unify_agent.model.config import (
    BagelConfig,
    VaeConfig,
    llm_from_json,
    llm_to_json,
    vae_from_json,
    vae_to_json,
    vit_from_json,
    vit_to_json,
)
from unify_agent.model.embeddings import PositionTable
from unify_agent.model.vae import FluxVae

DESCRIPTION = "unify_agent.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
WEIGHTS = ("ema", "model")
TABLES = {"latent_pos_embed.pos_embed": "max_latent_size", "vit_pos_embed.pos_embed": "vit_max_num_patch_per_side"}
_SHOWN = 20


class WeightsError(UserError):
    """Several problems of one set of weights, a line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        shown = [*problems[:_SHOWN]]
        if len(problems) > _SHOWN:
            shown.append(f"... and {len(problems) - _SHOWN} more")
        self.args = ("\n".join(shown),)


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
    """What a folder says, without reading its weights. `source`: a local path, or the id of a repository on the hub."""

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
        from unify_agent.model.vae import load_vae

        return load_vae(self.path / "ae.safetensors", self.config.vae, dtype)

    def tensor_files(self) -> dict[str, Path]:
        """Every tensor's name and the file that holds it.

        Raises:
            UserError: there are no weights, a shard is absent or a file is cut short.
        """
        for stem in WEIGHTS:
            whole, index = self.path / f"{stem}.safetensors", self.path / f"{stem}.safetensors.index.json"
            if whole.is_file():
                return {name: whole for name in tensor_shapes(whole)}
            if index.is_file():
                placed = files.read_json(index, "index of weights").get("weight_map")
                if not isinstance(placed, dict):
                    raise UserError(f"{index}: weight_map is missing")
                found: dict[str, Path] = {}
                for shard in sorted(set(placed.values())):
                    found |= {name: self.path / shard for name in tensor_shapes(self.path / shard)}
                lost = [
                    f"{index}: tensor {name} is not in {shard}" for name, shard in placed.items() if name not in found
                ]
                if lost:
                    raise WeightsError(lost)
                return found
        raise UserError(
            f"{self.path}: no weights; expected ema.safetensors, model.safetensors or one of them in shards "
            "with an index"
        )

    def _config(self, raw: dict[str, Any], file: Path) -> BagelConfig:
        llm = llm_from_json(files.read_json(self.path / "llm_config.json"), str(self.path / "llm_config.json"))
        vit = vit_from_json(files.read_json(self.path / "vit_config.json"), str(self.path / "vit_config.json"))
        vae = vae_from_json(raw["vae"], f"{file}: vae") if "vae" in raw else VaeConfig()
        sizes = raw.get("sizes")
        if sizes is None:  # a public release keeps its sizes in its tables
            places = self.tensor_files()
            sizes = {
                key: round(tensor_shapes(places[name])[name][0] ** 0.5)
                for name, key in TABLES.items()
                if name in places
            }
        known = {f.name for f in dataclasses.fields(BagelConfig)} - {"llm", "vit", "vae"}
        for key in sizes:
            if key not in known:
                raise UserError(f"{file}: sizes: unknown key {key!r}{nearest(key, sorted(known))}")
        return BagelConfig(llm=llm, vit=vit, vae=vae, **sizes)


def load_model(
    folder: ModelFolder | Path | str, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Bagel:
    """Reads a folder's weights, strictly; the position tables are computed, not read.

    Raises:
        UserError: a line per tensor that is missing, unexpected or misshapen, or the name of a file that is cut short.
    """
    folder = folder if isinstance(folder, ModelFolder) else ModelFolder(folder)
    places = folder.tensor_files()
    with torch.device("meta"):
        model = Bagel(folder.config)
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    by_file: dict[Path, list[str]] = {}
    for name, file in places.items():
        by_file.setdefault(file, []).append(name)
    unbuilt = (
        f"vit_model.vision_model.encoder.layers.{folder.config.vit.layers_built}.",
        "vit_model.vision_model.head.",
    )
    problems = [
        f"{folder.path}: tensor {name} is missing" for name in wanted if name not in places and name not in TABLES
    ]
    for file, names in by_file.items():
        shapes = tensor_shapes(file)
        for name in names:
            if name not in wanted and not name.startswith(unbuilt):
                problems.append(f"{file}: tensor {name} belongs to no model of this configuration")
            elif name in wanted and shapes[name] != wanted[name]:
                problems.append(f"{file}: tensor {name} is {shapes[name]}, the configuration says {wanted[name]}")
    if problems:
        raise WeightsError(problems)
    for file, names in by_file.items():
        with _opened(file, str(device)) as tensors:
            for name in names:
                if name in wanted and name not in TABLES:
                    _place(model, name, tensors.get_tensor(name).to(dtype))
    for name in TABLES:
        _place(model, name, torch.empty(wanted[name], dtype=dtype, device=device))
    for module in model.modules():
        if isinstance(module, PositionTable):
            module.fill()
    return model


def save_folder(
    out: Path | str,
    state: Mapping[str, Tensor],
    config: BagelConfig,
    vae: FluxVae,
    tokenizer: Path | str,
    description: Description,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """Writes a complete folder, or nothing. `state`: the model's weights or their moving average, whole tensors under
    BAGEL's names; `tokenizer`: a folder whose tokenizer files are copied; `dtype`: of ema.safetensors (the
    autoencoder keeps its own).

    Raises:
        UserError: there is no tokenizer to copy, or a tensor is missing.
    """
    from safetensors.torch import save_file

    out, tokenizer = Path(out), Path(tokenizer)
    with torch.device("meta"):
        wanted = Bagel(config).state_dict()
    lost = [f"{out}: tensor {name} is missing from what is to be saved" for name in wanted if name not in state]
    if lost:
        raise WeightsError(lost)
    copied = [tokenizer / name for name in TOKENIZER_FILES if (tokenizer / name).is_file()]
    if not copied:
        raise UserError(f"{tokenizer}: no tokenizer here; expected tokenizer.json, or vocab.json and merges.txt")
    ready = {name: state[name].detach().to("cpu", dtype).contiguous() for name in wanted}
    with files.whole_folder(out) as work:
        save_file(ready, work / "ema.safetensors", metadata={"format": "pt"})
        kept = {name: value.detach().cpu().contiguous() for name, value in vae.original_state_dict().items()}
        save_file(kept, work / "ae.safetensors", metadata={"format": "pt"})
        files.write_json(work / "llm_config.json", llm_to_json(config.llm))
        files.write_json(work / "vit_config.json", vit_to_json(config.vit))
        files.write_json(work / DESCRIPTION, _to_json(config, description))
        for file in copied:
            shutil.copyfile(file, work / file.name)
        for file in work.glob("*.safetensors"):  # safetensors writes through a private temporary file
            file.chmod(0o644)
    return out


def tensor_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a safetensors file, without reading values."""
    with _opened(file) as tensors:
        return {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}


def read_tensors(file: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file.

    Raises:
        UserError: the file is absent, cut short or of another kind.
    """
    with _opened(file) as tensors:
        return {name: tensors.get_tensor(name) for name in tensors.keys()}


def _opened(file: Path, device: str = "cpu") -> Any:
    from safetensors import SafetensorError, safe_open

    if not file.is_file():
        raise UserError(f"{file}: no such file of weights")
    try:
        return safe_open(file, "pt", device=device)
    except SafetensorError as error:
        raise UserError(f"{file}: not a whole safetensors file ({error}); fetch or write it again") from None


def _place(model: Bagel, name: str, value: Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    owner = model.get_submodule(path)
    trained = getattr(owner, leaf).requires_grad
    setattr(owner, leaf, torch.nn.Parameter(value, requires_grad=trained))


def _local(source: Path | str) -> Path:
    path = Path(source)
    if path.is_dir():
        return path
    if str(source).count("/") == 1 and not str(source).startswith((".", "/", "~")):
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

        try:
            return Path(snapshot_download(str(source), allow_patterns=["*.json", "*.safetensors", "*.txt"]))
        except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
            raise UserError(
                f"{source}: neither a folder nor a model that the hub gives out ({str(error).splitlines()[0]})"
            ) from None
    raise UserError(f"{source}: no such folder")


def _description(raw: dict[str, Any], file: Path) -> Description:
    given = {key: raw[key] for key in ("layout", "prompts", "provenance") if key in raw}
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


def _to_json(config: BagelConfig, description: Description) -> dict[str, Any]:
    sizes = {
        key: getattr(config, key)
        for key in ("latent_patch_size", "max_latent_size", "vit_max_num_patch_per_side", "timestep_shift")
    }
    return {
        "layout": description.layout,
        "prompts": description.prompts,
        "transforms": {use: dataclasses.asdict(t) for use, t in description.transforms.items()},
        "sizes": sizes,
        **({} if config.vae == VaeConfig() else {"vae": vae_to_json(config.vae)}),
        "provenance": dict(description.provenance),
    }
