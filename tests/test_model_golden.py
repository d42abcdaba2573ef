"""The model computes what the public BAGEL computes: every stored tensor, float32, relative L2 of at most 1e-5."""

from __future__ import annotations

import pytest
import torch
from golden_model import golden, golden_batch, golden_config, golden_meta, golden_model, golden_spans, relative

from unify_agent.interleave.visibility import dense_mask
from unify_agent.model import vae as vae_module
from unify_agent.model.attention import DenseAttention, SegmentsAttention
from unify_agent.model.decoder import apply_rope
from unify_agent.model.embeddings import rope_tables, sincos_table, timestep_sinusoid
from unify_agent.model.losses import noised, timesteps
from unify_agent.model.vae import FluxVae

TOLERANCE = 1e-5


def scalar_loss(sums, batch) -> torch.Tensor:
    return sums.ce / batch.ce_weights.sum() + sums.mse / len(batch.mse_at)


def attention(kind: str, batch):
    if kind == "dense":
        return DenseAttention(golden("train_forward")["in.dense_mask"])
    return SegmentsAttention(batch.spans, batch.length, chunk=int(kind))


def test_the_spans_of_the_stored_samples_give_the_stored_mask():
    mask = torch.from_numpy(dense_mask(golden_spans(), 145))
    assert torch.equal(mask, golden("train_forward")["in.dense_mask"])


@pytest.mark.parametrize("kind", ["dense", "256", "5"])
@pytest.mark.parametrize("shift", [1, 4])
def test_the_training_forward_matches_on_every_tensor(kind, shift):
    batch, latents = golden_batch()
    model, g = golden_model(float(shift)), golden("train_forward")
    sums = model(batch, latents, attention(kind, batch))
    out = f"out.shift{shift}."
    t = timesteps(batch.timestep_logits, float(shift))
    assert relative(t, g[out + "timesteps"]) <= TOLERANCE
    assert relative(noised(latents, batch.flow_noise, t), g[out + "x_t"]) <= TOLERANCE
    assert relative(sums.hidden, g[out + "last_hidden_state"]) <= TOLERANCE
    assert relative(sums.ce_tokens, g[out + "ce"]) <= TOLERANCE
    assert relative(sums.mse_tokens, g[out + "mse"].mean(-1)) <= TOLERANCE
    assert relative(sums.ce / batch.ce_weights.sum(), g[out + "scalar_ce"][0]) <= TOLERANCE
    assert relative(sums.mse / len(batch.mse_at), g[out + "scalar_mse"][0]) <= TOLERANCE
    assert relative(scalar_loss(sums, batch), g[out + "scalar_loss"][0]) <= TOLERANCE


@pytest.mark.parametrize("kind", ["dense", "256", "5"])
@pytest.mark.parametrize("shift", [1, 4])
def test_every_gradient_matches(kind, shift):
    batch, latents = golden_batch()
    model = golden_model(float(shift))
    scalar_loss(model(batch, latents, attention(kind, batch)), batch).backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    for name, stored in golden("train_forward").items():
        if name.startswith(f"grad.shift{shift}."):
            assert relative(gradients[name.split(".", 2)[2]], stored) <= TOLERANCE, name
    norms = golden_meta("train_forward")[f"grad_l2_shift{shift}"]
    assert set(norms) == set(gradients)
    for name, norm in norms.items():
        # a key's bias shifts all scores of a query alike, so in the ViT its gradient is rounding noise
        if norm > 1e-7:
            assert abs(float(gradients[name].norm()) - norm) <= TOLERANCE * norm, name


def test_all_parameter_names_and_shapes_are_those_of_a_checkpoint():
    ours = {name: tuple(p.shape) for name, p in golden_model().state_dict().items()}
    assert ours == {name: tuple(p.shape) for name, p in golden("tiny_bagel").items()}


def test_the_vision_tower_and_connector_match():
    g, model = golden("vit"), golden_model()
    lengths = g["seqlens"].tolist()
    embeddings = model.vit_model.vision_model.embeddings(g["packed_tokens"], g["position_ids"])
    vit = model.vit_model(g["packed_tokens"], g["position_ids"], lengths)
    assert relative(embeddings, g["embeddings"]) <= TOLERANCE
    assert relative(vit, g["vit_out"]) <= TOLERANCE
    assert relative(model.connector(vit), g["connector_out"]) <= TOLERANCE
    assert relative(model.embed_vit(g["packed_tokens"], g["position_ids"], lengths), g["llm_input"]) <= TOLERANCE


def test_pictures_of_interleaved_sizes_pass_the_tower_as_if_alone():
    g, model = golden("vit"), golden_model()
    a, b = g["packed_tokens"].split(g["seqlens"].tolist())
    ids_a, ids_b = g["position_ids"].split(g["seqlens"].tolist())
    mixed = model.vit_model(torch.cat([b, a, b]), torch.cat([ids_b, ids_a, ids_b]), [len(b), len(a), len(b)])
    alone = torch.cat([model.vit_model(x, i, [len(x)]) for x, i in ((b, ids_b), (a, ids_a), (b, ids_b))])
    assert relative(mixed, alone) <= 1e-6


@pytest.mark.parametrize(
    ("name", "side", "dim"), [("latent64_d3584", 64, 3584), ("vit70_d3584", 70, 3584), ("tiny_latent32_d64", 32, 64)]
)
def test_position_tables_match(name, side, dim):
    g = golden("embeddings")
    assert relative(sincos_table(side, dim)[g[f"pos.{name}.ids"]], g[f"pos.{name}.rows"]) <= 1e-7


def test_timestep_embeddings_match():
    g = golden("embeddings")
    assert relative(timestep_sinusoid(g["time.t"]), g["time.freq"]) <= 1e-6
    assert relative(golden_model().time_embedder(g["time.t"]), g["time.embed"]) <= TOLERANCE


@pytest.mark.parametrize(("prefix", "dim"), [("rope.", 16), ("rope.d128.", 128)])
def test_rotary_tables_match(prefix, dim):
    g = golden("embeddings")
    cos, sin = rope_tables(g["rope.ids"], dim, 1e6)
    assert relative(cos, g[prefix + "cos"]) <= TOLERANCE and relative(sin, g[prefix + "sin"]) <= TOLERANCE


def test_rotation_keeps_lengths():
    cos, sin = rope_tables(torch.tensor([0, 5, 1000]), 16, 1e6)
    x = torch.randn(3, 4, 16)
    y = apply_rope(x, cos, sin)
    assert torch.equal(y[0], x[0])
    assert torch.allclose(y.norm(dim=-1), x.norm(dim=-1), rtol=1e-5)


@pytest.fixture(scope="module")
def vae() -> FluxVae:
    vae = FluxVae(golden_config().vae)
    vae.load_original(golden("tiny_ae"), "tiny_ae")
    return vae.eval().requires_grad_(False)


def test_the_autoencoder_matches_and_keeps_its_names(vae):
    g = golden("vae")
    mean, logvar = vae.encode_moments(g["image"])
    latent = vae.latents(mean, logvar, g["sample_noise"])
    assert relative(mean, g["mean"]) <= TOLERANCE and relative(logvar, g["logvar"]) <= TOLERANCE
    assert relative(latent, g["latent"]) <= TOLERANCE
    assert relative(vae.decode(latent), g["decoded"]) <= TOLERANCE
    assert relative(torch.cat(vae.encode_moments(g["padded_pair"]), 1), g["padded_pair_moments"]) <= TOLERANCE
    back = vae.original_state_dict()
    assert back.keys() == golden("tiny_ae").keys()
    assert all(torch.equal(back[name], value) for name, value in golden("tiny_ae").items())


def test_pictures_of_several_sizes_are_encoded_as_if_alone(vae):
    sizes = [(32, 48), (48, 32), (32, 48)]
    images = [torch.rand(3, *size) * 2 - 1 for size in sizes]
    noise = [torch.randn(16, h // 8, w // 8) for h, w in sizes]
    together = vae_module.encode_pictures(vae, images, noise)
    for image, n, latent in zip(images, noise, together, strict=True):
        mean, logvar = vae.encode_moments(image[None])
        assert relative(latent, vae.latents(mean, logvar, n[None])[0]) <= TOLERANCE


def test_patches_of_a_latent_come_back():
    latent = torch.randn(16, 4, 6)
    rows = vae_module.patchify(latent)
    assert rows.shape == (6, 64)
    assert torch.equal(rows[1].view(2, 2, 16)[1, 0], latent[:, 1, 2])
    assert torch.equal(vae_module.unpatchify(rows, (2, 3)), latent)


def test_pixels_are_clamped_and_truncated():
    picture = torch.tensor([-2.0, 2.0, 0.0]).view(3, 1, 1)
    assert vae_module.to_uint8(picture).tolist() == [[[0, 255, 127]]]
