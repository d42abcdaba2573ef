"""The spec of a build: the example, paths, what is refused and how it is told, what its digest depends on."""

from pathlib import Path

import pytest
import yaml
from build_tools import write_spec

from data.build import spec as specs
from data.build.spec import Spec, read_spec
from unify_agent.errors import UserError

EXAMPLE = Path(specs.__file__).with_name("example.yaml")


def written(folder, **changes):
    (folder / "entities.csv").write_text("id,name_en\n")
    return write_spec(folder, folder, "http://127.0.0.1:9", "http://127.0.0.1:9", **changes)


def test_the_example_is_a_spec_and_holds_the_values_that_hold_without_it(tmp_path):
    path = tmp_path / "build.yaml"
    path.write_text(EXAMPLE.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "entities.csv").write_text("id,name_en\n")
    found = read_spec(path)
    assert found.entities == tmp_path / "entities.csv" and found.out == tmp_path / "out"
    assert found.chat("metadata").model == "teacher-small" and found.chat("metadata").url == found.chat("teacher").url
    assert found.root("prompts") == "teacher" and found.root("verifier") == "verifier"
    for name, field in Spec.model_fields.items():
        if name not in ("entities", "out", "services", "file", "parts"):
            assert getattr(found, name) == field.get_default(), name


@pytest.mark.parametrize(
    ("change", "told"), [
        ({"entites": "x"}, "entites: not a key of a spec, did you mean 'entities'?"),
        ({"verification": {"treshold": 5}}, "verification.treshold: not a key of a spec, did you mean 'threshold'?"),
        ({"services": {"teacher": {"modl": "x"}}}, "services.teacher.modl: not a key of a spec, did you mean 'mod"),
        ({"services": {"image": {"price": {"pictures": 1}}}},
         "services.image.price.pictures: not a key of a spec, did you mean 'picture'"),
        ({"parts": {}}, "parts: not a key of a spec"),
        ({"at_once": 0}, "at_once: Input should be greater than or equal to 1"),
        ({"services": {"teacher": {"budget": {"money": 3}}}}, "budget.money is never reached without a price"),
        ({"services": {"metadata": {"same_as": "prompts"}, "prompts": {"same_as": "metadata"}}}, "same_as goes round"),
        ({"services": {"metadata": {"rate": 3}}}, "rate is that of teacher, whom this service is the same as"),
        ({"references": {"clarity": float("inf")}}, "references.clarity: Input should be a finite number"),
        ({"prompts": {"languages": ["English"]}}, "prompts.languages: 'English' is no code of a language, such as en"),
        ({"services": {"image": {"size": "big"}}}, "services.image.size: 'big' is no HEIGHTxWIDTH"),
        ({"entities": "none.csv"}, "entities: .*none.csv cannot be read"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_file_and_key(tmp_path, change, told):
    path = written(tmp_path, **change)
    with pytest.raises(UserError, match=rf"^{path}: .*{told}") as raised:
        read_spec(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "told"), [
        ("out: a\nout: b\n", "'out' stands twice"), ("- 1\n", "a table of keys"), ("a: [", "does not parse"),
        ("out: a\n", "entities: this key is missing"), ("\xff", "cannot be read"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_spec(tmp_path, text, told):
    path = tmp_path / "build.yaml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=told):
        read_spec(path)
    with pytest.raises(UserError, match="no such spec"):
        read_spec(tmp_path / "none.yaml")


def test_the_digest_is_that_of_what_changes_results(tmp_path):
    first = read_spec(written(tmp_path)).digest
    same = {"at_once": 3, "patience": 1, "currency": "EUR", "out": "elsewhere", "strict": True,
            "services": {"teacher": {"budget": {"calls": 7}, "rate": 3, "price": {"call": 1}, "timeout": 5},
                         "image": {"concurrency": 2}}}  # fmt: skip
    assert read_spec(written(tmp_path, **same)).digest == first
    for change in (
        {"seed": 1}, {"verification": {"threshold": 7}}, {"references": {"keep": 1}},
        {"metadata": {"results": 3}}, {"prompts": {"per_entity": 1}}, {"trajectories": {"rounds": 3}},
        {"benchmark": {"share": 0.1}}, {"services": {"references": {"temperature": 1.0}}},
        {"services": {"verifier": {"model": "another"}}}, {"services": {"image": {"size": "32x32"}}},
    ):  # fmt: skip
        assert read_spec(written(tmp_path, **change)).digest != first, change
    path = written(tmp_path)
    (tmp_path / "entities.csv").write_text("id,name_en\n1,Owl\n")
    assert read_spec(path).digest != first


def test_shards_on_machines_with_other_paths_have_one_digest(tmp_path):
    found = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        path = written(tmp_path / name)
        value = yaml.safe_load(path.read_text()) | {"entities": "entities.csv"}
        path.write_text(yaml.safe_dump(value))
        found.add(read_spec(path).digest)
    assert len(found) == 1
