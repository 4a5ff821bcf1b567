"""What the command line says before a verb begins: complaints, pages of help, and what a shell completes."""

import os
import re
import subprocess
import sys
from contextlib import suppress
from functools import wraps
from pathlib import Path

import pytest
from commands import complaint, run

from streamseg import cli
from streamseg.cli.completion import options_of


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("", "Give a verb, such as segment: streamseg --help has the list."),
        ("segmant", "There is no verb 'segmant': did you mean segment? streamseg --help has the list."),
        ("--verson", "There is no verb '--verson': did you mean --version? streamseg --help has the list."),
        ("xyz", "There is no verb 'xyz': streamseg --help has the list."),
        ("train", "Give a recipe behind train, such as folder-18: streamseg train --help has the list."),
        ("train --data mine --out run", "Give a recipe behind train"),
        (
            "train folder18",
            "There is no recipe 'folder18': did you mean folder-18? streamseg train --help has the list.",
        ),
        (
            "train folder-18 --optimizer sgd",
            "train has no option '--optimizer': did you mean --optimiser? streamseg train folder-18 --help",
        ),
        ("segment a.png --legned", "segment has no option '--legned': did you mean --legend? streamseg segment --help"),
        ("segment a.png --colour=red", "segment has no option '--colour': streamseg segment --help has the list."),
        ("segment a.png", "Nothing at a.png: expected a picture, a video, a folder or a list of names."),
        ("segment", "Nothing to read: give a picture, a video, a folder, a camera or an address."),
        ("segment there.png --size 12", "--size is '12'; expected a height and a width from 32 up, such as 720x1280."),
        ("segment - - --json -", "Raw labels and lines of JSON cannot share standard output"),
        ("export model.xyz", "expected .onnx, .xml, .pt2."),
        ("benchmark fanet19", "'fanet19' is neither a file nor one of the networks fanet18, fanet34,"),
        ("reproduce VII", "table is 'VII'; choose one of: 'I', 'II',"),
        ("reproduce I II", "streamseg reproduce has no use for 'II': streamseg reproduce --help tells more."),
        ("segment a.png --size", "--size needs a value: streamseg segment --help tells more."),
        ("segment a.png --alpha red", "--alpha is 'red'; expected a number."),
        ("serve --port x", "--port is 'x'; expected a whole number."),
        ("segment a.png --steady red", "--steady is 'red'; expected a number."),
        ("segment a.png --window x", "--window is 'x'; expected a whole number."),
        ("segment a.png --alpha it's", '--alpha is "it\'s"; expected a number.'),
        ("evaluate --data x --dataset camvid --scales 1 a", "--scales is '1 a'; expected numbers."),
        (
            "train --hlep --help",
            "train has no option '--hlep': did you mean --help? streamseg train --help has the list.",
        ),
        ("train folder-18 --data x --out y --crop 3 a", "--crop is '3 a'; expected 2 whole numbers."),
        ("train folder-18 --data x --out y --crop 3", "--crop needs 2 values: streamseg train folder-18 --help tells"),
        (
            "train folder-18",
            "streamseg train folder-18 needs --data DIR and --out DIR: streamseg train folder-18 --help",
        ),
        ("train folder-18 --data x --out y --network z", "--network is 'z'; choose one of: 'fanet18', 'fanet34', 'se"),
        ("check folder", "streamseg check needs --data DIR: streamseg check --help tells more."),
        ("pack camvid --data x", "streamseg pack needs OUT: streamseg pack --help tells more."),
        ("completion tcsh", "shell is 'tcsh'; choose one of: 'bash', 'zsh', 'fish'."),
    ],
)
@pytest.mark.parametrize("boxes", [True, False])  # what tyro draws around errors, in Unicode or in ASCII
def test_a_wrong_command_line_is_answered_with_a_sentence(tmp_path, monkeypatch, capsys, command, sentence, boxes):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tyro._fmtlib._FORCE_UTF8_BOXES", boxes)
    Path("there.png").touch()
    assert sentence in complaint(monkeypatch, capsys, *command.split())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a b", "a b"),
        ("a --alpha 0.3 b", "a b --alpha 0.3"),
        ("--alpha=0.3 a --labels b --json c", "a b --alpha=0.3 --labels --json c"),
        ("--no-overlay a --side-by-side - --raw_size 3x4", "a - --no-overlay --side-by-side --raw_size 3x4"),
        ("--half-life -1 a -h b", "a b --half-life -1 -h"),
        ("a --cut", "a --cut"),
        ("--labels -- -a", "--labels -- -a"),
    ],
)
def test_names_come_before_options_in_their_order(given, expected):
    assert cli.names_first(given.split()) == expected.split()


def test_an_option_of_several_values_takes_all_that_follow_it():
    given, expected = "camvid --splits train val --quiet shards", "camvid shards --splits train val --quiet"
    assert cli.names_first(given.split(), cli.pack) == expected.split()


PAGES = [[], *([verb] for verb in cli.VERBS), ["train", "folder-18"]]


def read_page(monkeypatch, capsys, *arguments):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(monkeypatch, *arguments, "--help") == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("arguments", PAGES, ids=" ".join)
def test_a_page_of_help_fits_a_terminal_and_ends_with_examples_that_are_right(monkeypatch, capsys, arguments):
    page = read_page(monkeypatch, capsys, *arguments)
    assert max(map(len, page.splitlines())) <= 80
    for odd in ("\x1b", "(default: )", " STR ", "{segment", "SUBCOMMANDS"):
        assert odd not in page
    examples = page.partition("\nexamples:\n")[2].splitlines()
    assert 2 <= len(examples) <= 4
    called = []
    for name, verb in cli.VERBS.items():
        monkeypatch.setitem(cli.VERBS, name, wraps(verb)(lambda *given, **options: called.append(options)))
    for example in examples:
        command = re.fullmatch(r"  (?:source <\()?(streamseg [^)>]*?|curl .*)(?:\)| >+ .*)?", example)[1]
        if command.startswith("streamseg"):
            assert run(monkeypatch, *command.split()[1:]) == 0
            assert called or command.endswith("--help")
        called.clear()


def test_the_page_of_the_program_has_its_version_among_the_options(monkeypatch, capsys):
    assert re.search(r"^[│ ] --version +show the version and exit", read_page(monkeypatch, capsys), re.MULTILINE)


def test_the_page_on_the_command_line_names_every_verb_and_only_options_that_there_are():
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page.partition("## The same words")[0], re.MULTILINE) == [*cli.VERBS]
    known = {option for verb in cli.VERBS.values() for option in options_of(verb)} | {"--help", "--version"}
    assert {*re.findall(r"--[a-z][a-z-]*", page)} <= known


def on_terminal(*command, **environment):
    """What a command writes to a terminal."""
    ours, theirs = os.openpty()
    given = {**os.environ, "TERM": "xterm", "COLUMNS": "80", **environment}
    given = {name: value for name, value in given.items() if value}
    program = subprocess.Popen([sys.executable, "-m", *command], stdout=theirs, stderr=theirs, stdin=theirs, env=given)
    os.close(theirs)
    written = b""
    with suppress(OSError), open(ours, "rb", buffering=0) as terminal:  # noqa: PTH123 (a descriptor)
        while part := terminal.read(65536):
            written += part
    program.wait()
    return written.decode()


def test_there_are_colours_on_a_terminal_alone_and_not_where_none_are_wanted():
    command = ["streamseg", "--help"]
    assert "\x1b[" in on_terminal(*command, NO_COLOR="")
    assert "\x1b" not in on_terminal(*command, NO_COLOR="1")
    assert "\x1b" not in on_terminal(*command, NO_COLOR="", TERM="dumb")
    piped = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)
    assert piped.stdout + piped.stderr
    assert "\x1b" not in piped.stdout + piped.stderr


@pytest.fixture
def shell(tmp_path):
    """What bash completes a command line to."""
    (tmp_path / "photo.jpg").touch()
    script = """
        source <("$1" -m streamseg completion bash)
        complete -p streamseg | grep -q -- '-o default' || exit 1
        shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        _streamseg; printf '%s\n' "${COMPREPLY[@]}"
    """

    def complete(*words):
        command = ["bash", "-c", script, "bash", sys.executable, "streamseg", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout.split()

    return complete


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["seg"], ["segment"]),
        (["train", "folder"], ["folder-18"]),
        (["check", "cam"], ["camvid"]),
        (["segment", "--le"], ["--legend"]),
        (["segment", "photo.jpg", "--side"], ["--side-by-side"]),
        (["segment", "photo.jpg", "--precision", "b"], ["bf16"]),
        (["train", "camvid-18", "--attention", "s"], ["self"]),
        (["segment", "pho"], []),  # which bash completes as a file
        (["completion", ""], ["bash", "zsh", "fish"]),
    ],
    ids=str,
)
def test_bash_completes_verbs_recipes_options_and_values(shell, words, expected):
    assert shell(*words) == expected


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_a_shell_knows_every_verb_and_every_option_of_the_help(monkeypatch, capsys, name):
    assert run(monkeypatch, "completion", name) == 0
    script = capsys.readouterr().out
    for arguments in PAGES[1:]:
        assert arguments[-1] in script
        page = read_page(monkeypatch, capsys, *arguments)
        found = re.findall(r"^[│ ] (?:-h, )?--([a-z][a-z0-9-]*)", page, re.MULTILINE)
        assert found[0] == "help"
        for option in found[1:]:
            assert (f"-l {option}" if name == "fish" else f"--{option}") in script
