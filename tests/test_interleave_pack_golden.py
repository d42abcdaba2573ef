"""Packing against the reference's stored cases: slots, rope ids, losses, patch ids and masks.

Of its 17 cases 16 are reproduced whole. `video_loss` noises several frames as one block under one timestep, which is
not offered, since nothing here generates a video: all but the noise is compared, the frames standing as context.
"""

import json
import random
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from unify_agent.interleave.batch import CLEAN, PackRules, pack
from unify_agent.interleave.segments import Document, Drawing, Gap, Picture, Segment, Text
from unify_agent.interleave.visibility import dense_mask

GOLDEN = Path(__file__).parent / "golden"
STORED = json.loads((GOLDEN / "pack_cases.json").read_text())
CASES = {case["name"]: case for case in STORED["cases"]}
RULES = PackRules(500, 501, 502, 503, STORED["max_latent_size"], STORED["max_num_patch_per_side"])


def documents(case: dict) -> list[Document]:
    """The stored plans as documents; what is dropped follows the reference's draws, one a droppable item."""
    options = case["options"]
    draws = random.Random(options["seed"])
    chance = {
        "text": options.get("text_p", 0.0),
        "vit_image": options.get("vit_p", 0.0),
        "vae_image": options.get("vae_p", 0.0),
    }
    result = []
    for number, sample in enumerate(case["samples"]):
        texts, sizes = iter(sample["text_ids"]), iter(sample["image_sizes_hw"])
        restricted = any(item["final_gen"] for item in sample["plan"]) and not options.get("use_flex")
        segments: list[Segment] = []
        for item in sample["plan"]:
            kind = item["type"]
            content = next(texts) if kind == "text" else np.zeros((*next(sizes), 3), np.uint8)
            if item["enable_cfg"] and draws.random() < chance[kind]:
                segments += [] if kind == "text" else [Gap()]
                continue
            name = "context" if item["final_context"] else None
            block = "clip" if "split_start" in item else None
            then = item["special_token_label"] if item["special_token_loss"] else None
            if kind == "text":
                segments.append(Text(tuple(content), loss=bool(item["loss"]), name=name, then=then))
            elif item["loss"] and not block:
                segments.append(Drawing(content, 16, sees=("context",) if restricted else None))
            elif kind == "vit_image":
                segments.append(Picture(content, "vit", 14, name, then=then))
            else:
                segments.append(Picture(content, "vae", 16, name, block, then))
                delta = item.get("frame_delta", 0 if item["loss"] else 1)
                segments += [Gap(delta - 1)] if delta != 1 else []
        result.append(Document(str(number), tuple(segments)))
    return result


@pytest.mark.parametrize("name", CASES)
def test_slots_rope_ids_and_losses_are_the_stored_ones(name: str) -> None:
    case, status = CASES[name], CASES[name]["status"]
    batch = pack(documents(case), RULES)
    assert batch.length == status["curr"]
    assert batch.rope_ids.tolist() == status["packed_position_ids"]
    assert batch.text_ids.tolist() == status["packed_text_ids"]
    assert batch.text_at.tolist() == status["packed_text_indexes"]
    assert batch.ce_at.tolist() == status["ce_loss_indexes"]
    assert batch.ce_labels.tolist() == status["packed_label_ids"]
    np.testing.assert_allclose(batch.ce_weights.numpy(), status["ce_loss_weights"], rtol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_patches_stand_where_they_are_stored(name: str) -> None:
    status = CASES[name]["status"]
    batch = pack(documents(CASES[name]), RULES)
    assert batch.vit_lengths == status["vit_token_seqlens"]
    assert batch.vit_at.tolist() == status["packed_vit_token_indexes"]
    assert batch.vit_position_ids.tolist() == list(chain(*status["packed_vit_position_ids"]))
    assert [list(grid) for grid in batch.latent_grids] == status["vae_latent_shapes"]
    assert len(batch.vae_images) == status["n_vae_image_tensors"]
    assert batch.latent_at.tolist() == status["packed_vae_token_indexes"]
    assert batch.latent_position_ids.tolist() == list(chain(*status["packed_latent_position_ids"]))
    if name == "video_loss":
        assert status["mse_loss_indexes"] and not len(batch.mse_at) and (batch.timestep_logits == CLEAN).all()
        return
    assert batch.mse_at.tolist() == status["mse_loss_indexes"]
    assert (batch.timestep_logits == CLEAN).tolist() == [t == "-inf" for t in status["packed_timesteps"]]


@pytest.mark.parametrize("name", CASES)
def test_masks_are_the_stored_ones(name: str) -> None:
    case = CASES[name]
    masks = load_file(GOLDEN / "pack_cases.safetensors")
    built = documents(case)
    if "flex" in case:
        batch = pack(built, RULES, pad_to=128)
        np.testing.assert_array_equal(dense_mask(batch.spans), masks[f"{name}.flex_mask"])
        return
    kept = [document for document, none in zip(built, case["returned_none"], strict=True) if not none]
    stored = [masks[key] for key in sorted(masks) if key.startswith(f"{name}.mask")]
    assert len(kept) == len(stored)
    for document, mask in zip(kept, stored, strict=True):
        np.testing.assert_array_equal(dense_mask(pack([document], RULES).spans), mask)
    if kept:
        whole = dense_mask(pack(kept, RULES).spans)
        assert whole.sum() == sum(mask.sum() for mask in stored), "documents of a pack do not see one another"
