"""The model card: what a folder holds, how it is loaded here and by the public BAGEL code, and where it comes from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from string import Template
from typing import TYPE_CHECKING

import torch

from unify_agent.model.config import BagelConfig, VaeConfig

if TYPE_CHECKING:
    from unify_agent.model.folder import Description

_CARD = Template("""\
---
library_name: unify-agent
pipeline_tag: any-to-any
tags: [unify-agent, bagel]
---
# A Unify-Agent model

One transformer that thinks, searches, rewrites what it found and then draws, in the folder layout of BAGEL.
$parameters million parameters in $dtype: a decoder of $layers layers of width $hidden with two experts, a ViT of
$vit_layers layers, a vocabulary table of $rows rows. The autoencoder (`ae.safetensors`) is frozen and not counted.

| | |
|---|---|
| layout preset | `$layout` |
| prompts | `$prompts` |
| pictures as latents | long side up to $vae_max, short side from $vae_min, multiples of $vae_stride |
| pictures for the ViT | long side up to $vit_max, short side from $vit_min, multiples of $vit_stride |
| weights | $files |

## Use

With this project:

    python infer.py --model DIR --search index:INDEX --prompt "Draw ..."
    python train.py +recipe=NAME model=bagel model.path=DIR

`unify_agent.json` carries the layout preset, the transforms and the sizes, so inference does what training did.

With the public BAGEL code: it reads `llm_config.json`, `vit_config.json`, `ae.safetensors`, the tokenizer files and
the weights under these names, and keeps in its own source what `unify_agent.json` says:

    BagelConfig(latent_patch_size=$latent_patch, max_latent_size=$latent_side, vit_max_num_patch_per_side=$vit_side)
    vit_config.num_hidden_layers -= 1        # $vit_file_layers in the file, the last one is never built

$public_weights$public_vae
The tags (`<think>`, `<tool_call>`, ...) that the tokenizer files lack take the ids after its last one, in the order
`<observation> </observation> <tool_call> </tool_call> <think> </think> <recaption> </recaption>`; the table must keep
its $rows rows. It knows the `released` layout; a model of another preset draws best with this project.

## Where it comes from

| | |
|---|---|
$provenance

## Licence

These weights derive from what `start` names and from the data that they were trained on, whose licences hold for
them too. The code that made them is Apache-2.0.
""")


def model_card(
    config: BagelConfig, description: Description, dtype: torch.dtype, sizes: Mapping[str, int], files: Sequence[str]
) -> str:
    """README.md of a folder. `sizes`: bytes of each tensor as stored; `files`: those of weights."""
    vae, vit = description.transforms["vae"], description.transforms["vit"]
    many = len(files) > 1
    return _CARD.substitute(
        parameters=f"{sum(sizes.values()) / dtype.itemsize / 1e6:,.2f}",
        dtype=str(dtype).removeprefix("torch."),
        layers=config.llm.num_hidden_layers,
        hidden=config.llm.hidden_size,
        vit_layers=config.vit.layers_built,
        vit_file_layers=config.vit.num_hidden_layers,
        rows=f"{config.llm.vocab_size:,}",
        layout=description.layout,
        prompts=description.prompts,
        vae_max=vae.max_size,
        vae_min=vae.min_size,
        vae_stride=vae.stride,
        vit_max=vit.max_size,
        vit_min=vit.min_size,
        vit_stride=vit.stride,
        files=f"`{files[0]}`" + (f" to `{files[-1]}`, listed in `ema.safetensors.index.json`" if many else ""),
        latent_patch=config.latent_patch_size,
        latent_side=config.max_latent_size,
        vit_side=config.vit_max_num_patch_per_side,
        public_weights=_INDEX if many else _WHOLE,
        public_vae="" if config.vae == VaeConfig() else _OTHER_VAE,
        provenance="\n".join(f"| {key} | {_cell(value)} |" for key, value in description.provenance.items())
        or "| start | not recorded |",
    )


_WHOLE = "Its scripts read `ema.safetensors` as it is.\n"
_INDEX = (
    "Its inference takes `ema.safetensors.index.json` where it names `ema.safetensors`; its trainer reads one file "
    "only, which an export with a larger `--shard-gib` writes.\n"
)
_OTHER_VAE = "The autoencoder is not FLUX's: build it with the sizes under `vae` in `unify_agent.json`.\n"


def _cell(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.replace("|", "\\|").replace("\n", " ")
