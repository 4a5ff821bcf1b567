"""The documents tell the truth: their code runs or stands in the package, and their links lead somewhere."""

import re
from pathlib import Path

import pytest
from clips import make_clip
from exports import exported as exported

import streamseg
from streamseg import cli
from streamseg.paper import TABLES

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("samples/*.md")])


def blocks(document, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with the samples, and with the demo's video, small, as a reader has them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    for video in (tmp_path / "out" / "demo" / "drive.mp4", tmp_path / "in.mp4"):
        video.parent.mkdir(parents=True, exist_ok=True)
        make_clip(video, 3)
    return tmp_path


def test_the_python_of_the_readme_runs(folder):
    names: dict = {}
    for block in blocks("README.md", "python"):
        exec(block, names)
    assert names["labels"].shape == (48, 64)
    assert names["picture"].shape == (3, 48, 64)


def test_the_python_of_the_page_on_segmenting_runs(folder):
    names: dict = {}
    for block in blocks("docs/segment.md", "python"):
        exec(block, names)
    assert len(names["state"].contexts) == 1


def test_the_options_on_the_page_on_segmenting_exist(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["streamseg", "segment", "--help"])
    with pytest.raises(SystemExit):
        cli.main()
    known = capsys.readouterr().out
    for option in re.findall(r"--[a-z-]+", (ROOT / "docs/segment.md").read_text()):
        assert option in known, option


def test_the_options_and_tables_on_the_page_on_reproducing_exist(capsys, monkeypatch):
    known = (ROOT / "benchmarks/ablations.py").read_text()
    for verb in (("reproduce",), ("train", "camvid-18"), ("evaluate",)):
        monkeypatch.setattr("sys.argv", ["streamseg", *verb, "--help"])
        with pytest.raises(SystemExit):
            cli.main()
        known += capsys.readouterr().out
    page = (ROOT / "docs/reproduce.md").read_text()
    for option in re.findall(r"--[a-z-]+", page):
        assert option in known, option
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(TABLES)


def test_the_python_of_the_page_on_deploying_runs(folder, exported):
    (folder / "model.onnx").symlink_to(exported("any.onnx"))
    names: dict = {}
    for block in blocks("docs/deploy.md", "python"):
        exec(block, names)
    assert names["picture"].shape == (3, 48, 64)


def test_the_options_on_the_page_on_deploying_exist(capsys, monkeypatch):
    for verb in ("export", "segment", "evaluate"):
        monkeypatch.setattr("sys.argv", ["streamseg", verb, "--help"])
        with pytest.raises(SystemExit):
            cli.main()
    known = capsys.readouterr().out + "--averages"  # of train
    lines = (ROOT / "docs/deploy.md").read_text().splitlines()
    ours = [line for line in lines if not line.startswith(("cmake", "trtexec"))]
    for option in re.findall(r"--[a-z-]+", "\n".join(ours)):
        assert option in known, option


def test_the_commands_of_the_readme_run(folder, monkeypatch, paint):
    (folder / "mine").mkdir()
    paint(folder / "mine", [(64, 96)] * 8)
    for picture in (folder / "mine" / "images").iterdir():
        picture.rename(picture.with_suffix(".jpg"))
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for line in "".join(blocks("README.md", "sh")).splitlines():
        program, *arguments = line.split()
        if program == "make":
            assert arguments[0] in targets
            continue
        assert program == "streamseg"
        if arguments[0] == "train":  # as it stands, but short, small and without the network
            arguments += ["--initial", "nothing", "--iterations", "2", "--batch", "2", "--crop", "64", "64"]
        monkeypatch.setattr("sys.argv", [program, *arguments])
        cli.main()
    for written in ("suburb.png", "drive.mp4", "drive-labels.mkv", "run/weights.safetensors", "1-overlay.png"):
        assert (folder / written).exists()


def test_the_equations_stand_beside_lines_of_the_package():
    source = "".join(path.read_text() for path in (ROOT / "streamseg").glob("*.py"))
    lines = {line.strip() for line in source.splitlines()}
    quoted = [line for block in blocks("docs/how-it-works.md", "python") for line in block.splitlines()]
    example = [line for line in quoted if line.startswith("logits, ")]
    assert len(example) == 2
    assert [line for line in quoted if line not in example and line.strip() not in lines] == []


def test_the_costs_in_how_it_works_are_counted_ones():
    text = (ROOT / "docs/how-it-works.md").read_text()
    shape = (1, 3, 1024, 2048)

    def row(networks):
        return ", ".join(f"{streamseg.count_macs(network, shape) / 1e9:.2f}" for network in networks)

    attentions = (streamseg.NoAttention, streamseg.ChannelAttention, streamseg.SelfAttention)
    places = ("None", "Conv-0", "Res-1", "Res-2", "Res-3", "Res-4")
    assert f"| {row([streamseg.fanet18()])} |" in text
    assert f"| {row([streamseg.fanet34()])} |" in text
    assert f"| {row(streamseg.fanet18(attention=kind) for kind in attentions)} |" in text
    assert f"| {row(streamseg.fanet18(key_channels=count) for count in (8, 16, 32, 64, 128))} |" in text
    assert f"| {row(streamseg.fanet18(reduction=place) for place in places)} |" in text


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_within_the_repository_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#]+)", document.read_text()):
        if not target.startswith("https://"):
            assert (document.parent / target).exists(), target


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
