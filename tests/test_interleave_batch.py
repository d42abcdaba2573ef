"""A packed batch: weights, random numbers that belong to the sample, padding."""

import numpy as np
import pytest
import torch
from datasets_tools import grammar, picture, pixels, rules

from unify_agent.interleave.batch import (
    ROLES,
    PackRules,
    normalise,
    pack,
    patchify,
    picture_values,
    pixel_values,
    position_ids,
)
from unify_agent.interleave.layout import Exchange, lay_out
from unify_agent.interleave.segments import Document, Drawing, Picture, Text


def made(name: str, **options: object) -> Document:
    exchanges = [
        Exchange("draw", grammar().encode("<tool_call>x</tool_call>")),
        Exchange(f"now {name}", grammar().encode("<recaption>owl</recaption>")),
    ]
    return lay_out(name, exchanges, [picture(1)], picture(2), grammar=grammar(), pixels=pixels(), **options)


def test_random_numbers_belong_to_the_sample_and_not_to_its_place() -> None:
    alone, last = pack([made("b")], rules(), seed=1), pack([made("a"), made("b")], rules(), seed=1)
    count = len(alone.timestep_logits)
    assert torch.equal(alone.timestep_logits, last.timestep_logits[-count:])
    assert torch.equal(alone.flow_noise, last.flow_noise[-count:])
    assert all(map(torch.equal, alone.vae_noise, last.vae_noise[-2:]))


@pytest.mark.parametrize("changed", [{"seed": 2}, {"epoch": 1}, {"epoch": [1]}])
def test_seed_and_epoch_change_the_noise(changed: dict) -> None:
    first, second = pack([made("a")], rules(), seed=1), pack([made("a")], rules(), **({"seed": 1} | changed))
    assert not torch.equal(first.flow_noise, second.flow_noise)
    assert torch.equal(first.text_ids, second.text_ids)


def test_copies_share_a_picture_and_differ_in_noise_and_timestep() -> None:
    batch = pack([made("a", copies=3)], rules())
    assert batch.latent_image == [0, 1, 1, 1] and len(batch.vae_images) == 2
    runs = torch.split(batch.timestep_logits, [rows * columns for rows, columns in batch.latent_grids])
    assert all(run.unique().numel() == 1 for run in runs)
    assert len({float(run[0]) for run in runs}) == 4 and runs[0][0] == -torch.inf
    assert len(batch.mse_at) == sum(len(run) for run in runs[1:])


def test_structure_tags_weigh_more_than_other_labels() -> None:
    base = rules()
    tags = frozenset(grammar().tag_ids[tag] for tag in ("<tool_call>", "</tool_call>"))
    weighted = PackRules(
        base.bos, base.eos, base.start_of_image, base.end_of_image, 8, 8, tag_ids=tags, tag_weight=3.0
    )
    plain, heavy = pack([made("a")], base), pack([made("a")], weighted)
    factor = heavy.ce_weights / plain.ce_weights
    expected = [3.0 if int(label) in tags else 1.0 for label in heavy.ce_labels]
    np.testing.assert_allclose(factor.numpy(), expected, rtol=1e-6)
    assert expected.count(3.0) == 2


def test_the_weights_of_a_text_add_up_to_the_root_of_its_length() -> None:
    batch = pack([Document("x", (Text((5, 6, 7), loss=True, role="copying"),))], rules())
    assert float(batch.ce_weights.sum()) == pytest.approx(4**0.5)
    assert {ROLES[role] for role in batch.ce_roles.tolist()} == {"copying"}


def test_padding_is_a_document_of_its_own_without_losses() -> None:
    plain, padded = pack([made("a")], rules()), pack([made("a")], rules(), pad_to=128)
    assert padded.length % 128 == 0 and padded.spans[:-1] == plain.spans
    assert padded.spans[-1].document == 1 and len(padded.sample_ids) == 1
    assert torch.equal(padded.ce_at, plain.ce_at) and torch.equal(padded.mse_at, plain.mse_at)


def test_an_empty_pack_has_slots_and_no_loss() -> None:
    batch = pack([], rules(), pad_to=16)
    assert batch.length == 16 and not len(batch.ce_at) and not len(batch.mse_at) and batch.sample_ids == []
    assert batch.flow_noise.shape == (0, 64)


def test_patches_are_rows_of_pixels_with_the_channel_fastest() -> None:
    pixels_ = np.arange(28 * 42 * 3, dtype=np.uint32).reshape(28, 42, 3) % 251
    image = normalise(pixels_.astype(np.uint8))
    patches = patchify(image, 14)
    assert patches.shape == (6, 588)
    expected = image[:, 14:28, 28:42].permute(1, 2, 0).reshape(-1)
    assert torch.equal(patches[5], expected)


def test_pixels_stay_levels_until_the_model_makes_numbers_of_them() -> None:
    vae, vit = np.asarray(picture(1, (32, 48))), np.asarray(picture(2, (28, 42)))
    batch = pack([Document("x", (Picture(vae, "vae", 16), Picture(vit, "vit", 14)))], rules())
    assert batch.vit_patches.dtype == batch.vae_images[0].dtype == torch.uint8
    assert torch.equal(picture_values(batch.vae_images[0]), normalise(vae))
    assert torch.equal(pixel_values(batch.vit_patches), patchify(normalise(vit), 14))
    values = normalise(vae)
    assert pixel_values(values) is values and picture_values(values) is values


def test_position_ids_use_the_side_of_the_table() -> None:
    assert position_ids((2, 3), 32).tolist() == [0, 1, 2, 32, 33, 34]
    with pytest.raises(ValueError, match="position table"):
        position_ids((2, 33), 32)


def test_every_slot_is_text_or_a_patch_exactly_once() -> None:
    batch = pack([made("a", copies=2), made("b")], rules(), pad_to=8)
    places = torch.cat([batch.text_at, batch.vit_at, batch.latent_at])
    assert sorted(places.tolist()) == list(range(batch.length)) and len(batch.rope_ids) == batch.length


def test_pictures_alone_make_a_pack() -> None:
    zero = np.zeros((32, 32, 3), np.uint8)
    batch = pack([Document("x", (Picture(zero, "vae", 16), Drawing(zero)))], rules())
    assert batch.rope_ids.tolist() == [0] * 6 + [1] * 6
    assert batch.vit_patches.numel() == 0
