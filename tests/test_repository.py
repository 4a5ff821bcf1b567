"""Files that tools outside the package read: continuous integration, pre-commit, Docker, citation and torch.hub."""

import re
import runpy
import shlex
import tomllib
from pathlib import Path

import pytest
import torch

import streamseg
from streamseg.models.bundled import BUNDLED_WEIGHTS, DEFAULT

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install 'streamseg[docs]'")

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read_yaml(path):
    return yaml.safe_load((ROOT / path).read_text())


def test_the_workflow_runs_the_same_checks_as_any_machine():
    workflow = read_yaml(".github/workflows/ci.yml")
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert ".ci/run" in commands
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for program, *arguments in map(shlex.split, commands):
        assert program in (".ci/run", "make", "pip", "streamseg")
        assert program != "make" or set(arguments) <= {*targets}


def test_pre_commit_uses_the_pinned_ruff():
    [repository] = read_yaml(".pre-commit-config.yaml")["repos"]
    assert f"ruff=={repository['rev'].removeprefix('v')}" in (ROOT / "constraints.txt").read_text().split()
    assert [hook["id"] for hook in repository["hooks"]] == ["ruff-check", "ruff-format"]


def test_a_bug_report_asks_for_command_version_and_traceback():
    form = read_yaml(".github/ISSUE_TEMPLATE/bug.yml")
    fields = {field["id"]: field for field in form["body"] if "id" in field}
    assert all(fields[name]["validations"]["required"] for name in ("command", "output", "version"))
    assert "STREAMSEG_DEBUG=1" in fields["output"]["attributes"]["label"]


@pytest.mark.parametrize("name", ["bug", "feature", "question"])
def test_issue_forms_have_what_github_requires(name):
    form = read_yaml(f".github/ISSUE_TEMPLATE/{name}.yml")
    assert form["name"]
    assert form["description"]
    assert all("label" in field["attributes"] for field in form["body"] if field["type"] != "markdown")


def test_the_citation_has_the_version_and_the_paper_of_the_readme():
    citation = read_yaml("CITATION.cff")
    readme = (ROOT / "README.md").read_text()
    [paper] = citation["references"]
    assert citation["version"] == streamseg.__version__
    assert citation["license"] == PROJECT["license"]
    assert paper["url"] in readme
    assert f"{{{paper['title']}}}" in readme
    names = " and ".join(f"{author['family-names']}, {author['given-names']}" for author in paper["authors"])
    assert f"{{{names}}}" in readme


def test_the_image_is_built_from_what_docker_gets_and_runs_as_no_root():
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    words = [shlex.split(line) for line in lines if line and not line.startswith("#")]
    install = next(line for line in words if line[:3] == ["RUN", "pip", "install"])
    extras = re.fullmatch(r"\.\[(.+)\]", next(word for word in install if word.startswith(".["))).group(1)
    assert set(extras.split(",")) <= {*PROJECT["optional-dependencies"]}
    assert next(line[1] for line in words if line[0] == "USER") not in ("root", "0")
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert all((ROOT / name).exists() for name in sent)
    needed = {"pyproject.toml", "setup.py", "constraints.txt", "streamseg", "samples", PROJECT["readme"]}
    assert needed | {*PROJECT["license-files"]} <= {*sent}


# torch.hub


def from_hub(name, **options):
    return torch.hub.load(str(ROOT), name, source="local", **options)


@pytest.fixture
def build_command(monkeypatch, tmp_path):
    """The command of setup.py that lists the files of a source distribution and copies those of a wheel."""
    dist = pytest.importorskip("setuptools.dist", reason="setuptools is not installed: pip install setuptools")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("setuptools.setup", lambda **_: None)
    command = runpy.run_path("setup.py")["BuildWithSamples"](dist.Distribution({"packages": []}))
    command.ensure_finalized()
    command.build_lib = str(tmp_path)
    return command


def test_source_distributions_and_wheels_have_all_samples(build_command, tmp_path):
    samples = {path for path in (ROOT / "samples").rglob("*") if path.is_file()}
    assert ROOT / "samples" / "dashcam" / "rain.jpg" in samples
    listed = {ROOT / name for name in build_command.get_source_files()}
    assert samples <= listed
    assert all(path.is_file() for path in listed)
    build_command.run()
    copied = {path for path in (tmp_path / "streamseg").rglob("*") if path.is_file()}
    assert copied == {tmp_path / "streamseg" / path.relative_to(ROOT) for path in samples}


def test_the_hub_loads_the_bundled_weights():
    bundled, _ = streamseg.load()
    for network in (from_hub("fanetplus18", pretrained=True), from_hub("fanetplus18", pretrained=DEFAULT)):
        for found, expected in zip(network.state_dict().values(), bundled.state_dict().values(), strict=True):
            assert torch.equal(found, expected)


@pytest.mark.parametrize("name", BUNDLED_WEIGHTS)
def test_the_hub_has_an_entry_for_each_bundled_network(name):
    network, (bundled, _) = from_hub(name), streamseg.load(name)
    assert not network.training
    for found, expected in zip(network.state_dict().values(), bundled.state_dict().values(), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ["fanet18", "fanet34", "fanetplus18", "fanetplus34"])
def test_the_hub_builds_networks_with_random_weights(name):
    assert from_hub(name, classes=5).eval()(torch.zeros(1, 3, 64, 96)).shape == (1, 5, 64, 96)
    assert from_hub(name).eval()(torch.zeros(1, 3, 64, 96)).shape == (1, 19, 64, 96)


def test_the_hub_refuses_weights_that_do_not_exist():
    with pytest.raises(ValueError, match=r"The weights 'street' have 13 classes, got classes=999"):
        from_hub("fanetplus18", pretrained=True, classes=999)
    with pytest.raises(FileNotFoundError, match="No weights are called 'steet': did you mean 'street'"):
        from_hub("fanetplus18", pretrained="steet")
    for name in ("fanet18", "fanet34", "fanetplus34"):
        with pytest.raises(ValueError, match=f"No weights are bundled for {name}"):
            from_hub(name, pretrained=True)


def test_the_hub_lists_networks_only():
    import hubconf

    listed = [name for name, thing in vars(hubconf).items() if callable(thing) and not name.startswith("_")]
    assert listed == [*BUNDLED_WEIGHTS, "fanet18", "fanet34", "fanetplus18", "fanetplus34"]


def test_the_hub_finds_every_package_that_it_needs():
    import hubconf

    modules = {"pillow": "PIL"}
    required = {re.match(r"[\w-]+", name)[0] for name in PROJECT["dependencies"]}
    assert {*hubconf.dependencies} <= {modules.get(name, name) for name in required}
