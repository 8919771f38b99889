"""Prints what makes a shell complete verbs, flags and names of runs at Tab.

oomproof completion bash >> ~/.bashrc
oomproof completion zsh > "${fpath[1]}/_oomproof"
oomproof completion fish > ~/.config/fish/completions/oomproof.fish
"""

from __future__ import annotations

import argparse
import shlex

from oomproof.cli.main import ALIVE_RUNS, RUN_NAMES, VERBS
from oomproof.records import dataclass

SHELLS = ("bash", "zsh", "fish")
_OF_ALIVE = frozenset({"stop", "pause", "resume", "save", "watch"})  # verbs for runs that have not ended


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")


def run(arguments: argparse.Namespace) -> int:
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[arguments.shell](), end="")
    return 0


def _kind(metavar: str) -> str:
    """What a shell offers for a word of that name."""
    words = set(metavar.split("|"))
    if "RUN" in words or words & {"BEFORE", "AFTER"}:
        return "runs+files" if "FILE" in words else "runs"
    if words & {"FILE", "PATH", "FOLDER"}:
        return "files"
    return {"-- CMD ...": "command", "VERB": "verbs", "SHELL": "shells", "PID": "pids"}.get(metavar, "none")


def _kind_for(verb: str, metavar: str) -> str:
    kind = _kind(metavar)
    return f"runs-{ALIVE_RUNS}" if kind == "runs" and verb in _OF_ALIVE else kind


@dataclass(frozen=True, slots=True)
class _Entry:
    """What can stand behind one verb, or one action of a verb."""

    key: str  # runs/show
    summary: str
    flags: dict[str, str]  # with their help
    valued: list[str]  # flags that a value follows
    files: list[str]  # ... a file
    kind: str  # of the words without a flag
    actions: dict[str, str]


def _entries() -> list[_Entry]:
    from oomproof.cli.verb_list import verbs

    listed = list(verbs())
    entries = []
    for verb in listed:
        flags = {flag: argument for argument in verb.flags for flag in argument.flags}
        entries.append(
            _Entry(
                "/".join(verb.words),
                verb.summary,
                {**{flag: argument.help for flag, argument in flags.items()}, "--help": "show help"},
                [flag for flag, argument in flags.items() if argument.metavar],
                [flag for flag, argument in flags.items() if _kind(argument.metavar) == "files"],
                _kind_for(verb.words[0], verb.positional[0].metavar) if verb.positional else "none",
                {other.words[1]: other.summary for other in listed if other.words[:-1] == verb.words},
            )
        )
    return entries


def _filled(script: str, entries: list[_Entry], cases: str, verbs: str) -> str:
    keys = " ".join(entry.key for entry in entries)
    values = {
        "CASES": cases,
        "VERBS": verbs,
        "KEYS": keys,
        "RUNS": RUN_NAMES,
        "SHELLS": " ".join(SHELLS),
    }
    for name, value in values.items():
        script = script.replace(f"@{name}@", value)
    return script


def _bash() -> str:
    entries = _entries()
    cases = "".join(
        f"    {entry.key})\n"
        f"      flags='{' '.join(entry.flags)}'\n"
        f"      valued='{' '.join(entry.valued)}' files='{' '.join(entry.files)}'\n"
        f"      kind={entry.kind} actions='{' '.join(entry.actions)}' ;;\n"
        for entry in entries
    )
    return _filled(_BASH, entries, cases, " ".join(entry.key for entry in entries if "/" not in entry.key))


def _zsh() -> str:
    entries = _entries()

    def listed(words: dict[str, str]) -> str:
        return " ".join(shlex.quote(f"{word}:{text}") for word, text in words.items())

    cases = "".join(
        f"    {entry.key})\n"
        f"      flags=({listed(entry.flags)})\n"
        f"      valued=({' '.join(entry.valued)}) files=({' '.join(entry.files)})\n"
        f"      kind={entry.kind} actions=({listed(entry.actions)}) ;;\n"
        for entry in entries
    )
    return _filled(
        _ZSH, entries, cases, listed({entry.key: entry.summary for entry in entries if "/" not in entry.key})
    )


def _fish() -> str:
    def quoted(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    lines = []
    offered = {
        "runs": f"'(command oomproof {RUN_NAMES} 2>/dev/null)'",
        "shells": quoted(" ".join(SHELLS)),
        "verbs": quoted(" ".join(VERBS)),
        "pids": "'(__fish_complete_pids)'",
        "command": "'(__oomproof_command)'",
    }
    offered["runs+files"] = offered["runs"]
    offered[f"runs-{ALIVE_RUNS}"] = f"'(command oomproof {RUN_NAMES} {ALIVE_RUNS} 2>/dev/null)'"
    for entry in _entries():
        verb, _, action = entry.key.partition("/")
        here = (
            f"-n '__oomproof_at {verb}'"
            if not action
            else f"-n '__oomproof_at {verb}; and __fish_seen_subcommand_from {action}'"
        )
        if not action:
            lines.append(f"-n __fish_use_subcommand -f -a {verb} -d {quoted(entry.summary)}")
        for word, text in entry.actions.items():
            lines.append(
                f"{here} -n 'not __fish_seen_subcommand_from {' '.join(entry.actions)}' -f -a {word} -d {quoted(text)}"
            )
        if entry.kind in offered:
            lines.append(f"{here} {'' if 'files' in entry.kind else '-f '}-a {offered[entry.kind]}")
        elif entry.kind == "none":
            lines.append(f"{here} -f")
        for flag, text in entry.flags.items():
            name = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
            value = " -r -F" if flag in entry.files else " -x" if flag in entry.valued else ""
            lines.append(f"{here} {name}{value} -d {quoted(text)}")
    return _FISH + "".join(f"complete -c oomproof {line}\n" for line in lines)


_BASH = r"""# bash completion of oomproof
_oomproof() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verbs='@VERBS@'
  local key=${COMP_WORDS[1]} flags= valued= files= kind=none actions= name at
  COMPREPLY=()
  if (( COMP_CWORD == 1 )); then
    COMPREPLY=($(compgen -W "$verbs --help --version" -- "$cur"))
    return
  fi
  for (( at = 2; at < COMP_CWORD; at++ )); do
    if [[ $key == run && ${COMP_WORDS[at]} == -- ]]; then
      if declare -F _command_offset >/dev/null; then
        _command_offset $((at + 1))
      elif (( COMP_CWORD == at + 1 )); then
        COMPREPLY=($(compgen -c -- "$cur"))
      else
        compopt -o default
      fi
      return
    fi
    [[ " @KEYS@ " == *" $key/${COMP_WORDS[at]} "* ]] && key=$key/${COMP_WORDS[at]}
  done
  case $key in
@CASES@  esac
  if [[ " $files " == *" $prev "* ]]; then
    compopt -o default
  elif [[ " $valued " == *" $prev "* ]]; then
    :
  elif [[ $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$cur"))
  elif [[ -n $actions ]]; then
    COMPREPLY=($(compgen -W "$actions" -- "$cur"))
  else
    case $kind in
      verbs) COMPREPLY=($(compgen -W "$verbs" -- "$cur")) ;;
      shells) COMPREPLY=($(compgen -W '@SHELLS@' -- "$cur")) ;;
      pids) COMPREPLY=($(compgen -W "$(command ps -u "$UID" -o pid= 2>/dev/null)" -- "$cur")) ;;
      command) COMPREPLY=(--) ;;
      files) compopt -o default ;;
      runs*)
        while IFS= read -r name; do
          [[ $name == "$cur"* ]] && COMPREPLY+=("$(printf %q "$name")")
        done < <(command oomproof @RUNS@ ${kind#*-} 2>/dev/null)
        [[ $kind == *files ]] && compopt -o default ;;
    esac
  fi
}
complete -F _oomproof oomproof
"""

_ZSH = r"""#compdef oomproof
# zsh completion of oomproof
_oomproof() {
  local -a verbs flags valued files actions names
  local key=$words[2] kind=none at
  verbs=(@VERBS@)
  if (( CURRENT == 2 )); then
    _describe -t verbs verb verbs
    return
  fi
  for (( at = 3; at < CURRENT; at++ )); do
    if [[ $key == run && $words[at] == -- ]]; then
      shift $at words
      (( CURRENT -= at ))
      _normal
      return
    fi
    [[ " @KEYS@ " == *" $key/$words[at] "* ]] && key=$key/$words[at]
  done
  case $key in
@CASES@  esac
  if (( $files[(Ie)$words[CURRENT-1]] )); then
    _files
  elif (( $valued[(Ie)$words[CURRENT-1]] )); then
    _message value
  elif [[ $PREFIX == -* ]]; then
    _describe -o -t flags flag flags
  elif (( $#actions )); then
    _describe -t actions action actions
  else
    case $kind in
      verbs) _describe -t verbs verb verbs ;;
      shells) compadd @SHELLS@ ;;
      pids) _pids ;;
      command) compadd -- -- ;;
      files) _files ;;
      runs*)
        names=("${(@f)$(command oomproof @RUNS@ ${kind#*-} 2>/dev/null)}")
        (( $#names )) && [[ -n $names[1] ]] && compadd -a names
        [[ $kind == *files ]] && _files ;;
    esac
  fi
}
if [[ $funcstack[1] == _oomproof ]]; then
  _oomproof "$@"
else
  compdef _oomproof oomproof
fi
"""

_FISH = r"""# fish completion of oomproof
function __oomproof_at
  set -l words (commandline -opc)
  test (count $words) -ge 2; and contains -- $words[2] $argv
end
function __oomproof_command
  set -l words (commandline -opc)
  set -l at (contains -i -- -- $words)
  if test -z "$at"
    echo --
  else
    complete -C "$(string escape -- $words[(math $at + 1)..-1] | string join ' ') $(commandline -ct)"
  end
end
"""
