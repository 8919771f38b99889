"""Reads a job's command line as a person does: which program, which script, which options, where the output goes."""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SOURCES = (".py", ".sh", ".ipynb", ".R", ".jl", ".lua")
# Options that say where a run writes its results. `--log_level` and `--save_steps` are none.
_OUTPUT = re.compile(
    r"(?:\w+\.)*(?:(?:output|out|save|saving|results?|checkpoints?|ckpt|run|work|exp|experiment|artifacts?|default_root)"
    r"[-_.]?(?:dir|directory|folder|path|root)|output|out|o|savedir|outdir|workdir)",
    re.IGNORECASE,
)
_PROFILE = "/oomproof/profile-"  # in the name of the folder that a profiler writes to
# Options whose value changes from run to run without changing what the run needs.
_INCIDENTAL = re.compile(
    r"(?:\w+\.)*(?:(?:\w+[-_])?seed|(?:run|exp|experiment|job|wandb|trial|group)?[-_]?(?:name|id|tags?|notes)"
    r"|(?:log|logging|logs|tensorboard|tb)[-_.]?(?:dir|directory|folder|path|file)|logdir|logfile|log"
    r"|(?:auto[-_])?resume(?:[-_]from)?(?:[-_](?:checkpoint|ckpt|path))?)",
    re.IGNORECASE,
)
# Programs that start another: their options that take a value, and how many words stand before that other.
_WRAPPERS = {
    "timeout": (("-s", "-k", "--signal", "--kill-after"), 1),
    "nice": (("-n", "--adjustment"), 0),
    "ionice": (("-c", "-n", "--class", "--classdata"), 0),
    "taskset": ((), 1),
    "chrt": (("-T", "-P", "-D"), 1),
    "numactl": (("-i", "-N", "-m", "-C", "-p", "-P"), 0),
    "stdbuf": (("-i", "-o", "-e"), 0),
    "env": (("-u", "-C"), 0),
    "nohup": ((), 0),
    "setsid": ((), 0),
}
SHELLS = ("sh", "bash", "dash", "ash", "zsh", "ksh")
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=")


def script_of(argv: Sequence[str], folder: str) -> str | None:
    """The file a person would call "the script": the first word that is a source file of the user's."""
    for word in argv:
        if word.endswith(_SOURCES):
            path = os.path.join(folder, word)
            if os.path.isfile(path):
                return real(path)
    return None


def script_arguments(argv: Sequence[str], script: str, folder: str) -> Sequence[str]:
    """The words behind that file; all but the program where it is not named."""
    for at, word in enumerate(argv):
        if word.endswith(os.path.basename(script)) and real(os.path.join(folder, word)) == script:
            return argv[at + 1 :]
    return argv[1:]


def program_target(words: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """(what the program runs, its arguments): a file, or ``-m NAME``. ``words`` are those behind the program."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "-m" and rest:
            return f"-m {rest[0]}", tuple(rest[1:])
        if word == "-c":
            return None
        if word in ("-W", "-X") and rest:
            rest.pop(0)
        elif not word.startswith("-"):
            return word, tuple(rest)
    return None


def python_target(command: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """The same of a whole command line; None where the program is no Python."""
    if not command or not is_python(command[0]):
        return None
    return program_target(command[1:])


def without_profiler(argv: Sequence[str]) -> list[str]:
    """The user's own command, of one that `oomproof profile` put memray around: its file is gone the next time."""
    words = list(argv)
    for at in range(len(words) - 5):
        if words[at + 1 : at + 5] == ["memray", "run", "-q", "-o"] and _PROFILE in words[at + 5]:
            return words[:at] + words[at + 6 :]
    return words


def without_wrappers(command: Sequence[str]) -> Sequence[str]:
    """The program itself, of ``timeout 2h nice -n 5 python train.py``; as it is where nothing follows."""
    words = list(command)
    while words and os.path.basename(words[0]) in _WRAPPERS:
        valued, operands = _WRAPPERS[os.path.basename(words[0])]
        rest = words[1:]
        while rest and (rest[0].startswith("-") or _ASSIGNED.match(rest[0])):
            rest = rest[2 if rest[0] in valued else 1 :]
        words = rest[operands:]
    return words or command


# compiled by the few that ask: this module is read at every start
_QUOTED = r"(?s)'[^']*'|\"(?:\\.|[^\"\\])*\""
_REDIRECTED = r"(?<!\S)\d?>>?(?:&\d|&?\s?[^\s;&|<>()]+)|(?<!\S)&>>?\s?[^\s;&|<>()]+"
_OF_SHELL = r"[$`*?<#]|(?:^|[;&|(]\s*)(?:cd|pushd|export|source|\.|\w+=\S*)\s"


def _without_quoted(line: str) -> str:
    """As long as before; what the shell would fill in within double quotes stays."""

    def covered(quoted: re.Match[str]) -> str:
        return re.sub(r"[^$`]" if quoted[0][0] == '"' else r".|\n", "q", quoted[0])

    return re.sub(_QUOTED, covered, line)


def needs_its_shell(line: str) -> bool:
    """Whether a command of that line would be another one without the shell: variables, patterns, its folder, its input."""
    return re.search(_OF_SHELL, _without_quoted(line)) is not None


def shell_words(command: Sequence[str]) -> Sequence[str] | None:
    """The one Python command in the line of ``sh -c LINE``; None for anything else, or several of them."""
    line = shell_line(command)
    if line is None:
        return None
    import shlex  # of few commands

    for redirected in re.finditer(_REDIRECTED, _without_quoted(line)):
        line = line[: redirected.start()] + " " * len(redirected[0]) + line[redirected.end() :]
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()<>\n")
    lexer.whitespace = " \t\r"
    lexer.whitespace_split, lexer.commenters = True, ""
    commands: list[list[str]] = [[]]
    try:
        for word in lexer:
            if word and set(word) <= set(";&|()<>\n"):
                commands.append([])
            elif commands[-1] or not _ASSIGNED.match(word):
                commands[-1].append(word)
    except ValueError:  # a quote without its other half
        return None
    found = [words for words in commands if words and is_python(without_wrappers(words)[0])]
    return found[0] if len(found) == 1 else None


def shell_line(command: Sequence[str]) -> str | None:
    """LINE of ``sh -c LINE``, ``bash -ec LINE``."""
    words = without_wrappers(command)
    is_line = len(words) > 2 and os.path.basename(words[0]) in SHELLS and re.fullmatch(r"-[a-z]*c", words[1])
    return words[2] if is_line else None


def is_python(program: str) -> bool:
    return os.path.basename(program).startswith(("python", "pypy"))


def short_name(command: Sequence[str]) -> str:
    """``python train.py`` of a long command line: nothing behind it, which may be secret."""
    command = without_wrappers(command)
    if not command:
        return ""
    program = os.path.basename(command[0]) or command[0]
    target = program_target(command[1:])
    if target is None:
        return program
    return f"{program} {target[0] if target[0].startswith('-m ') else os.path.basename(target[0])}"


def is_keeper(command: Sequence[str]) -> bool:
    return any(word.endswith("oomproof/runner/keeper.py") for word in command[:8])


def is_oomproof(command: Sequence[str]) -> bool:
    """A guard or a keeper names the job's script too, and is not the job."""
    return is_keeper(command) or any(
        os.path.basename(word) == "oomproof" or word.startswith(("oomproof.cli", "oomproof.runner"))
        for word in command[:5]
    )


def options(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """(name, value) of ``--batch 64``, ``--batch=64``, ``batch=64`` and ``--flag``; ("", word) for any other word."""
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        name, equals, value = word.partition("=")
        if equals and re.fullmatch(r"[-+~]*[A-Za-z_][\w.\-/@]*", name):
            yield name.lstrip("-"), value
        elif word.startswith("-") and word.lstrip("-") and not _is_number(word):
            if index < len(words) and (not words[index].startswith("-") or _is_number(words[index])):
                yield word.lstrip("-"), words[index]
                index += 1
            else:
                yield word.lstrip("-"), None
        else:
            yield "", word


def _is_number(word: str) -> bool:
    return bool(re.fullmatch(r"-?\d*\.?\d+(?:[eE][-+]?\d+)?", word))


def output_folder(words: Sequence[str], folder: str) -> str | None:
    """Where the run writes, as a real path; None when its arguments do not say."""
    for name, value in options(words):
        if name and value and _OUTPUT.fullmatch(name):
            return real(os.path.join(folder, value))
    return None


def real(path: str) -> str:
    """As it is, where the working folder was removed under us and nothing can be resolved."""
    try:
        return os.path.realpath(path)
    except OSError:
        return path


def is_incidental(name: str) -> bool:
    """Seed, name, output and log options: another value is still the same job to the memory."""
    return bool(_INCIDENTAL.fullmatch(name) or _OUTPUT.fullmatch(name))


def command_key(argv: Sequence[str], folder: str) -> str:
    """The same text for the same job: script's real path and its arguments in any order, without the incidental ones."""
    script = script_of(argv, folder)
    words = [os.path.basename(argv[0]).rstrip("0123456789.") or argv[0]]
    at = next((n for n, word in enumerate(argv) if script and _is(word, script, folder)), None)
    if at is None:  # no file to go by: what `-m train` or `./prog` means depends on the folder
        words += [real(folder)]
        rest = list(argv[1:])
    else:
        words = [] if at == 0 else words
        words += list(argv[1:at])
        words.append(script or "")
        rest = list(argv[at + 1 :])
    named, placed = [], []
    for name, value in options(rest):
        if not name:
            placed.append(value or "")
        elif not is_incidental(name):
            named.append(name.replace("-", "_") + ("" if value is None else f"={value}"))
    return "\x1f".join([*words, *sorted(named), "", *placed])


def _is(word: str, script: str, folder: str) -> bool:
    return word.endswith(_SOURCES) and real(os.path.join(folder, word)) == script
