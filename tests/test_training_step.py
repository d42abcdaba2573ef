"""One step: Table 6 reaches the optimiser, the losses and the packs, and a row of metrics says what the step did."""

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.parallel_tools import KINDS, latents, packs, toy, train
from tests.training_ranks import compose
from tests.training_toy import write_start
from unify_agent.interleave.batch import CLEAN, ROLES
from unify_agent.model.losses import timesteps
from unify_agent.training import optimiser, parallel
from unify_agent.training.assembly import architecture, pixels_of, rules_of, start
from unify_agent.training.config import OptimConfig, ParallelConfig
from unify_agent.training.engine import TorchEngine
from unify_agent.training.parallel import mesh_of

ALONE = parallel.World(0, 1, torch.device("cpu"), None)


def test_table_6_reaches_what_trains():
    """Row by row, and not what the recipe's file says but what is built from it."""
    config = compose(["+recipe=sft_64xh20"])
    shape = architecture(config.model.arch)
    layer = nn.Linear(2, 2)
    adam = optimiser.build(layer, config.optim)
    (group,) = adam.param_groups
    pixels = pixels_of(config, shape)
    found = {
        "base": (shape.llm.num_hidden_layers, shape.llm.hidden_size, config.model.init),
        "vision encoder": (shape.vit.hidden_size, shape.vit.num_hidden_layers),
        "ViT patch": pixels.vit_patch,
        "latent patch": (shape.latent_patch_size, pixels.vae_patch),
        "tokens": (config.data.max_tokens_per_sample, config.data.expected_tokens, config.data.max_tokens),
        "ViT transform": (pixels.vit.min_size, pixels.vit.max_size, pixels.vit.stride),
        "VAE transform": (pixels.vae.min_size, pixels.vae.max_size, pixels.vae.stride),
        "optimiser": (type(adam), group["betas"], group["eps"], group["weight_decay"]),
        "rates": [optimiser.learning_rate(config.optim, n, config.steps) for n in (0, 250, 499, 500, 5000, 9999)],
        "steps": config.steps,
        "clip": TorchEngine(layer, adam, config.optim).config.clip,
        "loss": (config.loss.ce_weight, config.loss.mse_weight),
        "ranks": (config.parallel.strategy, mesh_of(config.parallel, 64), config.parallel.packs_per_step),
    }
    assert found == {
        "base": (28, 3584, "pretrained"),
        "vision encoder": (1152, 27),
        "ViT patch": 14,
        "latent patch": (2, 16),
        "tokens": (40240, 40240, 41520),
        "ViT transform": (378, 980, 14),
        "VAE transform": (512, 1024, 16),
        "optimiser": (torch.optim.AdamW, (0.9, 0.95), 1e-15, 0.0),
        "rates": [0.0, pytest.approx(2.5e-5), pytest.approx(4.99e-5), 5e-5, 5e-5, 5e-5],
        "steps": 10000,
        "clip": 5.0,
        "loss": (1.0, 1.0),
        "ranks": ("fsdp", (8, 8), 64),
    }


def test_structure_tags_weigh_what_the_recipe_says(tmp_path: Path):
    config = compose([*write_start(tmp_path / "start"), "model.init=random"])
    parts = start(config)
    rules = rules_of(config, parts.grammar, parts.shape)
    assert rules.tag_weight == config.loss.special_token_weight == 3.0
    assert parts.grammar.tag_ids["<think>"] in rules.tag_ids


def test_gradients_are_clipped_to_their_norm_and_the_norm_before_is_told():
    model = nn.Linear(3, 1, bias=False)
    config = OptimConfig(clip=0.5)
    engine = TorchEngine(model, optimiser.build(model, config), config)
    engine.begin()
    engine.backward((model.weight * torch.tensor([3.0, 4.0, 0.0])).sum(), last=True)
    assert engine.update(0.0) == pytest.approx(5.0)
    torch.testing.assert_close(model.weight.grad, torch.tensor([[0.3, 0.4, 0.0]]))


def test_a_row_has_the_losses_of_each_role_and_of_each_part_of_time():
    """Against the losses token by token, of the weights before the step."""
    batches = packs(len(KINDS))
    for index, batch in enumerate(batches):
        batch.ce_roles[:] = torch.arange(len(batch.ce_roles)) % (2 + index % 2)
    model = toy()
    ce, roles, mse, times = [], [], [], []
    with torch.no_grad():
        for batch in batches:
            out = model(batch, latents(batch))
            ce.append(out.ce_tokens)
            roles.append(batch.ce_roles)
            mse.append(out.mse_tokens)
            row_of = {int(slot): row for row, slot in enumerate(batch.latent_at)}
            logits = batch.timestep_logits[[row_of[int(slot)] for slot in batch.mse_at]]
            assert (logits > CLEAN).all()
            times.append(timesteps(logits, 1.0))
    ce, roles, mse, times = (torch.cat(each) for each in (ce, roles, mse, times))
    expected = {f"ce_role/{ROLES[n]}": float(ce[roles == n].mean()) for n in roles.unique().tolist()}
    for n in range(4):
        inside = (times * 4).long() == n
        if inside.any():
            expected[f"mse_t/{n / 4:.2f}-{(n + 1) / 4:.2f}"] = float(mse[inside].mean())
    assert sum(key.startswith("ce_role/") for key in expected) == 3
    assert sum(key.startswith("mse_t/") for key in expected) >= 2

    stepper = train(ALONE, ParallelConfig(packs_per_step=len(batches)), 0, steps=0)
    row = stepper.step(0, batches)
    assert {key: value for key, value in row.items() if key.startswith(("ce_role/", "mse_t/"))} == pytest.approx(
        expected, rel=1e-4
    )
    assert (row["ce_tokens"], row["mse_tokens"]) == (len(ce), len(mse))
    assert row["mse"] == pytest.approx(float(mse.mean()), rel=1e-5)
