"""`plan=true` counts what would be trained, and BAGEL-7B-MoT has exactly BAGEL's names and shapes."""

import sys

import pytest

import train
from tests.training_ranks import compose
from unify_agent.errors import UserError
from unify_agent.model.config import BAGEL_7B_MOT, TINY, BagelConfig
from unify_agent.model.loading import shapes
from unify_agent.training.plan import plan

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


def test_the_command_counts_the_7b_without_weights_or_data(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", "model=bagel_7b_mot", "plan=true"])
    assert train.main() == 0
    told = capsys.readouterr().out
    assert f"{PARAMETERS:,} parameters (14.607e9)" in told
    assert [*map(float, told.splitlines()[-2].split()[-2:])] == [58.43, 29.21]
    assert not list(tmp_path.iterdir())


def test_the_parts_add_up_and_only_the_position_tables_are_frozen():
    counted = plan(compose(["model=bagel_7b_mot", "plan=true"]))
    rows = {row.part: row for row in counted.rows}
    assert counted.total.parameters == PARAMETERS
    assert counted.total.tensors == len(by_the_table(**TABLE_7B))
    assert counted.total.parameters - counted.total.trained == FROZEN == rows["position tables"].parameters
    assert rows["vocabulary tables"].parameters == 2 * 152064 * 3584
    # a layer has 466,116,096: one half for each expert; each expert has a last norm too
    assert rows["decoder, und"] == rows["decoder, gen"].__class__(
        "decoder, und", *[getattr(rows["decoder, gen"], key) for key in ("tensors", "parameters", "trained")]
    )
    assert rows["decoder, und"].parameters == 28 * 466_116_096 // 2 + 3584


def test_a_plan_of_nothing_says_what_to_name():
    with pytest.raises(UserError, match="model=bagel_7b_mot"):
        plan(compose(["plan=true"]))
