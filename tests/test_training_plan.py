"""`plan=true` says what a run would need; BAGEL-7B-MoT has exactly BAGEL's names and shapes."""

import json
import os
import re
import resource
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import train
from tests.planning_tools import SHORT, planned
from tests.training_ranks import compose
from tests.training_toy import write_start
from unify_agent.errors import UserError
from unify_agent.model.config import BAGEL_7B_MOT, TINY, BagelConfig
from unify_agent.model.loading import on_meta, shapes
from unify_agent.training.assembly import assemble
from unify_agent.training.parallel import World
from unify_agent.training.planning.cards import CARDS, Card, card_of
from unify_agent.training.planning.fitting import refuse
from unify_agent.training.planning.parameters import by_group, parameters_of
from unify_agent.training.planning.plan import mesh_of, plan
from unify_agent.training.planning.plan import planned as planned_with
from unify_agent.training.planning.report import as_json
from unify_agent.training.planning.workload import workload

ROOT = Path(__file__).resolve().parents[1]

PARAMETERS = 14_607_260_128
FROZEN = (64**2 + 70**2) * 3584


def by_the_table(H, I, A, G, D, V, L, h, i, l, p, S, M, side, P=64):  # noqa: E741
    """Name -> shape, written out from the table of facts/bagel.md, section 1."""
    llm, vit = "language_model.model.", "vit_model.vision_model."
    found = {f"{llm}embed_tokens.weight": (V, H), "language_model.lm_head.weight": (V, H)}
    for n in range(L):
        for gen in ("", "_moe_gen"):
            attention, mlp = f"{llm}layers.{n}.self_attn.", f"{llm}layers.{n}.mlp{gen}."
            for part, wide in (("q", A * D), ("k", G * D), ("v", G * D)):
                found |= {
                    f"{attention}{part}_proj{gen}.weight": (wide, H),
                    f"{attention}{part}_proj{gen}.bias": (wide,),
                }
            found[f"{attention}o_proj{gen}.weight"] = (H, A * D)
            found |= {f"{attention}{part}_norm{gen}.weight": (D,) for part in "qk"}
            found |= {
                f"{mlp}gate_proj.weight": (I, H),
                f"{mlp}up_proj.weight": (I, H),
                f"{mlp}down_proj.weight": (H, I),
            }
            for norm in ("input", "post_attention"):
                found[f"{llm}layers.{n}.{norm}_layernorm{gen}.weight"] = (H,)
    found |= {f"{llm}norm.weight": (H,), f"{llm}norm_moe_gen.weight": (H,)}
    for name, (wide, narrow) in {
        "time_embedder.mlp.0": (H, 256),
        "time_embedder.mlp.2": (H, H),
        "vae2llm": (H, P),
        "llm2vae": (P, H),
        "connector.fc1": (H, h),
        "connector.fc2": (H, H),
        f"{vit}embeddings.patch_embedding": (h, 3 * p * p),
        **{
            f"{vit}encoder.layers.{n}.{part}": shape
            for n in range(l)
            for part, shape in {
                **{f"self_attn.{each}_proj": (h, h) for each in ("q", "k", "v", "out")},
                "mlp.fc1": (i, h),
                "mlp.fc2": (h, i),
            }.items()
        },
    }.items():
        found |= {f"{name}.weight": (wide, narrow), f"{name}.bias": (wide,)}
    norms = [f"encoder.layers.{n}.layer_norm{k}" for n in range(l) for k in (1, 2)] + ["post_layernorm"]
    found |= {f"{vit}{norm}.{leaf}": (h,) for norm in norms for leaf in ("weight", "bias")}
    found[f"{vit}embeddings.position_embedding.weight"] = (S * S, h)
    return found | {"latent_pos_embed.pos_embed": (M**2, H), "vit_pos_embed.pos_embed": (side**2, H)}


TABLE_7B = {
    "H": 3584, "I": 18944, "A": 28, "G": 4, "D": 128, "V": 152064, "L": 28,
    "h": 1152, "i": 4304, "l": 26, "p": 14, "S": 70, "M": 64, "side": 70,
}  # fmt: skip


def sizes(config: BagelConfig) -> dict[str, int]:
    llm, vit = config.llm, config.vit
    return {
        "H": llm.hidden_size, "I": llm.intermediate_size, "A": llm.num_attention_heads, "G": llm.num_key_value_heads,
        "D": llm.hidden_size // llm.num_attention_heads, "V": llm.vocab_size, "L": llm.num_hidden_layers,
        "h": vit.hidden_size, "i": vit.intermediate_size, "l": vit.num_hidden_layers - 1, "p": vit.patch_size,
        "S": vit.image_size // vit.patch_size, "M": config.max_latent_size, "side": config.vit_max_num_patch_per_side,
    }  # fmt: skip


@pytest.mark.parametrize(("config", "table"), [(BAGEL_7B_MOT, TABLE_7B), (TINY, sizes(TINY))], ids=["7b", "tiny"])
def test_every_name_and_shape_is_that_of_the_table(config, table):
    assert shapes(config) == by_the_table(**table)


def told(*overrides: str) -> dict:
    """What `plan=json` says."""
    return as_json(planned(*overrides))


def test_the_parts_add_up_and_only_the_position_tables_are_frozen():
    *groups, whole = by_group(parameters_of(on_meta(BAGEL_7B_MOT)))
    rows = {row.group: row for row in groups}
    assert whole.parameters == PARAMETERS
    assert whole.tensors == len(by_the_table(**TABLE_7B))
    assert whole.parameters - whole.trained == FROZEN == rows["position tables"].parameters
    assert rows["vocabulary tables"].parameters == 2 * 152064 * 3584
    # a layer has 466,116,096: one half for each expert; each expert has a last norm too
    und, gen = rows["decoder, und"], rows["decoder, gen"]
    assert (und.tensors, und.parameters, und.trained) == (gen.tensors, gen.parameters, gen.trained)
    assert und.parameters == 28 * 466_116_096 // 2 + 3584


def test_the_paper_scale_recipe_is_planned_without_weights_data_or_gpu(tmp_path):
    command = [sys.executable, str(ROOT / "train.py"), "+recipe=sft_64xh20", "plan=json"]
    result = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert result.returncode == 0, result.stderr
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 4 * 2**20  # KiB
    assert not list(tmp_path.iterdir())
    found = json.loads(result.stdout)
    assert found["world_size"] == 64 and found["mesh"] == {"replicate": 8, "shard": 8, "strategy": "fsdp"}
    assert found["parameters"]["total"] == PARAMETERS
    assert found["parameters"]["trainable"] == PARAMETERS - FROZEN
    memory = found["memory_gib"]
    assert memory["total"] == pytest.approx(sum(size for part, size in memory.items() if part != "total"))
    assert memory["optimiser"] * 2**30 == pytest.approx((PARAMETERS - FROZEN) * 8 / 8, rel=1e-3)
    assert found["fits"] and memory["total"] < found["card"]["gib"]
    flops = found["flops_per_token"]
    assert flops["total"] == pytest.approx(sum(value for part, value in flops.items() if part != "total"))
    # facts/training.md, numbers: 6 x 6.525e9 for the active weights, padding to a multiple of 128 aside
    assert flops["decoder, und"] + flops["decoder, gen"] == pytest.approx(39.15e9, rel=0.005)
    # ten days for 10,000 steps: the paper's run lies between 12 and 20 % MFU
    per_step = flops["total"] * found["tokens"]["per_step"]
    assert 0.12 < per_step / 86.4 / 64 / 148e12 < 0.20
    assert found["seconds_per_step"]["0.5"] == pytest.approx(per_step / 64 / 0.5 / 148e12)
    assert found["network"]["total_gib"] > 100


def test_tables_and_json_say_the_same(monkeypatch, capsys):
    for form in ("true", "json"):
        monkeypatch.setattr(sys, "argv", ["train.py", *TWO, f"plan={form}"])
        assert train.main() == 0
    tables, _, rest = capsys.readouterr().out.partition("\n{")
    found = json.loads("{" + rest)
    assert f"{found['parameters']['total']:,}" in tables
    assert f"{found['memory_gib']['total']:.1f} of {found['card']['gib']} GiB: fits" in tables
    assert f"{found['tokens']['per_step']:,} tokens" in tables
    assert f"{found['flops_per_token']['total'] / 1e9:.3f}" in tables


def test_only_the_first_rank_prints(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(sys, "argv", ["train.py", *SHORT, "plan=true"])
    assert train.main() == 0
    assert capsys.readouterr().out == ""


TWO = (*SHORT, "planning.world=2", "parallel.packs_per_step=2")


ADAPTED = ("model.init=pretrained", "lora.rank=4", "lora.base_dtype=bf16")


def told_anew(*overrides: str) -> dict:
    """The same for settings that leave what the code does with a pack as it is: it is not read off again."""
    config, base = compose([*TWO, *overrides]), planned(*TWO)
    mesh = mesh_of(config)
    work = workload(config, base.shape, mesh[0] * mesh[1])
    return as_json(planned_with(config, base.shape, card_of(config.planning.card), mesh, work, base.readings))


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("planning.card=h200", "card"),
        ("planning.mfu=[0.25]", "seconds_per_step"),
        ("planning.node=1", "network"),
        ("planning.world=1", "mesh"),
        ("planning.references=1", "visible_pairs_per_pack"),
        ("planning.picture=48", "visible_pairs_per_pack"),
        ("planning.trained_text=0.9", "flops_per_token"),
        ("parallel.packs_per_step=4", "tokens"),
        ("parallel.checkpointing=full", "recomputed_flops_per_token"),
        ("parallel.dtype=bf16", "network"),
    ],
)
def test_every_assumption_changes_the_plan(override, key):
    assert told_anew(override)[key] != told(*TWO)[key]


def test_what_a_pack_needs_depends_on_how_it_is_computed():
    assert told(*TWO, "parallel.dtype=bf16")["memory_gib"] != told(*TWO)["memory_gib"]


def test_adapters_are_counted_as_what_is_trained():
    plain, adapted = told(*TWO, "parallel.dtype=bf16"), told(*TWO, "parallel.dtype=bf16", *ADAPTED)
    assert adapted["parameters"]["total"] > plain["parameters"]["total"]
    assert adapted["parameters"]["trainable"] < plain["parameters"]["trainable"] / 2
    assert adapted["parameters"]["groups"]["ViT"]["trainable"] == 0
    assert adapted["memory_gib"]["optimiser"] < plain["memory_gib"]["optimiser"] / 2
    assert adapted["flops_per_token"]["decoder, und"] < plain["flops_per_token"]["decoder, und"]
    assert adapted["network"]["scattered_gib"] < plain["network"]["scattered_gib"] / 2


def test_host_memory_is_that_of_a_copy_and_of_what_is_offloaded_for_each_rank_of_a_node():
    plain = told_anew("parallel.dtype=bf16")
    trained, total = plain["parameters"]["trainable"], plain["parameters"]["total"]
    copy = plain["host_gib"]["checkpoint"] * 2**30
    assert copy == pytest.approx((4 * total + 12 * trained) / 2, rel=0.01)  # of two shards
    assert plain["host_gib_per_node"] == pytest.approx(2 * plain["host_gib"]["checkpoint"])
    assert told_anew("planning.node=1")["host_gib_per_node"] == pytest.approx(plain["host_gib"]["checkpoint"])
    assert told_anew("checkpoint.asynchronous=false")["host_gib"] == {}
    away = told_anew("parallel.offload=true", "parallel.dtype=bf16", "checkpoint.asynchronous=false")
    assert away["host_gib_per_node"] * 2**30 == pytest.approx(4 * total + 16 * trained, rel=0.01)


RECIPES = {"sft_64xh20": (64, "h20", 95.6), "sft_8gpu": (8, "h100_80gb", 79.6), "sft_1gpu": (1, "h100_80gb", 79.6)}


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_fits_the_cards_it_is_for(recipe):
    ranks, card, gib = RECIPES[recipe]
    found = told(f"+recipe={recipe}")
    assert (found["world_size"], found["card"]["name"], found["card"]["gib"]) == (ranks, card, gib)
    assert found["fits"] and found["memory_gib"]["total"] < 0.95 * gib
    assert found["parameters"]["trainable"] == PARAMETERS - FROZEN
    if recipe == "sft_1gpu":  # offloaded: weights, gradients, two moments, average; no copy beside them
        assert found["host_gib_per_node"] * 2**30 == pytest.approx(20 * PARAMETERS, rel=0.01)


def test_traffic_between_nodes_takes_the_networks_time():
    slow = told_anew("planning.node=1", "planning.network=1")["network"]
    fast = told_anew("planning.node=1", "planning.network=100")["network"]
    assert slow["total_gib"] == fast["total_gib"]
    assert slow["seconds_unhidden"] == pytest.approx(100 * fast["seconds_unhidden"])


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["plan=true"], "model=bagel_7b_mot"),
        (["planning.card=h30"], "h20"),
        (["+recipe=openmoji_vae"], "task=sft"),
        (["parallel=deepspeed_zero3"], "fsdp"),
        (["planning.world=64", "parallel.shard=7"], "the nearest mesh is parallel.replicate=8 parallel.shard=8"),
        (["+recipe=sft_64xh20", "parallel.shard=16"], "the nearest mesh is parallel.replicate=4 parallel.shard=16"),
        (["planning.world=4", "parallel.packs_per_step=6"], "parallel.packs_per_step=8"),
        ([*SHORT, "planning.references=40"], "fewer planning.references"),
    ],
)
def test_what_cannot_be_planned_or_run_is_refused_with_the_nearest(overrides, says):
    with pytest.raises(UserError, match=re.escape(says)):
        plan(compose(overrides))


@cache
def paper_run():
    """A configuration to change."""
    return compose(["+recipe=sft_64xh20"])


@settings(max_examples=60, deadline=None)
@given(
    world=st.integers(1, 96),
    replicate=st.none() | st.integers(1, 16),
    shard=st.none() | st.integers(1, 16),
    packs=st.integers(1, 200),
)
def test_whoever_follows_a_refusal_of_the_mesh_is_not_refused_again(world, replicate, shard, packs):
    config = paper_run()
    config.planning.world = world
    config.parallel.replicate, config.parallel.shard, config.parallel.packs_per_step = replicate, shard, packs
    try:
        mesh = mesh_of(config)
    except UserError as error:
        advice = re.findall(r"parallel\.(\w+)=(\d+)", str(error).rpartition("the nearest")[2])
        assert advice
        for key, value in advice:
            setattr(config.parallel, key, int(value))
        mesh = mesh_of(config)
    assert mesh[0] * mesh[1] == world and config.parallel.packs_per_step % world == 0


def test_what_does_not_fit_is_refused_with_the_nearest_that_does(monkeypatch, capsys):
    overrides = [*SHORT, "parallel.dtype=bf16", "model.attention=flex"]
    sizes = {mode: planned(*overrides, f"parallel.checkpointing={mode}").memory.total for mode in ("none", "selective")}
    card = Card("small", (sizes["none"] + sizes["selective"]) / 2 / 2**30, 100.0, 100.0)
    monkeypatch.setitem(CARDS, "small", card)
    monkeypatch.setattr(sys, "argv", ["train.py", *overrides, "planning.card=small", "plan=json"])
    with pytest.raises(UserError, match=r"the nearest that fits: parallel\.checkpointing=selective$"):
        train.main()
    assert json.loads(capsys.readouterr().out)["fits"] is False


def test_where_nothing_near_fits_it_says_so(monkeypatch):
    monkeypatch.setitem(CARDS, "tiny", Card("tiny", 0.1, 100.0, 100.0))
    made = plan(compose([*SHORT, "planning.card=tiny", "parallel.dtype=bf16", "parallel.checkpointing=full"]))
    with pytest.raises(UserError, match="other cards"):
        refuse(made)


def test_with_data_samples_and_steps_come_from_the_length_index(tmp_path):
    config = compose([*write_start(tmp_path / "start"), f"output={tmp_path / 'run'}", "planning.world=2"])
    found = as_json(plan(config))
    parts = assemble(config, World(0, 2, torch.device("cpu"), None))
    expected = parts.loader.plan(0)
    assert found["tokens"]["epoch"]["samples"] == sum(len(pack) for pack in expected.packs) == 12
    assert found["tokens"]["epoch"]["steps"] == expected.steps
    assert found["tokens"]["epoch"]["tokens"] == int(expected.slots.sum())
    assert found["tokens"]["epoch"]["fill"] == round(expected.fill, 4)
    filled = [pack for pack in expected.packs if pack]
    assert found["tokens"]["per_pack"] == round(sum(expected.slots[pack].sum() for pack in filled) / len(filled))
    largest = plan(config).work.largest
    assert largest.length == max(expected.slots[pack].sum() for pack in filled)
