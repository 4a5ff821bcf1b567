"""The documents are correct: their code runs, and their options and links exist."""

import ast
import re
import shlex
import sys
from pathlib import Path

import annotation_exports
import pytest
from clips import make_clip
from exports import exported as exported
from PIL import Image

from streamseg import cli
from streamseg.cli.pages import find_page
from streamseg.evaluate.paper import TABLES
from streamseg.io.fleet import SETTINGS, read_fleet
from streamseg.models.bundled import find_weights
from streamseg.train.config import RECIPES

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "examples")]

import options  # noqa: E402 (the scripts of the two folders, which are no packages)
import own_data  # noqa: E402

DOCUMENTS = sorted(path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("samples/*.md")])


def blocks(document, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with the samples and a small version of the demo's video."""
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
    assert len(names["state"].contexts) == 3


def test_the_python_of_the_page_on_regions_runs(folder):
    names: dict = {}
    for block in blocks("docs/regions.md", "python"):
        exec(block, names)
    assert names["tracker"].frame == 3
    assert names["readings"][0].zone == "lane"


def test_the_python_of_the_page_on_the_hub_runs(folder, monkeypatch):
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed: pip install 'streamseg[hub]'")
    from hub_server import local_hub

    (folder / "hubconf.py").symlink_to(ROOT / "hubconf.py")
    names: dict = {}
    with local_hub(folder, monkeypatch) as hub:
        hub.add("me/streets", {"model.safetensors": find_weights("street").read_bytes()})
        for block in blocks("docs/hub.md", "python"):
            exec(block, names)
    assert names["labels"].max() < len(names["classes"])
    assert names["address"] == f"{hub.address}/me/road"
    assert (names["street"].classes, names["fanet"].classes) == (13, 5)


def test_the_answers_on_the_page_on_the_hub_are_the_real_ones(folder, monkeypatch, capsys):
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed: pip install 'streamseg[hub]'")
    from hub_server import local_hub

    page = (ROOT / "docs/hub.md").read_text()
    with local_hub(folder, monkeypatch) as hub:
        monkeypatch.setattr("sys.argv", ["streamseg", "push", "road", "hf:me/streets"])
        cli.main()
        said = capsys.readouterr().out.replace(hub.address, "https://huggingface.co")
        assert f"```\n{said}```\n" in page
        hub.add("me/old", {"pytorch_model.bin": b""})
        monkeypatch.setattr("sys.argv", ["streamseg", "segment", "in.mp4", "--weights", "hf:me/old"])
        with pytest.raises(SystemExit):
            cli.main()
        assert f"```\n{capsys.readouterr().err}```\n" in page


def test_the_python_of_the_page_on_python_for_opencv_and_supervision_runs(folder):
    pytest.importorskip("cv2", reason="OpenCV is not installed: pip install 'streamseg[flow]'")
    pytest.importorskip("supervision", reason="supervision is not installed: pip install 'streamseg[supervision]'")
    names: dict = {}
    for block in blocks("docs/python.md", "python")[:4]:
        exec(block, names)
    assert (folder / "last.png").exists()
    assert names["annotated"].shape == names["drawn"].shape == (48, 64, 3)


def test_the_options_on_the_page_on_segmenting_exist(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["streamseg", "segment", "--help"])
    with pytest.raises(SystemExit):
        cli.main()
    known = capsys.readouterr().out
    for option in re.findall(r"--[a-z][a-z-]*", (ROOT / "docs/segment.md").read_text()):
        assert option in known, option


def test_the_fleet_and_the_options_on_the_page_on_cameras_exist(capsys, monkeypatch, tmp_path):
    (block,) = blocks("docs/cameras.md", "toml")
    (tmp_path / "fleet.toml").write_text(block)
    cameras, missing = read_fleet(tmp_path / "fleet.toml")
    assert ([camera.name for camera in cameras], missing) == (["front", "rear", "yard"], [])
    for verb in ("segment", "serve"):
        monkeypatch.setattr("sys.argv", ["streamseg", verb, "--help"])
        with pytest.raises(SystemExit):
            cli.main()
    known, page = capsys.readouterr().out, (ROOT / "docs/cameras.md").read_text()
    for option in re.findall(r"--[a-z][a-z-]*", re.sub(r"^python benchmarks/.*$", "", page, flags=re.M)):
        assert option in known, option
    assert re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`\w+`.*?) \|", page, re.MULTILINE))) == [
        "name",
        "address",
        *SETTINGS,
    ]


def test_the_options_and_tables_on_the_page_on_reproducing_exist(capsys, monkeypatch):
    known = (ROOT / "benchmarks/ablations.py").read_text()
    for verb in (("reproduce",), ("train", "camvid-18"), ("evaluate",)):
        monkeypatch.setattr("sys.argv", ["streamseg", *verb, "--help"])
        with pytest.raises(SystemExit):
            cli.main()
        known += capsys.readouterr().out
    page = (ROOT / "docs/reproduce.md").read_text()
    for option in re.findall(r"--[a-z][a-z-]*", page):
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
    ours = [line for line in lines if not line.startswith(("cmake", "docker", "trtexec"))]
    for option in re.findall(r"--[a-z][a-z-]*", "\n".join(ours)):
        assert option in known, option


def test_the_commands_of_the_readme_run(folder, monkeypatch, paint):
    (folder / "mine").mkdir()
    paint(folder / "mine", [(64, 96)] * 8)
    for picture in (folder / "mine" / "images").iterdir():
        picture.rename(picture.with_suffix(".jpg"))
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for line in "".join(blocks("README.md", "sh")).splitlines():
        program, *arguments = line.split()
        if program == "make":
            assert arguments[0] in targets
            continue
        assert Path(program).name == "streamseg"
        if arguments[0] == "train":  # shortened, small and without a download
            arguments += ["--initial", "nothing", "--iterations", "2", "--batch", "2", "--crop", "64", "64"]
        monkeypatch.setattr("sys.argv", [program, *arguments])
        cli.main()
    for written in (
        "out/suburb.png",
        "out/drive.mp4",
        "out/drive-labels.mkv",
        "run/weights.safetensors",
        "1-overlay.png",
    ):
        assert (folder / written).exists()


def test_the_code_beside_the_equations_is_in_the_package():
    source = "".join(path.read_text() for path in (ROOT / "streamseg").rglob("*.py"))
    lines = {line.strip() for line in source.splitlines()}
    quoted = [line for block in blocks("docs/how-it-works.md", "python") for line in block.splitlines()]
    example = [line for line in quoted if line.startswith("logits, ")]
    assert len(example) == 2
    assert [line for line in quoted if line not in example and line.strip() not in lines] == []


def test_the_python_of_the_page_on_video_methods_runs(folder):
    for block in blocks("docs/video-methods.md", "python"):
        exec(block, {})
    assert (folder / "stream.safetensors").exists()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_are_https_addresses_or_files_of_the_repository(document):
    for target in re.findall(r"\]\(([^)#]+)", document.read_text()):
        if "://" in target:
            assert re.fullmatch(r"https://[\w-]+(\.[\w-]+)+(/\S*)?", target), target
        else:
            assert (document.parent / target).exists(), target


def options_of(verb):
    """The options of a verb, from its page of help; switches without their --no- form."""
    rows = find_page(["train", "folder-18"] if verb == "train" else [verb]).boxes["options"]
    return {next(name for name in row.names if name.startswith("--")) for row in rows} - {"--help"}


VERBS = re.findall(r"^## (\w+)$", (ROOT / "docs/options.md").read_text(), re.MULTILINE)


def test_no_option_is_undocumented():
    page = dict(re.findall(r"^## (\w+)$(.*?)(?=^## |\Z)", (ROOT / "docs/options.md").read_text(), re.M | re.S))
    assert {"segment", "train", "evaluate", "check", "pack", "reproduce", "benchmark", "export", "serve"} <= {*page}
    for verb, section in page.items():
        assert set(re.findall(r"^\| `(--[a-z0-9-]+)", section, re.MULTILINE)) == options_of(verb), verb


def test_the_page_of_options_is_up_to_date():
    assert options.write() == options.PAGE.read_text(), "run: python docs/options.py"


def commands(block):
    """Yield the commands of a block of shell as words, without comments, split at pipes and redirections."""
    for line in block.splitlines():
        words = shlex.split(line, comments=True)
        while words:
            end = next((i for i, word in enumerate(words) if word in ("|", "||", "&&", ">", ">>")), len(words))
            if words[:end]:
                yield words[:end]
            words = words[end + 1 :]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_block_of_code_parses_and_its_commands_exist(document):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    languages = re.findall(r"^```(\w*)\n.*?^```$", document.read_text(), re.MULTILINE | re.DOTALL)
    assert set(languages) <= {"", "bibtex", "python", "sh", "toml"}
    for block in blocks(document.relative_to(ROOT), "python"):
        ast.parse(block)
    for words in (words for block in blocks(document.relative_to(ROOT), "sh") for words in commands(block)):
        program = Path(words[0]).name
        if program == "make":
            assert set(words[1:]) <= {*targets}
        if program == "python" and words[1] not in ("-c", "-m"):
            assert (ROOT / words[1]).is_file(), words
        if "streamseg" in words and (program in ("streamseg", "torchrun") or words[:2] == ["python", "-m"]):
            verb, *arguments = words[words.index("streamseg") + 1 :]
            known = options_of(verb) if verb in VERBS else set()
            given = {word.partition("=")[0].replace("--no-", "--") for word in arguments if word.startswith("--")}
            assert verb in [*VERBS, "VERB", "--version"], words
            assert given <= known | {"--help"}, words
            assert verb != "train" or arguments[0] in [*RECIPES, "RECIPE", "--help"], words


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A working folder like a checkout after `make demo`, with a small picture and short videos."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "samples").mkdir()
    Image.open(ROOT / "samples/suburb-1.jpg").resize((160, 96)).save(tmp_path / "samples/suburb-1.jpg")
    (tmp_path / "out/demo").mkdir(parents=True)
    for video in ("out/demo/drive.mp4", "in.mp4"):
        make_clip(tmp_path / video, 3)
    (tmp_path / "streamseg").symlink_to(ROOT / "streamseg")
    return tmp_path


def run_lines(document, monkeypatch, wanted):
    """Run the streamseg commands of a document for which wanted(words) is true; it may shorten them in place."""
    for words in (words for block in blocks(document, "sh") for words in commands(block)):
        if words[0] == "streamseg" and wanted(words):
            monkeypatch.setattr("sys.argv", words)
            cli.main()


def test_the_commands_of_the_quickstart_run(checkout, monkeypatch):
    run_lines("docs/quickstart.md", monkeypatch, lambda words: words[1] != "serve")
    for written in ("suburb-1-overlay.png", "overlays/suburb-1-overlay.png", "labelled.mp4", "labelled-labels.mkv"):
        assert (checkout / written).exists()


def test_the_python_of_the_quickstart_runs(checkout):
    names: dict = {}
    for block in blocks("docs/quickstart.md", "python"):
        exec(block, names)
    assert names["picture"].shape == (3, 96, 160)
    assert 0 <= names["road"] <= 1


@pytest.mark.slow
def test_the_commands_of_the_page_on_your_own_data_run(checkout, monkeypatch):
    own_data.make(checkout / "mine", count=6, size=(96, 128))

    def wanted(words):
        if words[1] == "train":  # shortened and small
            for option, (old, new) in {"--iterations": ("150", "2"), "--batch": ("4", "2")}.items():
                if option in words:
                    assert words[words.index(option) + 1] == old
                    words[words.index(option) + 1] = new
            words += ["--crop", "64", "64"]
        return words[1] not in ("convert", "prelabel") and (
            words[1] != "train" or "--initial" in words
        )  # the other is that of the readme

    run_lines("docs/own-data.md", monkeypatch, wanted)
    for written in ("sheet.png", "run/weights.safetensors", "run/confusion.png", "00-overlay.png"):
        assert (checkout / written).exists()
    assert len(list((checkout / "drafts").glob("*-labels.png"))) == 6


def test_the_export_of_the_page_on_your_own_data_becomes_a_data_set(checkout, monkeypatch, capsys):
    (checkout / "export").mkdir()
    annotation_exports.write_cvat_masks(
        checkout / "export", {f"{i:02}": annotation_exports.make_labels() for i in range(30)}
    )
    run_lines("docs/own-data.md", monkeypatch, lambda words: words[1:3] == ["convert", "export"])
    assert capsys.readouterr().out in (ROOT / "docs/own-data.md").read_text()
    assert len(list((checkout / "mine/labels").iterdir())) == 30


def test_the_self_contained_commands_of_the_troubleshooting_page_run(checkout, monkeypatch):
    run_lines(
        "docs/troubleshooting.md", monkeypatch, lambda words: words[-1] in ("out.mp4", "--version", "--confidence")
    )
    assert (checkout / "out.mp4").exists()
    assert (checkout / "suburb-1-confidence.png").exists()


def test_the_readme_has_at_most_150_lines():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_path_of_a_frame_in_contributing_exists():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    steps = re.findall(r"`(streamseg/[\w/]+\.py)`: `([\w.]+)`", page)
    assert len(steps) >= 8
    for file, name in steps:
        body = ast.parse((ROOT / file).read_text()).body
        for part in name.split("."):
            [found] = [node for node in body if getattr(node, "name", "") == part]
            body = found.body


def test_contributing_lists_every_folder_of_the_package():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    folders = {path.parent.name for path in (ROOT / "streamseg").glob("*/__init__.py")}
    assert {*re.findall(r"^\| `streamseg/(\w+)` \|", page, re.MULTILINE)} == folders
