"""What a shell completes after streamseg: verbs, recipes, options, and the values of those that have few."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from inspect import Parameter, signature
from shlex import quote
from typing import Annotated, Any, Literal, get_args, get_origin

from streamseg.cli.options import DATASETS
from streamseg.cli.training import TrainRun
from streamseg.train.config import RECIPES, TrainConfig

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
complete -o bashdefault -o default -F _streamseg streamseg # files, where there is nothing else
"""
NAMES = {"train": tuple(RECIPES), "check": DATASETS, "pack": DATASETS, "completion": ("bash", "zsh", "fish")}
"""What the first name behind a verb can be, of those that have few."""
ZSH = """\
# streamseg for zsh
autoload -Uz compinit bashcompinit
(( $+functions[compdef] )) || compinit
bashcompinit
{bash}"""


def completions(shell: str, verbs: Mapping[str, Callable[..., None]]) -> str:
    """The script for a shell: bash, zsh or fish."""
    options = {name: options_of(verb) for name, verb in verbs.items()}
    if shell == "fish":
        return fish(options, verbs)
    arms = [f"        {name}) known={quote(' '.join(['--help', *known]))} ;;" for name, known in options.items()]
    values = [
        f"        {quote(f'{name} {option}')}) known={quote(' '.join(choices))} ;;"
        for name, known in options.items()
        for option, choices in known.items()
        if choices
    ]
    script = BASH.format(
        verbs=quote(" ".join([*verbs, "--help", "--version"])),
        names="\n".join(f"        '2 {name}') known={quote(' '.join(choices))} ;;" for name, choices in NAMES.items()),
        options="\n".join(arms),
        values="\n".join(values),
    )
    return ZSH.format(bash=script) if shell == "zsh" else script


def fish(options: Mapping[str, Mapping[str, tuple[str, ...]]], verbs: Mapping[str, Callable[..., None]]) -> str:
    """The script for fish."""
    lines = [
        "# streamseg for fish",
        "complete -c streamseg -n __fish_use_subcommand -f -l help",
        "complete -c streamseg -n __fish_use_subcommand -f -l version",
    ]
    for name, choices in NAMES.items():
        lines.append(f"complete -c streamseg -n '__fish_seen_subcommand_from {name}' -a {quote(' '.join(choices))}")
    for name, known in options.items():
        about = (verbs[name].__doc__ or "").partition("\n")[0]
        lines.append(f"complete -c streamseg -n __fish_use_subcommand -f -a {name} -d {quote(about)}")
        for option, choices in known.items():
            more = f" -x -a {quote(' '.join(choices))}" if choices else ""
            chosen = f"-n '__fish_seen_subcommand_from {name}' -l {option.removeprefix('--')}"
            lines.append(f"complete -c streamseg {chosen}{more}")
    return "\n".join(lines) + "\n"


def options_of(verb: Callable[..., None]) -> dict[str, tuple[str, ...]]:
    """The options of a verb, each with the values that it can have, if they are few."""
    parameters = signature(verb).parameters.values()
    found = {each.name: each.annotation for each in parameters if each.kind is Parameter.KEYWORD_ONLY}
    if verb.__name__ == "train":
        found = {field.name: field.type for kind in (TrainRun, TrainConfig) for field in fields(kind)}
        del found["config"]
    options: dict[str, tuple[str, ...]] = {}
    for name, kind in found.items():
        option = name.replace("_", "-")
        options[f"--{option}"] = DATASETS if name == "dataset" else values_of(kind)
        if kind is bool:
            options[f"--no-{option}"] = ()
    return options


def values_of(kind: Any) -> tuple[str, ...]:
    """The values that an option can have, if its type or the word for its value tells."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    if get_origin(kind) is Annotated:
        word = getattr(get_args(kind)[1], "metavar", None) or ""
        return tuple(word[1:-1].split(",")) if word.startswith("{") else ()
    return ()
