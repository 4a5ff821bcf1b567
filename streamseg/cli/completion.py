"""The verb completion: scripts that make a shell complete verbs, recipes, options and values.

The scripts of cyclopts are ten times as long and complete no file names.
"""

from collections.abc import Mapping
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

from streamseg.class_table import CLASS_TABLES
from streamseg.cli.options import DATASET_NAMES, option
from streamseg.models.bundled import BUNDLED_WEIGHTS
from streamseg.train.config import RECIPES

if TYPE_CHECKING:
    from cyclopts import App

BASH = """\
# streamseg for bash
_streamseg() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} known=
    case "$COMP_CWORD ${{COMP_WORDS[1]}}" in
        "1 "*) known={verbs} ;;
{names}
    esac
    [[ $word == -* ]] && case ${{COMP_WORDS[1]}} in
{options}
    esac
    case "${{COMP_WORDS[1]}} ${{COMP_WORDS[COMP_CWORD-1]}}" in
{values}
    esac
    COMPREPLY=($(compgen -W "$known" -- "$word"))
}}
complete -o bashdefault -o default -F _streamseg streamseg # files, where nothing else fits
"""
ZSH = """\
# streamseg for zsh
autoload -Uz compinit bashcompinit
(( $+functions[compdef] )) || compinit
bashcompinit
{bash}"""
BUNDLED = tuple(BUNDLED_WEIGHTS)
NAMES = {
    "train": tuple(RECIPES),
    "evaluate": BUNDLED,
    "check": DATASET_NAMES,
    "pack": DATASET_NAMES,
    "export": BUNDLED,
    "serve": BUNDLED,
    "warm": BUNDLED,
    "completion": ("bash", "zsh", "fish"),
}
"""The choices for the first name after a verb; bundled weights are completed where a file may be given too."""
FILES_TOO = {
    "segment": {"--weights": BUNDLED},
    "train": {"--initial": ("imagenet", "nothing", *BUNDLED), "--class-table": tuple(CLASS_TABLES)},
    "evaluate": {"--class-table": tuple(CLASS_TABLES)},
}
"""Options of a verb that take a name or a file, with the names."""

Options = Mapping[str, Mapping[str, tuple[str, ...]]]
"""The options of each verb, with the values of those that have choices."""


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], option("SHELL")], /) -> int:
    """Print a script that makes a shell complete verbs and options.

    Args:
        shell: bash, zsh or fish.

    Examples:
        source <(streamseg completion bash)
        source <(streamseg completion zsh)
        streamseg completion fish > ~/.config/fish/completions/streamseg.fish
    """
    from streamseg.cli.pages import program_page
    from streamseg.cli.parser import VERBS, make_app

    recipe = "folder-18"  # all recipes have the same options
    app = make_app([recipe])
    options = {
        verb: list_options(app["train"][recipe] if verb == "train" else app[verb]) | FILES_TOO.get(verb, {})
        for verb in VERBS
    }
    if shell == "fish":
        about = {row.names[0]: row.help for row in program_page().boxes["verbs"]}
        print(fish_script(options, about), end="")
    else:
        script = bash_script(options)
        print(ZSH.format(bash=script) if shell == "zsh" else script, end="")
    return 0


def list_options(app: "App") -> dict[str, tuple[str, ...]]:
    """Return the options of a verb, with the values of those that have choices."""
    from streamseg.cli.parser import options_of

    return {
        name: (argument.get_choices() or ()) if name not in argument.negatives else ()
        for argument in options_of(app.assemble_argument_collection())
        for name in argument.names
    }


def bash_script(options: Options) -> str:
    """Return the script for bash."""
    values = [
        f"        {quote(f'{verb} {name}')}) known={quote(' '.join(choices))} ;;"
        for verb, known in options.items()
        for name, choices in known.items()
        if choices
    ]
    return BASH.format(
        verbs=quote(" ".join([*options, "--help", "--version"])),
        names="\n".join(f"        '2 {verb}') known={quote(' '.join(choices))} ;;" for verb, choices in NAMES.items()),
        options="\n".join(
            f"        {verb}) known={quote(' '.join(['--help', *known]))} ;;" for verb, known in options.items()
        ),
        values="\n".join(values),
    )


def fish_script(options: Options, about: Mapping[str, str]) -> str:
    """Return the script for fish."""
    lines = [
        "# streamseg for fish",
        "complete -c streamseg -n __fish_use_subcommand -f -l help",
        "complete -c streamseg -n __fish_use_subcommand -f -l version",
    ]
    for verb, choices in NAMES.items():
        lines.append(f"complete -c streamseg -n '__fish_seen_subcommand_from {verb}' -a {quote(' '.join(choices))}")
    for verb, known in options.items():
        lines.append(f"complete -c streamseg -n __fish_use_subcommand -f -a {verb} -d {quote(about[verb])}")
        for name, choices in known.items():
            kind, word = ("-l", name.removeprefix("--")) if name.startswith("--") else ("-s", name.removeprefix("-"))
            kind_of_value = "-r" if name in FILES_TOO.get(verb, {}) else "-x"
            values = f" {kind_of_value} -a {quote(' '.join(choices))}" if choices else ""
            lines.append(f"complete -c streamseg -n '__fish_seen_subcommand_from {verb}' {kind} {word}{values}")
    return "\n".join(lines) + "\n"
