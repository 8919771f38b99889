"""One archive for somebody who will help: reports, recording, logs, the machine; without secrets, and saying so."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

from oomproof import __version__
from oomproof.diagnosis.verdict import Verdict
from oomproof.errors import OomproofError
from oomproof.leaf.attempt_names import FAULT
from oomproof.recording.run_folders import Run
from oomproof.recording.sqlite_files import redacted_copy
from oomproof.reports import environment, html, markdown, report_file
from oomproof.reports.code_shown import read_capped
from oomproof.reports.redaction import Redactor
from oomproof.reports.story import Story, facts, tell
from oomproof.reports.verdict_text import three_lines
from oomproof.units import format_time

FILE_CAP = 8 << 20  # bytes of one text: its first quarter and its last three
TOTAL_CAP = 64 << 20  # before compression; what mail and issue trackers take afterwards
_AGENTS = 50  # stacks of crashed processes
_NEVER_CUT = frozenset(("report.md", "report.html", "verdict.json", "SUMMARY.txt"))
_TELLING = ("torch", "jax", "jaxlib", "tensorflow", "transformers", "datasets", "accelerate", "lightning",
            "pytorch-lightning", "numpy", "pyarrow", "faiss-cpu", "faiss-gpu", "deepspeed", "bitsandbytes")  # fmt: skip


def write_bundle(
    verdict: Verdict,
    run: Run | None,
    sources: list[Path],
    path: Path,
    *,
    configs: Sequence[Path] = (),
    force: bool = False,
    hide_user: bool = False,
    cap: int = TOTAL_CAP,
) -> list[str]:
    """Packs everything into ``path`` (.tar.gz) and returns what was redacted, "where: how many × what", without values.

    ``sources`` are the texts the verdict was read from, ``configs`` files the user named besides. Raises OomproofError
    when ``path`` exists (unless ``force``) or cannot be written; what cannot be read is noted inside, not raised."""
    report_file.refuse_to_overwrite(path, force)
    packer = _Packer(Redactor(hide_user=hide_user), cap)
    story = tell(verdict, run, packer.redactor)
    packer.json("verdict.json", story.verdict.to_json())
    if run is not None:
        _add_run(packer, run, verdict.attempt)
    for folder, files in (("logs", sources), ("config", configs)):
        for file in files:
            packer.file(folder, file)
    packages = _add_machine(packer, run)
    if run is not None:  # last: by now every secret that a text gives away is known
        recording = run.attempt_of(verdict.attempt).recording_file
        packer.binary(recording.name, *redacted_copy(recording, packer.redactor.text))
    packer.text("report.md", markdown.render(story))
    packer.markup("report.html", html.render(story))
    packer.text("SUMMARY.txt", _summary(story, packer, packages))
    archive, redacted = packer.finish(f"oomproof-{run.id if run else 'why'}")
    report_file.save(path, archive, force=force)
    return redacted


class _Packer:
    """Collects texts, then masks in all of them what only one of them gave away."""

    def __init__(self, redactor: Redactor, cap: int) -> None:
        self.redactor = redactor
        self.notes: list[str] = []
        self._cap = cap
        self._texts: dict[str, str] = {}
        self._binaries: dict[str, bytes] = {}

    def text(self, name: str, text: str) -> None:
        self._texts[name] = self.redactor.text(text, name)

    def markup(self, name: str, text: str) -> None:
        """Made from masked values already: only shapes are looked for, so that no tag is broken."""
        self._texts[name] = self.redactor.shapes(text, name)

    def json(self, name: str, value: object) -> None:
        self._texts[name] = json.dumps(self.redactor.value(value, name), indent=1, ensure_ascii=False)

    def binary(self, name: str, data: bytes | None, problem: str | None) -> None:
        if data is not None:
            self._binaries[name] = data
        if problem:
            self.notes.append(f"{name}: {problem}")

    def file(self, folder: str, path: Path, name: str | None = None) -> None:
        """A user's text, unpacked, masked and perhaps cut."""
        plain = self.redactor.text(name or path.name, "file names").replace("/", "_") or "unnamed"
        entry_name, number = f"{folder}/{plain}", 2
        while entry_name in self._texts:
            entry_name, number = f"{folder}/{number}-{plain}", number + 1
        try:
            text, cut = read_capped(path, FILE_CAP)
        except OomproofError as error:
            self.notes.append(self.redactor.text(f"{entry_name}: left out, {error.message}", "CUT.txt"))
            return
        if path.suffix == ".json":
            text = self._json_text(text, entry_name)
        self.text(entry_name, text)
        if cut:
            self.notes.append(f"{entry_name}: {cut}")

    def _json_text(self, text: str, where: str) -> str:
        """In JSON a secret's name may stand lines away from its value."""
        try:
            value = json.loads(text)
        except ValueError:
            return text
        return json.dumps(self.redactor.value(value, where), indent=1, ensure_ascii=False)

    def tail(self, name: str, count: int) -> str:
        """The last lines of a text, as a person saw them: a progress bar's redraws are lines."""
        lines = [line for line in self._texts.get(name, "").splitlines() if line.strip()]
        return "\n".join(f"  {line[:400]}" for line in lines[-count:])

    def finish(self, folder: str) -> tuple[bytes, list[str]]:
        texts = {name: self.redactor.known(text, name) for name, text in self._texts.items()}
        files = {name: text.encode("utf-8", "replace") for name, text in texts.items()} | self._binaries
        total = sum(map(len, files.values()))
        for name in sorted(files, key=lambda name: -len(files[name])):
            if total <= self._cap:
                break
            if name not in _NEVER_CUT:
                total -= len(files[name])
                self.notes.append(
                    f"{name}: left out, {len(files[name])} bytes; the bundle would grow past {self._cap}"
                )
                del files[name]
        redacted = self.redactor.listing()
        files["REDACTED.txt"] = _listing(
            redacted,
            "Masked as ••• in this bundle (what, and where; never the value):",
            "Nothing was redacted.",
        )
        if self.notes:
            files["CUT.txt"] = _listing(self.notes, "Cut or left out:", "")
        return _archive(folder, files), redacted


def _add_run(packer: _Packer, run: Run, number: int | None) -> None:
    packer.json(run.info_file.name, run.info)
    attempt = run.attempt_of(number)
    for path, (value, _) in (
        (attempt.started_file, attempt.load_started()),
        (attempt.exit_json_file, attempt.load_exit()),
    ):
        if value or path.exists():
            packer.json(path.name, value)
    for path in sorted(attempt.agent_folder.glob(f"*-{FAULT}"))[-_AGENTS:]:
        packer.file("agent", path)
    lines = (
        attempt.actions_file,
        attempt.keeper_events_file,
        attempt.alerts_file,
        attempt.keeper_errors_file,
    )
    for path in (*lines, *attempt.outputs):
        if path.exists() and path.stat().st_size:
            packer.file("run", path)
    for path in sorted(attempt.extra("").rglob("*")):
        if path.is_file():
            packer.file(str(path.relative_to(attempt.folder).parent), path)


def _add_machine(packer: _Packer, run: Run | None) -> dict[str, str]:
    """The machine as it is now; the packages of the job's own Python."""
    for name, text in environment.facts():
        packer.text(f"system/{name}", text)
    packages, problem = environment.packages(run)
    if packages:
        listing = "".join(f"{name}=={number}\n" for name, number in sorted(packages.items()))
        packer.text("system/packages.txt", listing)
    if problem:
        packer.notes.append(f"system/packages.txt: {problem}")
    return packages


def _summary(story: Story, packer: _Packer, packages: dict[str, str]) -> str:
    """Plain text, ready to paste into an issue."""
    parts = [three_lines(story.verdict)]
    rows = [*facts(story), *story.environment]
    rows += [(name, packages[name]) for name in _TELLING if name in packages]
    rows += environment.short_facts()
    parts.append("\n".join(f"{name:<26} {value}" for name, value in dict(rows).items()))
    if story.verdict.evidence:
        lines = [
            f"- {item.source}: {' '.join(item.text.split())[:400]}" for item in story.verdict.evidence[:12]
        ]
        parts.append("evidence\n" + "\n".join(lines))
    output = packer.tail("run/output.log", 20)
    if output:
        parts.append("the last lines it printed\n" + output)
    parts.append(f"packed by oomproof {__version__} on {format_time(time.time())}; secrets are masked as •••")
    return "\n\n".join(parts) + "\n"


def _listing(lines: list[str], head: str, none: str) -> bytes:
    text = "\n".join([head, "", *(f"- {line}" for line in lines)]) if lines else none
    return (text + "\n").encode("utf-8", "replace")


def _archive(folder: str, files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
