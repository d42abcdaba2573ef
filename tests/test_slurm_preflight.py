"""What `preflight=true` tells of machines, files and the run, before a card is used."""

import os
import subprocess
import sys
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from tests.training_ranks import compose
from tests.training_toy import write_start
from unify_agent.errors import UserError
from unify_agent.training import checkpoint, readiness
from unify_agent.training.assembly import assemble
from unify_agent.training.export import commit
from unify_agent.training.preflight import preflight
from unify_agent.training.readiness import Note, judged, look

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    return write_start(tmp_path_factory.mktemp("start"))


@pytest.fixture
def settings(start, tmp_path):
    output = tmp_path / "run"
    output.mkdir()
    return compose([*start, f"output={output}"])


def notes(*hosts: str, **changed) -> list[Note]:
    return [Note(rank, host, leads=True, card="H20", shares=True, **changed) for rank, host in enumerate(hosts)]


def test_a_run_that_can_start_is_said_to_and_leaves_its_length_index_only(settings, capsys):
    assert preflight(settings) == 0
    said = capsys.readouterr()
    assert "1 replicas x 1 shards; 2 packs a step on each rank" in said.out
    assert "an epoch is 12 samples in 2 steps" in said.out and "the run can start" in said.out
    assert "error" not in said.err and not any(Path(settings.output).glob(".preflight*"))


def test_a_note_says_which_paths_are_there_and_which_settings_cost_speed(settings, start, tmp_path):
    token = tmp_path / "token"
    slow = {"LOCAL_RANK": "0", "TORCH_DISTRIBUTED_DEBUG": "detail", "NCCL_IB_DISABLE": "0"}
    note = look(settings, 0, token, slow)
    assert note.leads and not note.shares
    assert note.seen == [settings.model.vae, settings.model.tokenizer]
    assert note.warnings == ["TORCH_DISTRIBUTED_DEBUG=detail: every collective is first compared over all ranks"]
    token.touch()
    assert look(settings, 0, token, {}).shares and not look(settings, 0, token, {}).warnings
    second = look(settings, 1, token, {"LOCAL_RANK": "1"})
    assert not second.leads and not second.seen


def test_a_node_that_lacks_what_the_first_one_sees_is_named(settings):
    seen = notes("a", "b", "c")
    seen[0].seen = seen[1].seen = ["/data"]
    seen[2].shares = False
    errors = judged(replace(settings, parallel=replace(settings.parallel, packs_per_step=3)), seen).errors
    assert errors == [
        "c: /data is not there, but on a it is; all nodes must see it",
        f"c: output={settings.output} is another folder than on a; all nodes must share it",
    ]


def test_ranks_without_a_card_are_an_error_and_other_cards_a_warning(settings):
    mixed = notes("a", "b")
    mixed[1].card = "H200"
    report = judged(settings, mixed)
    assert not report.errors and report.warnings == ["not all ranks have the same card: H20 on a; H200 on b"]
    mixed[1].card = ""
    assert judged(settings, mixed).errors == ["not all ranks have the same card: H20 on a; no GPU on b"]


def test_the_same_finding_on_many_nodes_is_one_line(settings):
    many = notes("a", "b", "c", "d", "e", "e", warnings=["hot"])
    settings.parallel.packs_per_step = 6
    assert "a ... e (5 nodes): hot" in judged(settings, many).warnings


def test_a_mesh_that_does_not_make_the_world_and_packs_that_cannot_be_dealt_are_errors(settings):
    settings.parallel.shard = 8
    assert "does not make 2 ranks" in judged(settings, notes("a", "b")).errors[0]
    settings.parallel.shard, settings.parallel.packs_per_step = None, 3
    assert "no multiple of 2 ranks" in judged(settings, notes("a", "b")).errors[0]


def test_data_that_cannot_be_used_and_weights_that_are_not_there_are_errors(start, tmp_path):
    output = f"output={tmp_path}"
    absent = compose([*start, output, "data.sources=[{kind: trajectories, path: nowhere}]"])
    assert "nowhere" in judged(absent, notes("a")).errors[0]
    weights = compose([*start, output, "model.init=pretrained", "model.path=/no/model"])
    assert judged(weights, notes("a")).errors == ["/no/model: no such folder"]


def test_fewer_packs_than_a_step_takes_are_a_warning(settings):
    settings.parallel.packs_per_step = 64
    assert "an epoch fills" in judged(settings, notes("a")).warnings[0]


def test_a_disk_without_room_for_all_checkpoints_is_an_error(settings, monkeypatch):
    usage = readiness.shutil.disk_usage(".")
    facts = judged(settings, notes("a")).facts
    assert "a checkpoint takes" in facts[-1] and "3 more and the exported model" in facts[-1]
    monkeypatch.setattr(readiness.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    assert "0.0 MiB are free" in judged(settings, notes("a")).errors[0]


def test_a_node_without_the_host_memory_for_what_is_offloaded_and_copied_is_an_error(settings):
    seen = notes("a", "a", memory=1)
    (text,) = judged(settings, seen).errors
    assert text.startswith("a: the ranks of a node keep ") and "checkpoint.asynchronous=false" in text
    copies = float(text.partition("keep ")[2].split()[0])
    settings.checkpoint.asynchronous = False
    assert judged(settings, seen).errors == []
    settings.parallel.offload = True
    (text,) = judged(settings, seen).errors
    offloaded = float(text.partition("keep ")[2].split()[0])
    assert offloaded == pytest.approx(copies * 20 / 16, rel=0.05)  # gradients too
    for note in seen:
        note.memory = 1 << 40
    assert judged(settings, seen).errors == []


def test_host_memory_is_what_the_control_groups_leave(tmp_path):
    machine = readiness.host_memory(tmp_path)
    assert machine == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("1:name=x:/y\n0::/slurm/job_1/step\n")
    groups = tmp_path / "sys/fs/cgroup/slurm/job_1/step"
    groups.mkdir(parents=True)
    (groups / "memory.max").write_text("max\n")
    assert readiness.host_memory(tmp_path) == machine
    (groups.parent / "memory.max").write_text("1000\n")
    assert readiness.host_memory(tmp_path) == 1000


def test_a_checkpoint_of_adapters_takes_what_is_trained(settings, monkeypatch):
    pytest.importorskip("peft")
    plain = judged(settings, notes("a")).facts[-1]
    settings.model.init, settings.lora.rank = "pretrained", 2
    monkeypatch.setattr(readiness, "assemble", lambda config, world: assemble(replace_init(config), world))
    adapted = judged(settings, notes("a")).facts[-1]
    sizes = [float(text.partition("a checkpoint takes ")[2].split()[0]) for text in (plain, adapted)]
    assert sizes[1] < 0.7 * sizes[0]


def replace_init(config):
    """The same run from random weights, which a test has."""
    return replace(config, model=replace(config.model, init="random"))


def test_what_a_checkpoint_takes_is_what_it_then_takes(settings):
    from unify_agent.training.trainer import fit

    settings.steps, settings.checkpoint.every = 1, 1
    assert fit(settings) == 0
    found = checkpoint.latest(Path(settings.output) / "checkpoints")
    tensors = checkpoint.shapes(found).items()
    held = sum(4 * prod(shape) for name, shape in tensors if not name.startswith("random/"))
    said = judged(settings, notes("a")).facts[-1]
    told = float(said.partition("a checkpoint takes ")[2].split()[0].replace(",", "")) * 2**20
    assert told == pytest.approx(held, abs=0.05 * 2**20) and "2 more" in said


def test_the_autoencoder_has_no_preflight():
    with pytest.raises(UserError, match="task=vae"):
        preflight(compose(["+recipe=openmoji_vae", "preflight=true"]))


def test_a_snapshot_of_the_code_says_which_commit_it_is(tmp_path):
    module = tmp_path / "unify_agent/training/export.py"
    module.parent.mkdir(parents=True)
    (tmp_path / "COMMIT").write_text("0123456789ab+changes\n")
    code = f"import unify_agent.training.export as e; e.__file__ = {str(module)!r}; print(e.commit())"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    made = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert made.stdout == "0123456789ab+changes\n"
    assert commit() != "0123456789ab+changes"


@pytest.mark.slow
def test_ranks_hear_of_what_only_the_first_one_finds(start, tmp_path):
    """Two ranks: one says why, both end with exit code 2, and no process group is formed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    sources = "data.sources=[{kind: trajectories, path: nowhere}]"
    command += [*start, sources, f"output={tmp_path}", "preflight=true"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    made = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert made.returncode and made.stderr.count("error: ") == 1 and made.stdout.count("2 ranks on") == 1
    assert "exitcode  : 2" in made.stderr
