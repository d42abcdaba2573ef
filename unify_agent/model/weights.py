"""A model folder in BAGEL's layout, in and out.

    llm_config.json, vit_config.json      architecture, as the public code reads it
    ema.safetensors                       weights (or model.safetensors, or shards with an index)
    ae.safetensors                        the autoencoder under FLUX's names
    tokenizer.json, vocab.json, ...       the tokenizer
    unify_agent.json                      what BAGEL's own code keeps in its source: sizes, autoencoder,
                                          layout preset, transforms, prompts, provenance. A folder without it is
                                          a public release.
    README.md                             the model card; written, never read

`folder` says what is there, `loading` reads it strictly, `saving` writes it. This module gathers their public names.
"""

from unify_agent.model.folder import DESCRIPTION, Description, ModelFolder
from unify_agent.model.loading import Weights, load_model
from unify_agent.model.saving import SHARD_GIB, TOKENIZER_FILES, save_folder, write_folder
from unify_agent.model.tensors import WeightsError, read_tensors

__all__ = [
    "DESCRIPTION",
    "SHARD_GIB",
    "TOKENIZER_FILES",
    "Description",
    "ModelFolder",
    "Weights",
    "WeightsError",
    "load_model",
    "read_tensors",
    "save_folder",
    "write_folder",
]
