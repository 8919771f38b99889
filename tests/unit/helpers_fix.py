"""A program: before each single line that `oomproof fix --apply` or `--undo` executes, a fork of it is killed, its files are edited, or
their disk fills up. Whatever the line, no file may lose a byte. Arguments: apply or undo; kill, interrupt, write, rename or fill; a
folder; "links" for a file system that cannot exchange two names."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from helpers_disk import fill

from oomproof.errors import OomproofError
from oomproof.remedies import fix_store

TEXTS = {
    "a.py": ("workers = 16\n" * 700, "w = 1111\n"),
    "b.sh": ("workers=16\n", "workers=4\n" * 900),
    "c.py": ("x = 1\n", "x = 2\n" * 1500),
}
MODES = {"a.py": 0o640, "b.sh": 0o755, "c.py": 0o600}
OF_THE_USER = "written by the user\n"
_DONE, _REFUSED, _NOT_REACHED, _INTERRUPTED = 0, 1, 2, 4


def before_line(number: int, act: Callable[[], None], again: bool) -> Callable[[], int]:
    """Calls ``act`` before the line with that number, and with ``again`` before all that follow. Returns how many lines there were."""
    seen = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal seen
        if frame.f_code.co_filename != fix_store.__file__:
            return None
        if event == "line":
            seen += 1
            if seen == number or (again and seen > number):
                act()
        return trace

    sys.settrace(trace)
    return lambda: seen


class Trial:
    def __init__(self, folder: Path, verb: str, kind: str) -> None:
        self.folder, self.verb, self.kind = folder, verb, kind
        self.paths = {name: folder / name for name in TEXTS}

    def make(self) -> None:
        shutil.rmtree(os.environ["XDG_STATE_HOME"], ignore_errors=True)
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name, path in self.paths.items():
            path.write_text(TEXTS[name][0])
            path.chmod(MODES[name])
        if self.verb == "undo":
            self.apply()

    def apply(self) -> None:
        fix_store.apply({str(path): TEXTS[name] for name, path in self.paths.items()}, {"run": "r1"})

    def undo(self) -> None:
        fix_store.undo(fix_store.list_fixes()[0])

    def act(self) -> None:
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.kind == "interrupt":
            raise KeyboardInterrupt
        elif self.kind == "fill":
            fill(self.folder)
        for path in self.paths.values() if self.kind in ("write", "rename") else ():
            written = path if self.kind == "write" else path.with_suffix(".new")
            written.write_text(OF_THE_USER)
            written.rename(path)

    def child(self, number: int) -> int:
        """Its exit status, in a fork of its own; what it said is in ``said``."""
        pid = os.fork()
        if not pid:
            status = 3  # where it raises something else
            try:
                lines = before_line(number, self.act, again=self.kind == "fill")
                status = self.attempt()
                sys.settrace(None)
                status = status if lines() >= number else _NOT_REACHED
            except KeyboardInterrupt:
                status = _INTERRUPTED
            finally:
                os._exit(status)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def attempt(self) -> int:
        try:
            self.apply() if self.verb == "apply" else self.undo()
        except OomproofError as error:
            sys.settrace(None)
            (self.folder / "filler").unlink(missing_ok=True)
            (self.folder / "said").write_text(str(error))
            return _REFUSED
        sys.settrace(None)
        (self.folder / "filler").unlink(missing_ok=True)
        return _DONE

    def texts(self) -> list[str]:
        return [path.read_text() for path in self.paths.values()]

    def check(self, status: int) -> None:
        before, after = ([text[which] for text in TEXTS.values()] for which in (0, 1))
        start, end = (before, after) if self.verb == "apply" else (after, before)
        texts = self.texts()
        if self.kind in ("write", "rename"):
            assert all(text in (end[i], OF_THE_USER) for i, text in enumerate(texts)), texts
            if status == _DONE:
                assert OF_THE_USER in texts
            else:
                assert texts == [OF_THE_USER] * len(texts), texts
            return
        ends = {"kill": (-signal.SIGKILL,), "interrupt": (_INTERRUPTED,), "fill": (_DONE, _REFUSED)}
        assert status in ends[self.kind], status
        if self.kind != "fill":
            assert all(text in (start[i], end[i]) for i, text in enumerate(texts)), texts
        else:
            assert texts == (end if status == _DONE else start), texts
            if status == _REFUSED:
                assert "No space left" in (self.folder / "said").read_text()
                assert bool(fix_store.list_fixes()) == (self.verb == "undo")
        for fix in fix_store.list_fixes():
            fix_store.undo(fix)
            assert not [name for name in os.listdir(self.folder) if "oomproof-" in name]
        assert self.texts() == before
        assert [stat.S_IMODE(path.stat().st_mode) for path in self.paths.values()] == list(MODES.values())


def main() -> None:
    verb, kind, folder, *links = sys.argv[1:]
    if links:
        fix_store._renameat2 = None
    trial, number = Trial(Path(folder), verb, kind), 0
    while True:
        number += 1
        trial.make()
        status = trial.child(number)
        if status == _NOT_REACHED:
            break
        try:
            trial.check(status)
        except (AssertionError, OomproofError) as error:
            said = trial.folder / "said"
            told = said.read_text() if said.exists() else ""
            raise SystemExit(f"line {number}: {type(error).__name__}: {str(error)[:600]}\n{told}") from error
    print(number - 1)


if __name__ == "__main__":
    main()
