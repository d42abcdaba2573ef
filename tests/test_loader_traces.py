"""The public loader's stored batches against our plan: where the rules agree, and where ours differ on purpose.

The public loader draws from endless streams and yields a batch when the next sample does not fit; that sample is thrown
away, whole. Ours plans an epoch, in which every sample is in one pack. A sample of n ids has n + 2 slots in both.
"""

import json
import random
from pathlib import Path

import pytest

from unify_agent.interleave.batch import PackRules, pack
from unify_agent.interleave.packing import TOO_LONG, Limits, Plan, make_plan
from unify_agent.interleave.segments import Document, Text

TRACES = {
    trace["name"]: trace
    for trace in json.loads((Path(__file__).parent / "golden" / "loader_traces.json").read_text())["traces"]
}
RULES = PackRules(500, 501, 502, 503, 32, 20)
LOST = {"one_group": [], "two_groups_one_mandatory": [(1, 1), (1, 8), (1, 13)], "boundary_equal_length": []}
"""(group, index in its stream) of samples that the public loader read, found short enough and never packed."""


def read(trace: dict) -> dict[tuple[int, int], int]:
    """Slots of every sample that the public loader must have settled by its second to last stored batch."""
    result = {}
    for group, lengths in enumerate(trace["groups_text_lens"]):
        settled = min(index for batch in trace["batches"][-2:] for g, index, _ in batch["items"] if g == group)
        result |= {(group, index): lengths[index % len(lengths)] + 2 for index in range(settled)}
    return result


def packed(trace: dict) -> list[tuple[int, int]]:
    return [(group, index) for batch in trace["batches"] for group, index, _ in batch["items"]]


def ours(trace: dict) -> tuple[Plan, list[tuple[int, int]]]:
    """Our plan of the same samples under the same limits, and the samples in its order."""
    samples, options = read(trace), trace["options"]
    limits = Limits(
        options["expected_num_tokens"], options["max_num_tokens"], options["max_num_tokens_per_sample"], window_steps=8
    )
    slots = list(samples.values())
    ids = [f"{group}/{index}" for group, index in samples]
    return make_plan(ids, slots, slots, limits, seed=0, epoch=0), list(samples)


@pytest.mark.parametrize("name", TRACES)
def test_what_they_pack_together_has_the_same_slots_with_us(name: str) -> None:
    for batch in TRACES[name]["batches"]:
        documents = [Document(f"{g}/{i}", (Text(tuple(range(n)), loss=True),)) for g, i, n in batch["items"]]
        made = pack(documents, RULES)
        assert [span.stop - span.start for span in made.spans] == batch["sample_lens"]
        assert made.length == batch["sequence_length"] <= TRACES[name]["options"]["max_num_tokens"]


@pytest.mark.parametrize("name", TRACES)
def test_samples_that_they_throw_away_are_packed_by_us(name: str) -> None:
    trace = TRACES[name]
    longest, theirs = trace["options"]["max_num_tokens_per_sample"], set(packed(trace))
    lost = [sample for sample, slots in read(trace).items() if slots <= longest and sample not in theirs]
    assert lost == LOST[name]
    plan, samples = ours(trace)
    placed = [samples[number] for each in plan.packs for number in each]
    assert len(placed) == len(set(placed)) and set(lost) <= set(placed)
    assert set(placed) | {samples[number] for number, _ in plan.skipped} == set(samples)


@pytest.mark.parametrize("name", TRACES)
def test_a_sample_longer_than_the_limit_is_left_out_in_silence_by_them_and_listed_by_us(name: str) -> None:
    trace = TRACES[name]
    longest = trace["options"]["max_num_tokens_per_sample"]
    too_long = {sample for sample, slots in read(trace).items() if slots > longest}
    assert not too_long & set(packed(trace))
    plan, samples = ours(trace)
    assert {samples[number] for number, reason in plan.skipped if reason == TOO_LONG} == too_long


@pytest.mark.parametrize("name", ["one_group", "boundary_equal_length"])
def test_a_sample_as_long_as_the_limit_is_taken_by_both(name: str) -> None:
    """Theirs refuses one only as the mandatory first of a batch, where it compares strictly; we have one rule."""
    trace = TRACES[name]
    longest = trace["options"]["max_num_tokens_per_sample"]
    equal = {sample for sample, slots in read(trace).items() if slots == longest}
    plan, samples = ours(trace)
    assert equal and equal <= set(packed(trace))
    assert equal <= {samples[number] for each in plan.packs for number in each}


def test_they_begin_every_batch_with_a_mandatory_sample_and_we_need_none() -> None:
    trace = TRACES["two_groups_one_mandatory"]
    assert {batch["items"][0][0] for batch in trace["batches"]} == {0}
    plan, samples = ours(trace)
    assert {samples[each[0]][0] for each in plan.packs} == {0, 1}


@pytest.mark.parametrize("name", TRACES)
def test_neither_exceeds_the_hard_limit_or_adds_to_a_pack_that_is_full(name: str) -> None:
    trace, (plan, _) = TRACES[name], ours(TRACES[name])
    options = trace["options"]
    packs = [plan.slots[each].tolist() for each in plan.packs] + [batch["sample_lens"] for batch in trace["batches"]]
    for lengths in packs:
        assert sum(lengths) <= options["max_num_tokens"]
        assert sum(lengths[:-1]) < options["expected_num_tokens"]


def test_their_order_hangs_on_a_global_generator_and_ours_on_the_seed_alone() -> None:
    plans = []
    for state in (1, 2):
        random.seed(state)
        plans.append(ours(TRACES["one_group"])[0].fingerprint)
    assert plans[0] == plans[1]
