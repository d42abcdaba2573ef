"""The benchmarks of a step and of the loss print what they say, on sizes that a test can afford."""

import json
from dataclasses import replace

import pytest
import torch

from benchmarks import cross_entropy, step, step_cuda
from benchmarks.agent_sample import agent_sample
from unify_agent.errors import UserError
from unify_agent.interleave.segments import Drawing, Picture
from unify_agent.interleave.visibility import Span, visible_pairs
from unify_agent.model import varlen
from unify_agent.model.attention import SegmentsAttention
from unify_agent.model.config import BAGEL_7B_MOT


def here(function, *arguments):
    """In this process, not one of its own."""
    return function(*(arguments[0] if isinstance(arguments[0], tuple) else arguments))


@pytest.mark.parametrize("tokens", [330, 1000, 8000])
def test_the_sample_has_ten_segments_and_exactly_so_many_tokens(tokens):
    sample = agent_sample("x", tokens)
    assert sample.slots == tokens and len(sample.segments) == 10
    assert [type(each) for each in sample.segments].count(Picture) == 4
    assert isinstance(sample.segments[-1], Drawing)


def test_the_agent_case_has_its_bars_and_its_pairs(monkeypatch):
    monkeypatch.setattr(step, "REPEATS", 1)
    monkeypatch.setattr(step, "PUBLIC", {330: (8.0, 4 * 2**20)})
    monkeypatch.setattr(step, "TIMES_AS_FAST", {330: 4})
    row = step.agent_case(330, 1, torch.get_num_threads())
    assert (row["case"], row["tokens"]) == ("agent sample", 330)
    assert row["seconds"] > 0 and row["gemm"] > 0 and 0 < row["pairs"] < 330**2
    assert 0 < row["mfu"] < 1 and row["peak_mib"] > row["growth_mib"]
    assert (row["most_seconds"], row["most_growth_mib"]) == (2.0, 1.0)
    assert "at most 2.00 s" in step.line(row)


def test_a_whole_step_is_told_by_its_parts(monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setattr(step, "REPEATS", 1)
    row = step.whole_case(700, torch.get_num_threads(), False, 0, 1, 0)
    assert set(row["parts"]) == {"loader", "vae", "forward", "backward", "optimiser", "communication"}
    parts = sum(row["parts"].values())
    assert 0.5 * row["seconds"] < parts <= 1.01 * row["seconds"] and row["tokens_per_second"] > 0
    assert 0 < row["mfu"] < 1 and row["gemm"] > 0 and row["peak_mib"] > row["growth_mib"]


def test_a_case_that_fails_is_told_and_the_others_are_measured(monkeypatch, capsys):
    monkeypatch.setattr(step, "alone", here)
    made = {"seconds": 1.0, "growth_mib": 2.0}

    def agent_case(tokens, samples, threads):
        if tokens == 4000:
            raise RuntimeError("out of memory\nand more")
        return {"case": "a", "tokens": tokens} | made

    monkeypatch.setattr(step, "agent_case", agent_case)
    monkeypatch.setattr(step, "whole_case", lambda tokens, *_: {"case": "w", "tokens": tokens} | made)
    assert step.main(["--json", "--device", "cpu"]) == 1
    printed = capsys.readouterr()
    assert [row["tokens"] for row in json.loads(printed.out)][:2] == [1000, 8000]
    assert "agent sample, 4,000 tokens: not measured (RuntimeError: out of memory)" in printed.err
    assert "a, 1,000 tokens: 1.000 s" in printed.err


SPANS = [Span(0, 60, "causal"), Span(60, 90, "full"), Span(90, 100, "causal"), Span(100, 130, "noise", 0, ((60, 95),))]
WIDTHS = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}


@pytest.fixture
def small(monkeypatch):
    """The case of a GPU, with another shape and without one."""
    monkeypatch.setattr(step_cuda, "TOKENS", 130)
    for name in ("synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    for name in ("memory_allocated", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda: 0)
    return replace(BAGEL_7B_MOT.llm, num_hidden_layers=step_cuda.LAYERS, **WIDTHS)


def test_attention_on_a_gpu_is_measured_against_the_oracle(small):
    cpu = torch.device("cpu")
    assert max(step_cuda.errors(SegmentsAttention(SPANS, 130), SPANS, small, cpu)) < 0.01
    wrong = SegmentsAttention([Span(0, 130, "full")], 130)
    assert min(step_cuda.errors(wrong, SPANS, small, cpu)) > 0.1


def test_layers_on_a_gpu_are_timed_forwards_and_backwards(small, monkeypatch):
    monkeypatch.setattr(step_cuda, "REPEATS", 1)
    calls = []
    right = SegmentsAttention(SPANS, 130)

    def attend(layer, *qkv):
        calls.append(layer)
        return right(layer, *qkv)

    seconds, _ = step_cuda.timed(attend, SPANS, small, torch.device("cpu"))
    assert seconds > 0 and calls == [0, 1, 2, 3] * 2


def test_the_arithmetic_of_layers_is_that_of_matrices_and_visible_pairs(small):
    """Linear layers of each token's own expert three times, attention by visible pairs."""
    expert = 32 * 32 * 2 + 2 * 32 * 16 + 3 * 32 * 48
    expected = 4 * (3 * 2 * expert * 130 + 3 * 4 * 32 * visible_pairs(SPANS))
    assert step_cuda.arithmetic(small, SPANS) == expected


def test_without_a_gpu_or_its_kernels_one_line_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no GPU"):
        step_cuda.main([])
    monkeypatch.setattr(varlen.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs flash-attn or torch 2\.11"):
        varlen.best_kernel.__wrapped__()


def test_all_cases_make_one_json_list(monkeypatch, capsys):
    monkeypatch.setattr(step, "alone", here)
    made = {"seconds": 1.0, "growth_mib": 2.0}
    monkeypatch.setattr(step, "agent_case", lambda tokens, samples, threads: {"case": "a", "tokens": tokens} | made)
    monkeypatch.setattr(step, "whole_case", lambda tokens, *_: {"case": "w", "tokens": tokens} | made)
    assert step.main(["--json", "--device", "cpu"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["tokens"] for row in rows[:3]] == [1000, 4000, 8000]
    assert all({"case", "tokens", "seconds", "growth_mib"} <= row.keys() for row in rows)
    with pytest.raises(UserError, match="--threads 0"):
        step.main(["--threads", "0"])


def test_both_losses_of_the_comparison_are_the_same(monkeypatch, capsys):
    torch.manual_seed(0)
    hidden, head = torch.randn(300, 16, requires_grad=True), torch.randn(40, 16, requires_grad=True)
    labels, weights = torch.randint(40, (300,)), torch.rand(300)
    found = []
    for loss in (cross_entropy.plain, cross_entropy.chunked):
        value = loss(hidden, head, labels, weights)
        found.append((value, *torch.autograd.grad(value, (hidden, head))))
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
    monkeypatch.setattr(cross_entropy, "compare", lambda width, threads: {"memory_ratio": 0.1, "time_ratio": 1.0})
    assert cross_entropy.main(["--json"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["memory_ratio"] == 0.1 and set(found["hidden 3584"]) == {"memory_ratio", "time_ratio"}
    first, second = printed.err.splitlines()
    assert first.startswith("hidden 256: memory_ratio 0.1") and "time_ratio at most 1.4" in first
    assert second.startswith("hidden 3584: ") and "at most" not in second
