"""What the command line says before a verb begins: errors, pages of help, and what a shell completes."""

import os
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from commands import complaint, run

from streamseg import cli
from streamseg.cli import pages, parser
from streamseg.models.bundled import DEFAULT as BUNDLED
from streamseg.train.config import RECIPES


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("", "Give a verb, such as segment: streamseg --help has the list."),
        ("segmant", "There is no verb 'segmant': did you mean segment? streamseg --help has the list."),
        ("--verson", "There is no verb '--verson': did you mean --version? streamseg --help has the list."),
        ("xyz", "There is no verb 'xyz': streamseg --help has the list."),
        ("train", "Give a recipe after train, such as folder-18: streamseg train --help has the list."),
        ("train --data mine --out run", "Give a recipe after train"),
        (
            "train folder18",
            "There is no recipe 'folder18': did you mean folder-18? streamseg train --help has the list.",
        ),
        (
            "train folder-18 --optimizer sgd",
            "train has no option '--optimizer': did you mean --optimiser? streamseg train folder-18 --help",
        ),
        ("segment a.png --legned", "segment has no option '--legned': did you mean --legend? streamseg segment --help"),
        (
            "segment a.png --colour=red",
            "segment has no option '--colour': did you mean --colours? streamseg segment --help has the list.",
        ),
        ("segment a.png", "Nothing at a.png: expected a picture, a video, a folder or a list of names."),
        ("segment", "Nothing to read: give a picture, a video, a folder, a camera or an address."),
        ("segment there.png --size 12", "--size is '12'; expected a height and a width from 32 up, such as 720x1280."),
        ("segment - - --json -", "OUT, --json, --regions and --events cannot share standard output"),
        ("export model.xyz", "expected .onnx, .xml, .pt2."),
        ("benchmark fanet19", "'fanet19' is neither a file nor one of the networks fanet18, fanet34,"),
        ("reproduce VII", "table is 'VII'; choose one of: 'I', 'II',"),
        ("reproduce I II", "streamseg reproduce does not take 'II': see streamseg reproduce --help."),
        ("segment a.png --size", "--size needs a value: see streamseg segment --help."),
        ("segment a.png --alpha red", "--alpha is 'red'; expected a number."),
        ("serve --port x", "--port is 'x'; expected a whole number."),
        ("segment a.png --steady red", "--steady is 'red'; expected off, low, high, or a number such as 1."),
        ("segment a.png --window x", "--window is 'x'; expected a whole number."),
        ("segment a.png --alpha it's", '--alpha is "it\'s"; expected a number.'),
        ("evaluate --data x --dataset camvid --scales 1 a", "--scales is '1 a'; expected numbers."),
        (
            "train --hlep --help",
            "train has no option '--hlep': did you mean --help? streamseg train --help has the list.",
        ),
        ("train folder-18 --data x --out y --crop 3 a", "--crop is '3 a'; expected 2 whole numbers."),
        ("train folder-18 --data x --out y --crop 3", "--crop needs 2 values: see streamseg train folder-18 --help"),
        (
            "train folder-18",
            "streamseg train folder-18 needs --data DIR and --out DIR: see streamseg train folder-18 --help",
        ),
        ("train folder-18 --data x --out y --network z", "--network is 'z'; choose one of: 'fanet18', 'fanet34', 'fa"),
        ("check folder", "streamseg check needs --data DIR: see streamseg check --help."),
        ("pack camvid --data x", "streamseg pack needs OUT: see streamseg pack --help."),
        ("completion tcsh", "shell is 'tcsh'; choose one of: 'bash', 'zsh', 'fish'."),
    ],
)
def test_a_wrong_command_line_is_answered_with_a_sentence(tmp_path, monkeypatch, capsys, command, sentence):
    monkeypatch.chdir(tmp_path)
    Path("there.png").touch()
    assert sentence in complaint(monkeypatch, capsys, *command.split())


def parse(line):
    """The values that a command line gives to its verb, by name."""
    call = parser.parse(line.split())
    values = dict(call.keywords)
    for name in ("options", "run"):
        if name in values:
            values |= vars(values.pop(name))
    return call.args, values


@pytest.mark.parametrize(
    ("line", "names", "expected"),
    [
        ("a b", "a b", {}),
        ("a --alpha 0.3 b", "a b", {"alpha": 0.3}),
        ("--alpha=0.3 a --labels b --json c", "a b", {"alpha": 0.3, "labels": True, "json": "c"}),
        ("--no-overlay a --side-by-side - --raw_size 3x4", "a -", {"overlay": False, "raw_size": "3x4"}),
        ("--half-life -1 a b", "a b", {"half_life": -1.0}),
        ("a --json - b --cut=-1", "a b", {"json": "-", "cut": -1.0}),
        ("- -", "- -", {}),
        ("--labels -- -a --legend", "-a --legend", {"labels": True}),
        ("a --alpha 1 --alpha 2 --labels --no-labels", "a", {"alpha": 2.0, "labels": False}),
        ("a b -o c", "a b", {"out": "c"}),
        ("-o - a --out=c", "a", {"out": "c"}),
        ("a --ray", "a", {"ray": "local", "labels": True, "overlay": False}),
        ("a --ray h:8 b", "a b", {"ray": "h:8"}),
    ],
)
def test_names_and_options_may_stand_in_any_order(line, names, expected):
    given, values = parse(f"segment {line}")
    assert given == tuple(names.split())
    assert values.items() >= expected.items()


@pytest.mark.parametrize(
    ("line", "names", "option", "expected"),
    [
        (
            "pack camvid --splits train val --quiet shards --data d",
            ["camvid", Path("shards")],
            "splits",
            ("train", "val"),
        ),
        ("pack camvid shards --data d --splits", ["camvid", Path("shards")], "splits", ()),
        ("pack camvid shards --splits a b --data d --splits c", ["camvid", Path("shards")], "splits", ("c",)),
        ("evaluate --scales=0.5 w --data d --dataset camvid", [Path("w")], "scales", (0.5,)),
        ("evaluate w --scales 0.5 1 --data d --dataset camvid", [Path("w")], "scales", (0.5, 1.0)),
    ],
)
def test_an_option_of_several_values_takes_all_that_follow_it(line, names, option, expected):
    given, values = parse(line)
    assert given == tuple(names)
    assert values[option] == expected


def test_the_options_of_several_values_are_known_to_the_parser():
    app = parser.make_app(["camvid-18"])
    verbs = [*(app[verb] for verb in cli.VERBS if verb != "train"), app["train"]["camvid-18"]]
    found = {
        argument.name
        for verb in verbs
        for argument in verb.assemble_argument_collection()
        if argument.parameter.consume_multiple
    }
    assert found == {*parser.LISTS}


@pytest.mark.parametrize(
    ("old", "field", "value"),
    [
        ("--overlap=0.5", "iou_loss", 0.5),
        ("--steadiness 1", "consistency_loss", 1.0),
        ("--no-gentle", "identity_init", False),
        ("--hard_pixels 0.7", "ohem_threshold", 0.7),
    ],
)
def test_the_former_names_of_training_options_work(old, field, value, monkeypatch, capsys):
    monkeypatch.setattr("streamseg.cli.training.train", lambda run: run.config)
    config = parser.parse(f"train folder-18 --data d --out o {old}".split())()
    assert getattr(config, field) == value
    new = field.replace("_", "-")
    assert re.fullmatch(rf"streamseg: --[a-z-]+ is now called --{new}\.\n", capsys.readouterr().err)


@pytest.mark.parametrize("recipe", [*RECIPES])
def test_the_options_of_train_begin_as_the_recipe_says(recipe, monkeypatch):
    ran = []
    monkeypatch.setattr("streamseg.cli.training.train", lambda run: ran.append(run) or 0)
    config = RECIPES[recipe].config
    for options, changes in (([], {}), (["--batch", "3", "--crop", "64", "96"], {"batch": 3, "crop": (64, 96)})):
        assert parser.parse(["train", recipe, "--data", "d", "--out", "o", *options])() == 0
        assert ran.pop().config == replace(config, **changes)


def test_a_former_name_of_an_option_still_works_and_is_noted(monkeypatch, capsys):
    monkeypatch.setitem(parser.OLD_OPTIONS, "train", {"weight": "weight-decay", "averaging": "averages"})
    command = ["train", "folder-18", "--data", "d", "--out", "o", "--weight=0.25", "--no-averaging"]
    assert parser.rename_old_options(command)[6:] == ["--weight-decay=0.25", "--no-averages"]
    notes = ["--weight is now called --weight-decay.", "--averaging is now called --averages."]
    assert capsys.readouterr().err.splitlines() == [f"streamseg: {note}" for note in notes]
    monkeypatch.setattr("streamseg.cli.training.train", lambda run: run.config)
    config = parser.parse(command)()
    assert (config.weight_decay, config.averages) == (0.25, False)


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
    for example in examples:
        command = re.fullmatch(r"  (?:source <\()?(streamseg [^)>]*?|curl .*)(?:\)| >+ .*)?", example)[1]
        if command.endswith("--help"):
            assert run(monkeypatch, *command.split()[1:]) == 0
        elif command.startswith("streamseg"):
            assert callable(parser.parse(command.split()[1:]))


def test_the_page_of_the_program_has_its_version_among_the_options(monkeypatch, capsys):
    assert re.search(r"^[│ ] --version +show the version and exit", read_page(monkeypatch, capsys), re.MULTILINE)


def test_a_terminal_without_the_signs_for_boxes_gets_a_page_in_ascii(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    page = pages.find_page(["segment"])
    assert page.draw(False, "utf-8").splitlines()[4].startswith("╭─ positional arguments ─")
    assert page.draw(False, "ascii").splitlines()[4].startswith("+- positional arguments -")
    assert page.draw(False, "ascii").isascii()


def test_the_page_on_the_command_line_names_every_verb_and_only_options_that_there_are():
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page.partition("## The same words")[0], re.MULTILINE) == [*cli.VERBS]
    rows = [row for verb in PAGES for box in pages.find_page(verb).boxes.values() for row in box]
    known = {name for row in rows for name in row.names}
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
        (["segment", "photo.jpg", "--weights", BUNDLED[:2]], [BUNDLED]),
        (["evaluate", BUNDLED[:2]], [BUNDLED]),
        (["evaluate", "--class-table", "st"], ["street"]),
        (["train", "folder-18", "--class-table", "st"], ["street"]),
        (["train", "folder-18", "--initial", BUNDLED[:2]], [BUNDLED]),
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
