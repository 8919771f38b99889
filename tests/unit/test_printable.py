"""Whatever stands in logs, names and arguments: no verb prints a byte that a terminal obeys, but our own colours."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from helpers_report import make_run
from hypothesis import given
from hypothesis import strategies as st

from oomproof.printable import MessageStream, PrintableStream, one_line, printable
from oomproof.runner.terminal import Terminal

# ESC c (reset), OSC title, CSI colour, C1 CSI, DEL, backspace, bidi override, zero width, invisible tags, a stray byte
HOSTILE = (
    "\x1bc\x1b]0;owned\x07\x1b[8mhidden\x1b[31m\x9b2J\x7f\x08\u202egnp.exe\u2066\u200b\ufeff\U000e0041\udc9b"
)
FORBIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0041]"
)
OURS = re.compile(r"\x1b\[[0-9]{1,2}(?:;[0-9]{1,2})*m")
LOG = (
    f"step 1 loss 2 {HOSTILE}\n{HOSTILE}Traceback (most recent call last):\n"
    f'  File "{HOSTILE}x.py", line 1, in f{HOSTILE}\nMemoryError: {HOSTILE} no memory {HOSTILE}\n'
    f"[ 100.000000] Out of memory: Killed process 4067 ({HOSTILE}) total-vm:30290680kB, anon-rss:9234320kB, "
    "file-rss:4kB, shmem-rss:0kB, UID:504 pgtables:59264kB oom_score_adj:0\n"
).encode(errors="surrogateescape")


def oomproof(*words: str, cwd: Path, status: int | None = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "oomproof", *words], cwd=cwd, capture_output=True, timeout=90
    )
    assert status is None or done.returncode == status, done.stderr
    assert b"Traceback" not in done.stderr
    return (done.stdout + done.stderr).decode()  # text at all


def safe(text: str) -> None:
    found = FORBIDDEN.search(text)
    assert found is None, text[max(0, found.start() - 60) : found.end() + 60]


@given(st.text())
def test_nothing_but_newline_and_tab_is_obeyed(text: str) -> None:
    shown = printable(text)
    safe(shown)
    assert printable(shown) == shown
    assert shown.encode().decode() == shown  # halves of surrogates too
    assert "\n" not in one_line(text) and "\t" not in one_line(text)


def test_what_people_write_stays() -> None:
    for text in ("step 3\tloss 2·1 – •••\n", "żółć 日本語 नमस्ते 👩‍🔬 🏳️‍🌈 می‌خواهم", "a\u00a0b"):
        assert printable(text) == text
    assert printable("\x1b[2J") == r"\u001b[2J"


def test_json_stays_whole(capsys: pytest.CaptureFixture[str]) -> None:
    print(json.dumps({"name": HOSTILE + "\x7f"}), file=PrintableStream(sys.stdout))
    assert json.loads(capsys.readouterr().out)["name"] == HOSTILE + "\x7f"


@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1"])
def test_a_stream_that_cannot_draw(encoding: str, state: Path) -> None:
    """A chart of ``\\u2588`` is none."""
    run = make_run(state, seconds=60, name="nacht-é")
    done = subprocess.run(
        [sys.executable, "-m", "oomproof", "runs", "show", run.id],
        env={**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "80"}, capture_output=True, timeout=60,
    )  # fmt: skip
    told = done.stdout.decode(encoding)
    assert "######" in told and "\\u25" not in told
    assert ("nacht-é" if encoding == "iso-8859-1" else r"nacht-\xe9") in told
    assert max(map(len, told.splitlines())) <= 80


def test_guard_messages(capfd: pytest.CaptureFixture[str]) -> None:
    Terminal().message(f"oomproof: {HOSTILE} (pid 3) grew")
    told = capfd.readouterr().err
    safe(told)
    assert "hidden" in told


SAYS = "oomproof: 118 MiB of RAM available, no swap left, the job held 307 MiB; the margin is 120 MiB\n  hint: halve it: oomproof run --need 3072M -- python train.py --batch 32"
SINKS = {
    "guard": "from oomproof.runner.terminal import Terminal; Terminal().message(text)",
    "start": "from oomproof.cli.run_admission import tell; tell(text)",
    "verbs": "import sys; from oomproof.printable import MessageStream; print(text, file=MessageStream(sys.stderr))",
}


@pytest.mark.parametrize("sink", SINKS.values(), ids=SINKS)
def test_messages_are_folded_at_spaces_at_a_terminal_only(sink: str) -> None:
    """A command stays whole: half of one is another one."""
    program = [sys.executable, "-c", f"text = {SAYS!r}; {sink}"]
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 40))
    subprocess.run(program, stderr=slave, check=True, timeout=60)
    os.close(slave)
    told = os.read(master, 4096).decode().replace("\r\n", "\n")
    os.close(master)
    assert told.splitlines() == [
        "oomproof: 118 MiB of RAM available, no",
        "  swap left, the job held 307 MiB; the",
        "  margin is 120 MiB",
        "  hint: halve it: oomproof run --need 3072M -- python train.py --batch 32",
    ]
    piped = subprocess.run(program, stderr=subprocess.PIPE, text=True, check=True, timeout=60)
    assert piped.stderr == SAYS + "\n"


@pytest.fixture
def state(folders_of_their_own: Path) -> Path:
    return folders_of_their_own / "state"


@pytest.fixture
def hostile_run(state: Path) -> str:
    text = HOSTILE.encode(errors="replace").decode()
    run = make_run(
        state, seconds=120, name=f"nightly{HOSTILE}", texts=text, user=HOSTILE,
        argv=["python", f"train{HOSTILE}.py", "--batch", HOSTILE], cwd=f"/home/{HOSTILE}",
        env={"CUDA_VISIBLE_DEVICES": HOSTILE, "PATH": HOSTILE}, host=HOSTILE,
    )  # fmt: skip
    make_run(state, "20260921-211500-xyz", seconds=60, name=f"nightly{HOSTILE}", texts=text)
    (run.attempt / "output.log").write_bytes(LOG)
    (run.attempt / "verdict.json").unlink()  # judged anew, from all this
    return run.id


@pytest.mark.parametrize(
    "words",
    [
        "runs", "runs --json", "runs show RUN", "runs show RUN --json", "runs compare xyz abc", "runs export RUN",
        "runs --failed", "runs rm RUN --yes", "__runs", "config", "runs prune", "why RUN", "why RUN --json", "why RUN --short", "why --all RUN", "why --system --since 1h",
        "wait RUN", "stop RUN", "resume RUN", "pause RUN", "save RUN", "watch RUN", "check", "check --json", "adopt 1",
    ],
)  # fmt: skip
def test_every_verb_over_a_hostile_run(hostile_run: str, tmp_path: Path, words: str) -> None:
    safe(oomproof(*words.replace("RUN", hostile_run).split(), cwd=tmp_path, status=None))


def test_every_verb_given_hostile_words(hostile_run: str, tmp_path: Path) -> None:
    # `run` as words that cannot be read, the others as a run that is not there
    for verb in (
        "why",
        "logs",
        "wait",
        "stop",
        "resume",
        "pause",
        "save",
        "watch",
        "adopt",
        "check",
        "runs",
        "run",
        "",
    ):
        words = (verb, HOSTILE) if verb else (HOSTILE,)
        told = oomproof(*words, cwd=tmp_path, status=None)
        safe(told)
    safe(oomproof("run", "--limit", HOSTILE, "--", "true", cwd=tmp_path, status=2))


def test_why_of_a_hostile_log(tmp_path: Path) -> None:
    log = tmp_path / f"log{HOSTILE.replace('/', '')}.txt"
    log.write_bytes(LOG)
    for flags in ((), ("--short",), ("--json",)):
        safe(oomproof("why", *flags, str(log), cwd=tmp_path))


def test_pages_of_a_hostile_log_and_run(hostile_run: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(LOG)
    for what in ("log", hostile_run):
        words = ("why", what, "--md", f"{what}.md", "--html", f"{what}.html")
        safe(oomproof(*words, cwd=tmp_path))
        for page in (f"{what}.md", f"{what}.html"):
            safe((tmp_path / page).read_text())


def on_a_terminal(*words: str, cwd: Path) -> str:
    """What the command wrote to a terminal of its own."""
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execv(sys.executable, [sys.executable, "-m", "oomproof", *words])
    data = b""
    try:
        while piece := os.read(master, 65536):
            data += piece
    except OSError:  # the far end is closed
        pass
    os.waitpid(pid, 0)
    os.close(master)
    return data.decode().replace("\r\n", "\n")


def test_on_a_terminal_only_our_own_colours(
    hostile_run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    (tmp_path / "log").write_bytes(LOG)
    for words in (
        ("why", "log"),
        ("why", hostile_run),
        ("why", hostile_run, "--short"),
        ("runs",),
        ("check",),
    ):
        told = on_a_terminal(*words, cwd=tmp_path)
        if words[0] != "runs":
            assert OURS.search(told), "no colours"
        assert "\x1b[8m" not in told
        safe(OURS.sub("", told))


NAMED = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
if os.fork() == 0:  # stays behind, and is named in a message of ours
    libc.prctl(15, b"x\\nA\\x1bc\\xc2\\x9b\\x9b", 0, 0, 0)
    sys.stdout.close()
    ready = os.open(sys.argv[1], os.O_WRONLY)
    os.close(ready)
    os.close(1), os.close(2)
    import time
    time.sleep(60)
open(sys.argv[1]).read()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl")
def test_a_process_that_calls_itself_odd_things(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ready")
    job = tmp_path / f"job{HOSTILE.replace('/', '')}.py"
    job.write_text(NAMED)
    told = oomproof(
        "run", "--grace", "1", "--name", f"odd{HOSTILE}", "--", sys.executable, str(job), str(tmp_path / "ready"),
        cwd=tmp_path,
    )  # fmt: skip
    safe(told)
    assert "left 1 of its processes behind" in told
    assert r"(x\u000aA\u001bc" in told  # on one line


def test_logs_are_the_jobs_own_bytes(hostile_run: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "oomproof", "logs", hostile_run], capture_output=True, timeout=60
    )
    assert done.stdout == LOG


def test_the_jobs_output_passes_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(LOG)
    done = subprocess.run(
        [sys.executable, "-m", "oomproof", "run", "--", "cat", str(tmp_path / "log")],
        capture_output=True,
        timeout=60,
    )
    assert done.stdout == LOG


def test_a_message_that_cannot_be_written_costs_nothing_else() -> None:
    """A sweep whose messages go to a full disk, or to a `tee` that Ctrl-C has ended."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    for fd in (write_end, os.open("/dev/full", os.O_WRONLY)):
        with open(fd, "w", buffering=1) as inner:
            print("trial 2", file=MessageStream(inner), flush=True)
            with pytest.raises(OSError):
                print("a result", file=PrintableStream(inner), flush=True)
            os.dup2(os.open(os.devnull, os.O_WRONLY), inner.fileno())  # what waits in it can go now
