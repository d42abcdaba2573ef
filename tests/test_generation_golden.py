"""Generation against the reference's golden tensors (facts: inference), float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from generation_tools import MARKERS, image_cases, off, tiny
from golden_model import golden
from PIL import Image

from unify_agent.generation.appending import Latents
from unify_agent.generation.branches import contexts
from unify_agent.generation.drawing import Denoiser, decode_latents, draw_latents
from unify_agent.generation.sampler import BRANCHES, SamplerSettings
from unify_agent.generation.session import Session
from unify_agent.generation.text import Sampling
from unify_agent.interleave.batch import normalise
from unify_agent.interleave.segments import Picture, Text
from unify_agent.interleave.transforms import Transform
from unify_agent.model.vae import encode_pictures, unpatchify

IMAGE_CASES = image_cases()


def pixels_of(tensor: torch.Tensor) -> np.ndarray:
    """The picture whose normalised form is `tensor` [3, H, W]; not rounded: not all are bytes."""
    return ((tensor.permute(1, 2, 0) * 0.5 + 0.5) * 255).numpy()


def stage(run: str, name: str, key: str) -> torch.Tensor:
    return golden("infer_text")[f"{run}.{name}.{key}"]


def vit_pictures(run: str) -> list[Picture]:
    """Pictures whose patches are the golden ones, cut at the grids that their position ids tell."""
    patches, ids = (
        stage(run, "1_vit", "in.packed_vit_tokens"),
        stage(run, "1_vit", "in.packed_vit_position_ids"),
    )
    result, at = [], 0
    for count in stage(run, "1_vit", "in.vit_token_seqlens").tolist():
        rows = int(ids[at : at + count].max()) // 20 + 1
        grid = patches[at : at + count].view(rows, count // rows, 14, 14, 3)
        image = grid.permute(0, 2, 1, 3, 4).reshape(rows * 14, -1, 3).permute(2, 0, 1)
        result.append(Picture(pixels_of(image), "vit", 14))
        at += count
    return result


def vae_pictures(run: str) -> list[Latents]:
    """Latents as the reference made them: zero padded to one size, encoded as one batch, then cropped."""
    _, vae = tiny()
    with torch.no_grad():
        mean, logvar = vae.encode_moments(stage(run, "2_vae", "in.padded_images"))
        latents = vae.latents(mean, logvar, stage(run, "2_vae", "in.vae_sample_noise"))
    grids = {"single": [(2, 3)], "batch2": [(3, 2), (2, 2)]}[run]
    return [Latents(latent[:, : 2 * h, : 2 * w]) for latent, (h, w) in zip(latents, grids, strict=True)]


def texts(run: str, name: str) -> list[Text]:
    ids = stage(run, name, "in.packed_text_ids").split(stage(run, name, "in.text_token_lens").tolist())
    return [Text(tuple(each.tolist()[1:-1])) for each in ids]


@pytest.mark.parametrize("run", ["single", "batch2"])
def test_every_prefill_stage_has_the_reference_hidden_states(run: str) -> None:
    rows = range({"single": 1, "batch2": 2}[run])
    session = Session(*tiny(), MARKERS, rows=len(rows))
    stages = {
        "0_text": texts(run, "0_text"),
        "1_vit": vit_pictures(run),
        "2_vae": vae_pictures(run),
        "3_text": texts(run, "3_text"),
    }
    for name, parts in stages.items():
        found = session.append(rows, [[part] for part in parts])
        assert off(torch.cat([each.hidden for each in found]), stage(run, name, "hidden")) < 1e-5, name
    feeds = stage(run, "4_gen", "ids")
    decoded = session.decode(rows, Sampling(max_new=len(feeds) - 1))
    for row in rows:
        assert decoded[row].ids == tuple(feeds[1:, row].tolist())
        assert not decoded[row].stopped


@pytest.mark.parametrize("run", ["single", "batch2"])
def test_decoding_leaves_the_reference_cache_and_logits(run: str) -> None:
    rows = range({"single": 1, "batch2": 2}[run])
    session = Session(*tiny(), MARKERS, rows=len(rows))
    session.append(
        rows,
        [
            list(each)
            for each in zip(
                texts(run, "0_text"), vit_pictures(run), vae_pictures(run), texts(run, "3_text"), strict=True
            )
        ],
    )
    feeds = stage(run, "4_gen", "ids")
    fork = session.fork(list(rows))
    for row, appended in enumerate(fork.append(rows, [[Text(tuple(feeds[1:, row].tolist()))] for row in rows])):
        logits = tiny()[0].logits(appended.hidden[: len(feeds)])
        assert off(logits, stage(run, "4_gen", "logits")[:, row]) < 1e-5
    session.decode(rows, Sampling(max_new=len(feeds) - 1))
    for name, store in (("key", session.cache.keys), ("value", session.cache.values)):
        # the reference never feeds the end marker
        held = torch.cat([store[0][row, : session.lengths[row] - 1] for row in rows])
        assert off(held, golden("infer_text")[f"{run}.final.{name}_cache.0"]) < 1e-5


def drawn_session() -> Session:
    """The golden context: a picture (VAE block, then ViT block), then the prompt."""
    case = golden("infer_image")
    session = Session(*tiny(), MARKERS)
    vae_picture = Picture(case["in.resized_uint8"].numpy(), "vae", 16)
    vit_picture = Picture(pixels_of(case["in.vit_image"]), "vit", 14)
    prompt = Text(tuple(case["in.prompt_ids"].tolist()))
    session.append([0], [[vae_picture, vit_picture, prompt]], vae_noise=[[case["in.vae_sample_noise"][0]]])
    return session


def test_the_picture_enters_as_the_reference_one_does() -> None:
    """The VAE's transform first, the ViT's on its result; the posterior is sampled, scaled and shifted."""
    case, (_, vae) = golden("infer_image"), tiny()
    resized = Transform(64, 32, 16)(Image.fromarray(case["in.image_uint8"].numpy()))
    np.testing.assert_array_equal(resized, case["in.resized_uint8"].numpy())
    latent = encode_pictures(vae, [normalise(resized)], [case["in.vae_sample_noise"][0]])[0]
    assert off(latent, case["in.vae_latent"][0]) < 1e-5
    (_, height, width), again = case["in.vit_image"].shape, Transform(56, 28, 14)(Image.fromarray(resized))
    assert again.shape == (height, width, 3)
    np.testing.assert_allclose(normalise(again), case["in.vit_image"], atol=1e-5)


def test_the_three_contexts_of_guidance_are_the_reference_ones() -> None:
    session, case = drawn_session(), golden("infer_image")
    found = contexts(session, [0], [None], branches=BRANCHES, keep_rope=False)
    assert [c.rope for c in found] == [[13], [2], [11]]
    for context, name in zip(found, ("gen", "cfg_text", "cfg_img"), strict=True):
        ((a, b),) = context.ranges[0]
        assert off(context.cache.keys[0][0, a:b], case[f"ctx.{name}.key_cache.0"]) < 1e-5
        assert off(context.cache.values[1][0, a:b], case[f"ctx.{name}.value_cache.1"]) < 1e-5


def test_the_branches_of_a_step_have_the_reference_velocities() -> None:
    session, case = drawn_session(), golden("infer_image")
    denoiser = Denoiser(session, contexts(session, [0], [None], branches=BRANCHES, keep_rope=False), (2, 3))
    found = denoiser(case["in.init_noise"][None], 1.0, ("full", "text", "image"))
    for v, name in zip(found, ("v_cond", "v_cfg_text", "v_cfg_img"), strict=True):
        assert off(v[0], case[f"out.first_step.{name}"]) < 1e-5


@pytest.mark.parametrize("name", IMAGE_CASES)
def test_a_drawing_goes_the_reference_way(name: str) -> None:
    raw, case = IMAGE_CASES[name], golden("infer_image")
    settings = SamplerSettings(
        steps=raw["num_timesteps"],
        shift=raw["timestep_shift"],
        text_scale=raw["cfg_text_scale"],
        image_scale=raw["cfg_img_scale"],
        interval=tuple(raw["cfg_interval"]),
        renorm=raw["cfg_renorm_type"],
        renorm_min=raw["cfg_renorm_min"],
    )
    session, steps = drawn_session(), []
    latents = draw_latents(
        session,
        [0],
        [None],
        [(2, 3)],
        settings,
        [case["in.init_noise"]],
        keep_rope=False,
        watch=lambda v, x: steps.append((v[0], x[0])),
    )
    assert off(steps[0][0], case[f"out.{name}.v_first"]) < 1e-5
    assert off(latents[0], case[f"out.{name}.latent"]) < 1e-5
    if f"out.{name}.x_steps" in case:
        before = [case["in.init_noise"], *(x for _, x in steps[:-1])]
        assert off(torch.stack([v for v, _ in steps]), case[f"out.{name}.v_steps"]) < 1e-5
        assert off(torch.stack(before), case[f"out.{name}.x_steps"]) < 1e-5
    if f"out.{name}.decoded" in case:
        latent = unpatchify(latents[0], (2, 3))
        assert off(latent, case[f"out.{name}.decoder_input"][0]) < 1e-5
        with torch.no_grad():
            assert off(tiny()[1].decode(latent[None]), case[f"out.{name}.decoded"]) < 1e-5
    if f"out.{name}.uint8" in case:
        picture = decode_latents(session, latents, [(2, 3)])[0].astype(int)
        assert np.abs(picture - case[f"out.{name}.uint8"].numpy().astype(int)).max() <= 1
