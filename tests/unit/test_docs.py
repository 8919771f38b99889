"""The documentation's commands run, and say what the pages say they say.

In a ```console block a line starting with "$ " is a command. It must end with status 0, or with the N of a trailing
"# exits N" (or "# exits N or M": who is first there, guard or kernel, is a matter of load). The lines below it are its output: their words (numbers, sizes and ids aside) must come in that order;
a line of three dots stands for anything. A ```python block whose first line is "# NAME.py" is written to that file.
Blocks that cannot run everywhere (root, a GPU, a Mac, a terminal) are ```text.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from oomproof.cli.main import VERBS, module_of
from oomproof.runner.run_flags import FLAGS

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXITS = re.compile(r"\s+# exits (\d+(?: or \d+)*)$")


@dataclass
class Step:
    command: str
    statuses: tuple[int, ...] = (0,)
    shown: list[str] = field(default_factory=list)


def steps_of(text: str) -> list[Step]:
    steps: list[Step] = []
    for kind, body in _BLOCK.findall(text):
        if kind != "console":
            continue
        for line in body.splitlines():
            if line.startswith("$ "):
                exits = _EXITS.search(line)
                statuses = tuple(map(int, exits[1].split(" or "))) if exits else (0,)
                steps.append(Step(_EXITS.sub("", line[2:]), statuses))
            elif line.strip() and line.strip() != "...":
                assert steps, f"output before any command: {line}"
                steps[-1].shown.append(line)
    return steps


def scripts_of(text: str) -> dict[str, str]:
    found = {}
    for kind, body in _BLOCK.findall(text):
        name = re.match(r"# (\w+\.py)\n", body)
        if kind == "python" and name:
            found[name[1]] = body
    return found


def words(text: str) -> list[str]:
    """What must match: words of two letters and more, without ids and units."""
    return [
        word
        for word in re.findall(r"(?<![\w-])[A-Za-z][A-Za-z'-]+(?![\w-])", text)
        if not word.endswith("iB")
    ]


def missing_line(shown: list[str], real: str) -> str | None:
    """The first shown line whose words do not come, in order, in what was really printed.

    oomproof and the job write at the same time: on a busy machine a line of one may come before a line of the other.
    """
    ours = [line for line in shown if line.startswith("oomproof: ")]
    jobs = [line for line in shown if line not in ours]
    return missing_in_order(shown, real) and (missing_in_order(ours, real) or missing_in_order(jobs, real))


def missing_in_order(shown: list[str], real: str) -> str | None:
    left = iter(words(real))
    for line in shown:
        if not all(any(word == one for one in left) for word in words(line)):
            return line
    return None


def play(page: Path, folder: Path) -> list[str]:
    """Runs a page's commands in order; what went wrong."""
    text = page.read_text()
    steps = steps_of(text)
    if not steps:
        return []
    work = folder / "work"
    work.mkdir(parents=True)
    shutil.copy(ROOT / "examples" / "train.py", work)
    for name, body in scripts_of(text).items():
        (work / name).write_text(body)
    (folder / "runtime").mkdir(mode=0o700)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("OOMPROOF_")},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "XDG_RUNTIME_DIR": str(folder / "runtime"),
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": "100",
    }
    wrong = []
    for step in steps:
        done = subprocess.run(
            ["bash", "-c", step.command],
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
        )
        if done.returncode not in step.statuses:
            said = " or ".join(map(str, step.statuses))
            wrong.append(f"$ {step.command}\nexits {done.returncode}, the page says {said}:\n{done.stdout}")
        elif line := missing_line(step.shown, done.stdout):
            wrong.append(f"$ {step.command}\ndoes not print {line!r} at its place, but:\n{done.stdout}")
    return wrong


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Path, Future[list[str]]]]:
    """All pages at once: most of their time is sleeping."""
    with ThreadPoolExecutor(len(PAGES)) as pool:
        yield {page: pool.submit(play, page, tmp_path_factory.mktemp(page.stem)) for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_the_page_run(page: Path, played: dict[Path, Future[list[str]]]) -> None:
    wrong = played[page].result()
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def anchors_of(text: str) -> set[str]:
    """The places a link may name: headings as GitHub writes them, and our own."""
    without_code = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", without_code, re.MULTILINE)
    words_alone = (re.sub(r"<[^>]*>|[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in words_alone} | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_headings_that_exist(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)]+)\)", page.read_text()):
        other = page.parent / target if target else page
        if "://" not in target and other.suffix == ".md":
            assert anchor in anchors_of(other.read_text()), f"{page.name} links to {target}#{anchor}"


def test_every_verb_has_a_page_that_names_its_flags() -> None:
    for verb in VERBS:
        page = ROOT / "docs" / f"{verb}.md"
        assert page.exists(), f"no page for {verb}"
        parser = ArgumentParser()
        module_of(verb).prepare_parser(parser)
        flags = set(re.findall(r"--[a-z][a-z-]+", parser.format_help())) - {"--help"}
        if verb == "config":  # takes those of run, whose page has them
            flags -= {f"--{name.replace('_', '-')}" for name in FLAGS}
        unnamed = {flag for flag in flags if flag not in page.read_text()}
        assert not unnamed, f"docs/{verb}.md does not name {unnamed}"


def test_pictures_load_nothing_from_the_network() -> None:
    for snapshot in (ROOT / "docs" / "assets").glob("*.svg"):
        text = snapshot.read_text()
        assert "@font-face" not in text and "url(http" not in text and "href=" not in text


def test_the_convention_itself() -> None:
    """The negative: a wrong status and a line that is not there are found."""
    page = "```console\n$ false  # exits 1 or 2\n$ echo one 22 two\none 7 two\n...\n```\n"
    assert steps_of(page) == [Step("false", (1, 2)), Step("echo one 22 two", (0,), ["one 7 two"])]
    assert missing_line(["the job held 7 MiB"], "the job held 150 MiB of") is None
    assert missing_line(["two", "one"], "one two") == "one"
    assert missing_line(["oomproof: asked", "job saved"], "job saved\noomproof: asked") is None
    assert anchors_of('## A `b`: c, d\n```sh\n# no\n```\n<a id="e"></a>') == {"a-b-c-d", "e"}
    assert scripts_of("```python\n# a.py\npass\n```\n") == {"a.py": "# a.py\npass\n"}
