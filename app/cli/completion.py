"""``jalopy completion``: a completion script for bash, zsh or fish, made from the parsers."""

from app.cli.arguments import COMMANDS, options_of
from app.program import exit_codes

_BASH = """\
_jalopy() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" words
    case "${{COMP_WORDS[1]}}" in
{cases}
        *) words="{bare}" ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    if [[ $word != -* ]]; then COMPREPLY+=($(compgen -f -X '!*.gguf' -- "$word") $(compgen -d -S / -- "$word")); fi
}}
complete -o nospace -o filenames -F _jalopy jalopy"""


def completion(shell: str) -> int:
    """Print the completion script of a shell."""
    if shell == "fish":
        script = _fish()
    elif shell == "zsh":
        script = f"autoload -U +X bashcompinit && bashcompinit\n{_bash()}"
    else:
        script = _bash()
    print(script, flush=True)
    return exit_codes.OK


def _bash() -> str:
    cases = "\n".join(
        f'        {name}) words="starter {" ".join(options_of(name))}" ;;' for name in COMMANDS
    )
    return _BASH.format(cases=cases, bare=" ".join([*COMMANDS, "starter", *options_of(None)]))


def _fish() -> str:
    lines = [
        "complete -c jalopy -f -n __fish_use_subcommand -a 'starter {}'".format(" ".join(COMMANDS)),
        "complete -c jalopy -k -a '(__fish_complete_suffix .gguf)'",
    ]
    for name in COMMANDS:
        for option in options_of(name):
            if option.startswith("--"):
                flag = f"-l {option[2:]}"
            else:
                flag = f"-s {option[1:]}"
            lines.append(f"complete -c jalopy -n '__fish_seen_subcommand_from {name}' {flag}")
    return "\n".join(lines)
