"""Files are changed whole or not at all, with mode and owner; undo gives back what was, and only where nobody wrote since."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from oomproof.errors import OomproofError
from oomproof.remedies import fix_store
from oomproof.remedies.fix_files import CHANGED_SINCE, SettingsFile, settings_files
from oomproof.remedies.fix_plan import _with_own_change

PROGRAM = Path(__file__).parent.parent / "helpers_fix.py"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    files = [tmp_path / "a.yaml", tmp_path / "b.sh"]
    for path, mode in zip(files, (0o640, 0o755), strict=True):
        path.write_text("workers: 16\n")
        path.chmod(mode)
        os.utime(path, (1e9, 1e9))
    return files


def texts(files: list[Path]) -> dict[str, tuple[str, str]]:
    return {str(path): ("workers: 16\n", "workers: 5\n") for path in files}


def test_applied_and_undone(two: list[Path]) -> None:
    fix = fix_store.apply(texts(two), {"run": "r1"})
    assert [path.read_text() for path in two] == ["workers: 5\n"] * 2 and fix.state == "probation"
    assert [stat.S_IMODE(path.stat().st_mode) for path in two] == [0o640, 0o755]
    assert fix_store.undo(fix) == [str(path) for path in two] and fix.state == "undone"
    assert [path.read_text() for path in two] == ["workers: 16\n"] * 2
    assert [(stat.S_IMODE(path.stat().st_mode), path.stat().st_mtime) for path in two] == [
        (0o640, 1e9),
        (0o755, 1e9),
    ]
    assert not [name for name in os.listdir(two[0].parent) if "oomproof-" in name]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_the_owner_stays(two: list[Path]) -> None:
    os.chown(two[0], 1234, 2345)
    fix_store.apply(texts(two), {})
    assert (two[0].stat().st_uid, two[0].stat().st_gid) == (1234, 2345)


def test_undo_refuses_what_was_changed_since_and_touches_nothing(two: list[Path]) -> None:
    fix = fix_store.apply(texts(two), {})
    two[1].write_text("workers: 7\n")
    with pytest.raises(OomproofError) as error:
        fix_store.undo(fix)
    assert "changed since" in error.value.message and fix.backup(1).read_text() == "workers: 16\n"
    assert two[0].read_text() == "workers: 5\n" and two[1].read_text() == "workers: 7\n"
    two[1].unlink()
    with pytest.raises(OomproofError) as error:
        fix_store.undo(fix)
    assert "is gone" in error.value.message


def test_one_that_cannot_be_written_leaves_all_as_they_were(two: list[Path]) -> None:
    changed = texts(two)
    changed[str(two[1])] = ("something else\n", "workers: 5\n")
    with pytest.raises(OomproofError) as error:
        fix_store.apply(changed, {})
    assert "changed meanwhile" in error.value.message
    assert [path.read_text() for path in two] == ["workers: 16\n"] * 2 and fix_store.list_fixes() == []


def before_each_line(verb: str, kind: str, folder: Path, state: Path) -> None:
    kind, *links = kind.split()
    command = [sys.executable, str(PROGRAM), verb, kind, str(folder), *links]
    done = subprocess.run(
        command, env={**os.environ, "XDG_STATE_HOME": str(state)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50, "lines"


@pytest.mark.parametrize(
    ("verb", "kind"),
    [
        *(("apply", kind) for kind in ("kill", "kill links", "interrupt", "write", "rename")),
        ("undo", "kill"),
        ("undo", "write"),
    ],
)
def test_killed_or_edited_before_any_line_nothing_is_lost(verb: str, kind: str) -> None:
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # where syncing takes no time
    with tempfile.TemporaryDirectory(dir=in_memory) as folder:
        (project := Path(folder, "project")).mkdir()
        before_each_line(verb, kind, project, Path(folder, "state"))


@pytest.mark.parametrize(("verb", "same"), [("apply", True), ("apply", False), ("undo", True)])
def test_a_disk_that_is_full_before_any_line_leaves_all_as_they_were(
    verb: str, same: bool, small_disk: Path, state: Path
) -> None:
    before_each_line(verb, "fill", small_disk, small_disk / "state" if same else state)


def test_where_restoring_fails_the_originals_stay_and_are_named(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk turns read-only between two of the files."""
    files = [small_disk / name for name in ("a.yaml", "b.yaml")]
    for path in files:
        path.write_text("workers: 16\n")
    plain, calls = fix_store._exchange, []

    def exchange(aside: str, path: str) -> None:
        calls.append(path)
        if len(calls) == 2:
            subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
        plain(aside, path)

    monkeypatch.setattr(fix_store, "_exchange", exchange)
    with pytest.raises(OomproofError) as error:
        fix_store.apply(texts(files), {})
    (fix,) = fix_store.list_fixes()
    assert f"not put back: {files[0]}" in error.value.message and "nothing" not in error.value.message
    assert str(fix.folder) in error.value.hint and f"--undo {fix.id}" in error.value.hint
    assert fix.backup(0).read_text() == "workers: 16\n"
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    fix_store.undo(fix)
    assert [path.read_text() for path in files] == ["workers: 16\n"] * 2
    assert sorted(os.listdir(small_disk)) == ["a.yaml", "b.yaml"]


def test_another_name_made_meanwhile_and_attributes_of_the_file(two: list[Path]) -> None:
    try:
        os.setxattr(two[0], "user.note", b"mine")
    except OSError:
        pytest.skip("a file system without attributes")
    os.link(two[1], two[1].with_name("twin"))
    with pytest.raises(OomproofError) as error:
        fix_store.apply(texts(two), {})
    assert "hard links" in error.value.message and two[0].read_text() == "workers: 16\n"
    two[1].with_name("twin").unlink()
    fix_store.apply(texts(two), {})
    assert os.getxattr(two[0], "user.note") == b"mine" and two[0].read_text() == "workers: 5\n"


def test_a_damaged_manifest_or_backup_is_told(two: list[Path]) -> None:
    fix = fix_store.apply(texts(two), {})
    fix.backup(0).write_text("x")
    with pytest.raises(OomproofError) as error:
        fix_store.undo(fix)
    assert "damaged" in error.value.message and two[0].read_text() == "workers: 5\n"
    (fix.folder / "fix.json").write_text('{"files": [{"path": 3}], "state": "probation"}')
    with pytest.raises(OomproofError):
        fix_store.undo(fix)


def problems(argv: list[str], folder: Path, began: float | None = None) -> dict[str, str]:
    return {file.shown: file.problem for file in settings_files(argv, str(folder), began)}


def test_which_files_and_which_not(tmp_path: Path) -> None:
    project, outside = tmp_path / "project", tmp_path / "outside"
    (project / "conf").mkdir(parents=True)
    outside.mkdir()
    for path in (
        project / "t.py",
        project / "conf/a.yaml",
        project / ".env",
        outside / "o.yaml",
        project / "other.yaml",
    ):
        path.write_text("")
    (project / "run.sh").write_text("python t.py --config conf/a.yaml --data x.csv\n")
    (project / "t.py").write_text("from dotenv import load_dotenv\n")
    assert problems(["sh", "run.sh"], project) == {"run.sh": "", "t.py": "", "conf/a.yaml": "", ".env": ""}
    named = problems(["python", "t.py", f"--config={outside}/o.yaml", "conf", "missing.yaml"], project)
    assert named == {"t.py": "", f"{outside}/o.yaml": "", ".env": ""}
    (project / "link.yaml").symlink_to(outside / "o.yaml")
    (project / "inner.yaml").symlink_to("conf/a.yaml")
    (project / "far").symlink_to(outside)
    links = problems(["t", "link.yaml", "inner.yaml", "far/o.yaml"], project)
    assert "link" in links["link.yaml"] and "link" in links["far/o.yaml"] and links["inner.yaml"] == ""
    os.link(project / "t.py", project / "twin.py")
    assert "hard links" in problems(["python", "t.py"], project)["t.py"]


def test_what_cannot_be_read_or_was_changed_after_the_run(tmp_path: Path) -> None:
    for name, data in (
        ("b.yaml", b"\xff\xfe"),
        ("bom.yaml", b"\xef\xbb\xbfa: 1"),
        ("large.yaml", b"#" * (1 << 20) + b"1"),
    ):
        (tmp_path / name).write_bytes(data)
        assert problems(["t", name], tmp_path)[name]
    (tmp_path / "c.yaml").write_text("a: 1\n")
    os.utime(tmp_path / "c.yaml", (5000.0, 5000.0))
    assert "changed after" in problems(["t", "c.yaml"], tmp_path, 4000.0)["c.yaml"]
    assert problems(["t", "c.yaml"], tmp_path, 6000.0)["c.yaml"] == ""


def test_a_file_that_this_verb_has_changed_since_is_said_to_be(two: list[Path]) -> None:
    fix = fix_store.apply(texts(two), {"run": "r1"})
    file = SettingsFile(str(two[0]), "a.yaml", problem=CHANGED_SINCE)
    told = _with_own_change(file, "r1").problem
    assert told.startswith("oomproof fix has changed it since") and told.endswith(f"--undo {fix.id}")
    assert _with_own_change(file, "r2") == file, "of another run"
    other = SettingsFile("/elsewhere", "b.yaml", problem=CHANGED_SINCE)
    assert _with_own_change(other, "r1") == other
    fix_store.undo(fix)
    assert _with_own_change(file, "r1") == file
