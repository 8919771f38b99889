"""The report to commit beside the code: every section that has something to say, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers_report import HOSTILE, WALL, make_run, verdict

from oomproof.errors import OomproofError
from oomproof.reports.markdown import write_markdown
from oomproof.reports.markdown_parts import code, text


def written(path: Path, *arguments: object) -> str:
    write_markdown(*arguments, path)  # type: ignore[arg-type]
    return path.read_text()


def sections(text: str) -> list[str]:
    return re.findall(r"^## (.*)$", text, re.MULTILINE)


def test_a_run_with_one_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    argv = ["python", "train.py", "--batch", "64", "--workers", "32"]
    old = make_run(tmp_path, "20260920-100000-old", seconds=300, created=WALL, argv=argv)
    run = make_run(tmp_path, seconds=900)
    text = written(tmp_path / "report.md", verdict(run.id), run)
    assert sections(text) == [
        "What happened", "Timeline", "Root cause", "Evidence", "What was changed", "Before and after",
        "What may help", "Prevention", "Next steps", "What it printed last", "Environment",
    ]  # fmt: skip
    assert f"before: {old.id}" in text and "| workers | `32` | `16` |" in text
    assert "| peak, GPU | 21.0 GiB | 21.0 GiB |" in text
    assert "4 loader workers instead of 16 (measured, saves 12.0 GiB)" in text
    assert "The job as a whole held" in text and "`dmesg | grep oom-kill`" not in text
    assert "- [ ] to rule out killed, not known by whom: ask who ran kill -9" in text
    assert "99.0 GiB" not in text, "total-vm is no memory"


def test_the_first_run_and_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run = make_run(tmp_path, seconds=60, gpu=False, phases=False)
    text = written(tmp_path / "first.md", verdict(run.id), run)
    assert "first recorded run of this command" in text and "Before and after" not in sections(text)
    text = written(tmp_path / "text.md", verdict(), None)
    assert "What was changed" not in sections(text) and "Root cause" in sections(text)
    assert "51000.5 s after boot" not in text  # a kill is not evidence
    assert "oomproof run -- python train.py" in text


def test_what_a_job_printed_stays_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    hostile = HOSTILE + " | cell `tick` ## head\n\n# title"
    run = make_run(tmp_path, seconds=60, texts=hostile, name=hostile, argv=["python", hostile])
    text = written(tmp_path / "r.md", verdict(run.id, hostile), run)
    unfenced = re.sub(r"^(`{3,})text\n.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", unfenced)
    assert "<script" not in outside and "<img" not in outside
    assert not re.search(r"^# title", outside, re.MULTILINE) and outside.count("\n# ") == 0
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1, table


def test_words_of_markdown() -> None:
    assert text("a*b_c|d<e>") == r"a\*b\_c\|d&lt;e&gt;"
    assert code("x ` y") == "``x ` y``" and code("`") == "`` ` ``"


def test_refuses_to_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "r.md"
    path.write_text("mine")
    with pytest.raises(OomproofError, match="exists already") as refusal:
        write_markdown(verdict(), None, path)
    assert "--force" in refusal.value.hint and path.read_text() == "mine"
    write_markdown(verdict(), None, path, force=True)
    assert path.read_text().startswith("# ")
    with pytest.raises(OomproofError, match="folder"):
        write_markdown(verdict(), None, tmp_path)
    with pytest.raises(OomproofError, match="cannot write"):
        write_markdown(verdict(), None, tmp_path / "no" / "r.md")
