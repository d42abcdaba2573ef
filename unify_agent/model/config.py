"""What a model is made of, as frozen dataclasses, read from and written to BAGEL's own json files.

Geometry that never changes: the VAE halves a picture three times and has 16 channels, a latent token is a 2 x 2 patch
of it, so a token carries 64 numbers and covers 16 x 16 pixels (BAGEL, facts: parameter names and shapes).
"""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass, field
from typing import Any

from unify_agent.errors import UserError

# Keys of llm_config.json / vit_config.json that change nothing here, whatever their value.
_LLM_IGNORED = frozenset(
    {
        "architectures",
        "attention_dropout",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "freeze_und",
        "initializer_range",
        "layer_module",
        "layer_types",
        "max_window_layers",
        "model_type",
        "pad_token_id",
        "sliding_window",
        "tie_word_embeddings",
        "qk_norm",
        "torch_dtype",
        "transformers_version",
        "use_cache",
        "use_sliding_window",
        "hidden_act",
        "rope_scaling",
        "rope_parameters",
        "is_causal",
        "pretraining_tp",
    }
)
_VIT_IGNORED = frozenset(
    {
        "architectures",
        "attention_dropout",
        "dtype",
        "hidden_act",
        "model_type",
        "num_channels",
        "rope",
        "torch_dtype",
        "transformers_version",
        "_name_or_path",
        "projection_dim",
    }
)


@dataclass(frozen=True)
class LlmConfig:
    """The MoT decoder (Qwen2 with q/k norm and one set of weights per expert)."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 0  # 0: hidden_size / num_attention_heads, as in every BAGEL checkpoint
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    max_position_embeddings: int = 32768

    def __post_init__(self) -> None:
        if self.head_dim == 0:
            if self.hidden_size % self.num_attention_heads:
                raise UserError(
                    f"llm_config: hidden_size {self.hidden_size} is no multiple of "
                    f"num_attention_heads {self.num_attention_heads}"
                )
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)
        if self.num_attention_heads % self.num_key_value_heads:
            raise UserError(
                f"llm_config: num_attention_heads {self.num_attention_heads} is no multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise UserError(f"llm_config: head_dim {self.head_dim} must be even for the rotary embedding")
        if self.hidden_size % 4:
            raise UserError(
                f"llm_config: hidden_size {self.hidden_size} must be a multiple of 4 for the position tables"
            )


@dataclass(frozen=True)
class VitConfig:
    """The SigLIP vision tower. `num_hidden_layers` is the file's number; BAGEL builds one layer less."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    image_size: int
    patch_size: int = 14
    layer_norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"vit_config: hidden_size {self.hidden_size} is no multiple of "
                f"num_attention_heads {self.num_attention_heads}"
            )

    @property
    def layers_built(self) -> int:
        """vit_select_layer is -2: the last layer of the file is never used, so it is never built."""
        return self.num_hidden_layers - 1

    @property
    def side(self) -> int:
        """Rows of the learned position table along one side."""
        return self.image_size // self.patch_size

    @property
    def patch_dim(self) -> int:
        return 3 * self.patch_size**2


@dataclass(frozen=True)
class VaeConfig:
    """The FLUX autoencoder; the defaults are FLUX's own. `norm_groups` is 32 there with 4 channels in a group; a small
    autoencoder must lower it with `ch`, since a group of one channel erases a flat colour at the last norm."""

    ch: int = 128
    ch_mult: tuple[int, ...] = (1, 2, 4, 4)
    num_res_blocks: int = 2
    z_channels: int = 16
    norm_groups: int = 32
    scale_factor: float = 0.3611
    shift_factor: float = 0.1159

    def __post_init__(self) -> None:
        object.__setattr__(self, "ch_mult", tuple(int(m) for m in self.ch_mult))
        if len(self.ch_mult) != 4:
            raise UserError(f"vae: ch_mult {self.ch_mult} must have 4 entries (8 pixels to a latent)")
        if self.ch % self.norm_groups:
            raise UserError(f"vae: ch {self.ch} must be a multiple of norm_groups {self.norm_groups}")

    @property
    def downsample(self) -> int:
        return 2 ** (len(self.ch_mult) - 1)


@dataclass(frozen=True)
class BagelConfig:
    """A whole model; the VAE is described here but lives outside the model's state dict."""

    llm: LlmConfig
    vit: VitConfig
    vae: VaeConfig = field(default_factory=VaeConfig)
    latent_patch_size: int = 2
    max_latent_size: int = 64
    vit_max_num_patch_per_side: int = 70
    timestep_shift: float = 1.0

    def __post_init__(self) -> None:
        if self.vit.side != self.vit_max_num_patch_per_side:
            raise UserError(
                f"vit: image_size {self.vit.image_size} / patch_size {self.vit.patch_size} is {self.vit.side}, "
                f"vit_max_num_patch_per_side says {self.vit_max_num_patch_per_side}: both tables share their ids"
            )

    @property
    def latent_dim(self) -> int:
        """Numbers in a latent token (64)."""
        return self.latent_patch_size**2 * self.vae.z_channels

    @property
    def pixels_per_token(self) -> int:
        """Side of the square of pixels that a latent token covers (16)."""
        return self.latent_patch_size * self.vae.downsample


# The embedded world's model: 64 x 64 pictures, 16 latent and 16 ViT patches each.
TINY = BagelConfig(
    # Every head has its own keys and values: with one shared head a layer could carry 32 numbers of a reference token.
    # Sequences are short, so a smaller theta leaves more rotary frequencies that tell neighbours apart.
    llm=LlmConfig(
        vocab_size=2048,
        hidden_size=160,
        intermediate_size=384,
        num_hidden_layers=6,
        num_attention_heads=5,
        num_key_value_heads=5,
        rope_theta=1e4,
        max_position_embeddings=4096,
    ),
    vit=VitConfig(hidden_size=96, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4, image_size=112),
    vae=VaeConfig(ch=16, ch_mult=(1, 2, 4, 4), num_res_blocks=1, norm_groups=4, scale_factor=1.0, shift_factor=0.0),
    max_latent_size=8,
    vit_max_num_patch_per_side=8,
)

BAGEL_7B_MOT = BagelConfig(
    llm=LlmConfig(
        vocab_size=152064,
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
    ),
    vit=VitConfig(
        hidden_size=1152, intermediate_size=4304, num_hidden_layers=27, num_attention_heads=16, image_size=980
    ),
)

PRESETS = {"tiny": TINY, "bagel_7b_mot": BAGEL_7B_MOT}


def llm_from_json(raw: dict[str, Any], where: str = "llm_config.json") -> LlmConfig:
    """Reads llm_config.json.

    Raises:
        UserError: an unknown key, a missing one, or a value this model can't honour.
    """
    _only(raw, "hidden_act", ("silu",), where)
    _only(raw, "use_sliding_window", (False,), where)
    _only(raw, "rope_scaling", (None,), where)
    _only(raw, "attention_dropout", (0, 0.0), where)
    # qk_norm, layer_module, freeze_und and tie_word_embeddings are overridden by BAGEL's own code, whatever the file
    # says.
    return _build(LlmConfig, raw, _LLM_IGNORED, where)


def vit_from_json(raw: dict[str, Any], where: str = "vit_config.json") -> VitConfig:
    """Reads vit_config.json; errors as `llm_from_json`."""
    _only(raw, "hidden_act", ("gelu_pytorch_tanh",), where)
    _only(raw, "num_channels", (3,), where)
    _only(raw, "attention_dropout", (0, 0.0), where)
    return _build(VitConfig, raw, _VIT_IGNORED, where)


def vae_from_json(raw: dict[str, Any], where: str = "unify_agent.json: vae") -> VaeConfig:
    """Reads the `vae` entry of unify_agent.json; errors as `llm_from_json`."""
    _only(raw, "downsample", (8,), where)
    _only(raw, "in_channels", (3,), where)
    _only(raw, "out_ch", (3,), where)
    return _build(VaeConfig, raw, frozenset({"downsample", "in_channels", "out_ch", "resolution"}), where)


def llm_to_json(config: LlmConfig) -> dict[str, Any]:
    """llm_config.json as BAGEL's own loader expects it."""
    raw = dataclasses.asdict(config)
    if config.head_dim * config.num_attention_heads == config.hidden_size:
        del raw["head_dim"]
    return raw | {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "use_cache": True,
    }


def vit_to_json(config: VitConfig) -> dict[str, Any]:
    """vit_config.json as BAGEL's own loader expects it (it counts the layer that is never built)."""
    return dataclasses.asdict(config) | {
        "model_type": "siglip_vision_model",
        "num_channels": 3,
        "hidden_act": "gelu_pytorch_tanh",
        "attention_dropout": 0.0,
    }


def vae_to_json(config: VaeConfig) -> dict[str, Any]:
    return dataclasses.asdict(config) | {"ch_mult": list(config.ch_mult)}


def _only(raw: dict[str, Any], key: str, allowed: tuple[Any, ...], where: str) -> None:
    if key in raw and raw[key] not in allowed:
        raise UserError(f"{where}: {key} is {raw[key]!r}; this model only knows {' or '.join(map(repr, allowed))}")


def _build(kind: type, raw: dict[str, Any], ignored: frozenset[str], where: str) -> Any:
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for key in raw:
        if key not in fields and key not in ignored:
            near = difflib.get_close_matches(key, fields, n=1)
            raise UserError(f"{where}: unknown key {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    required = [
        n for n, f in fields.items() if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    for name in required:
        if name not in raw:
            raise UserError(f"{where}: key {name!r} is missing")
    return kind(**{k: v for k, v in raw.items() if k in fields})
