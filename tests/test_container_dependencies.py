"""Images hold what pyproject.toml says, in releases that constraints.txt pins and pyproject.toml allows."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
FILES = ("container/Dockerfile", "container/unify_agent.def")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def commands(name: str) -> str:
    """What a definition runs, without comments, on one line each."""
    text = re.sub(r"^\s*#.*$", "", (ROOT / name).read_text(), flags=re.M)
    return re.sub(r"\\\n\s*", "", text)


def extras(name: str) -> list[str]:
    """The extras that a definition asks `dependencies.py` for."""
    (found,) = re.findall(r"dependencies\.py \S*pyproject\.toml ([\w -]*)>", commands(name))
    return found.split()


def listed(*chosen: str) -> list[str]:
    command = [sys.executable, "-S", ROOT / "container/dependencies.py", ROOT / "pyproject.toml", *chosen]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_list_is_the_projects_and_that_of_the_extras_named():
    assert listed() == PROJECT["dependencies"]
    optional = PROJECT["optional-dependencies"]
    assert listed("lora", "wandb") == PROJECT["dependencies"] + optional["lora"] + optional["wandb"]
    with pytest.raises(subprocess.CalledProcessError):
        listed("lorra")


def test_both_images_install_the_same():
    assert extras(FILES[0]) == extras(FILES[1]) and set(extras(FILES[0])) <= set(PROJECT["optional-dependencies"])
    apt = [
        re.findall(r"apt-get install --yes --no-install-recommends ([\w+ -]+?)(?= *&&|\n)", commands(f)) for f in FILES
    ]
    assert apt[0] == apt[1] and "gcc" in apt[0][0].split()  # torch.compile needs a compiler
    bases = [re.findall(r"^(?:FROM|From:) (\S+)$", commands(file), re.M) for file in FILES]
    assert bases[0] == bases[1] and bases[0][0].partition(":")[2].startswith(PROJECT["requires-python"].strip(">="))


@pytest.mark.parametrize("name", FILES)
def test_an_image_is_built_from_files_that_are_there_and_holds_no_code(name):
    text = commands(name)
    copied = set(
        re.findall(r"(?:container/)?[\w.]+\.(?:toml|txt|py)\b", text.partition("RUN python")[0].partition("%post")[0])
    )
    assert {"pyproject.toml", "constraints.txt", "container/dependencies.py"} <= copied
    assert all((ROOT / file).is_file() for file in copied if "/" in file or file != "dependencies.py")
    assert "unify_agent/" not in text and re.search(r"pip install --no-cache-dir -r \S+ -c \S*constraints.txt", text)


def test_what_is_pinned_is_what_the_project_allows():
    lines = (line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines())
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    pinned = {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in pins}
    for text in listed(*extras(FILES[0])):
        wanted = Requirement(text)
        version = pinned.get(canonicalize_name(wanted.name))
        assert version is not None, f"{wanted.name} is not pinned"
        assert "+" not in version, f"{text}: {version} is a build for one kind of machine"
        assert wanted.specifier.contains(version), f"{text} does not allow {version}"
