"""The guard for all users runs as root: what it runs must be root's alone, wherever Python takes it from."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import oomproof
from oomproof.runner import guard_service, trusted_code

CHECK = "from oomproof.runner.guard_service import refuse_others_code; refuse_others_code()"

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="gives files to another user")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with its own copy of oomproof, all of it root's."""
    folder = tmp_path_factory.mktemp("template") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    package = Path(oomproof.__file__).parent
    shutil.copytree(package, site(folder) / "oomproof", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def venv(template: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "above" / "venv"
    shutil.copytree(template, folder, symlinks=True)
    return folder


def site(venv: Path) -> Path:
    return next((venv / "lib").glob("python3.*")) / "site-packages"


def nobody(path: Path) -> None:
    entry = pwd.getpwnam("nobody")
    os.chown(path, entry.pw_uid, entry.pw_gid, follow_symlinks=False)


def check(venv: Path, **environment: str) -> str:
    """What an installation from that environment is refused with; empty where it is not."""
    done = subprocess.run(
        [str(venv / "bin/python"), "-P", "-c", CHECK],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
    )
    assert (done.returncode == 0) == (not done.stderr), done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("mode", "uid", "gid", "on_the_way", "who"),
    [
        (stat.S_IFDIR | 0o755, 0, 0, False, ""),
        (stat.S_IFREG | 0o755, 0, 4_000_000, False, ""),
        (stat.S_IFREG | 0o444, 4_000_000, 0, False, "the user 4000000"),
        (stat.S_IFDIR | 0o1777, 4_000_000, 0, True, "the user 4000000"),
        (stat.S_IFREG | 0o664, 0, 4_000_000, False, "the group 4000000"),
        (stat.S_IFDIR | 0o2775, 0, 4_000_000, True, "the group 4000000"),
        (stat.S_IFDIR | 0o777, 0, 0, True, "every user"),
        (stat.S_IFDIR | 0o1777, 0, 0, True, ""),
        (stat.S_IFDIR | 0o1777, 0, 0, False, "every user"),
        (stat.S_IFREG | 0o1777, 0, 0, True, "every user"),
        (stat.S_IFLNK | 0o777, 0, 0, True, ""),
        (stat.S_IFLNK | 0o777, 4_000_000, 0, True, "the user 4000000"),
    ],
)
def test_who_could_change_it(mode: int, uid: int, gid: int, on_the_way: bool, who: str) -> None:
    assert trusted_code.who_could_change(mode, uid, gid, on_the_way) == who


def test_only_the_service_of_root_leaves_out_a_user_s_own_packages() -> None:
    assert "Environment=PYTHONNOUSERSITE=1\n" in guard_service.unit([], system=True)
    assert "PYTHONNOUSERSITE" not in guard_service.unit([], system=False)


@needs_root
def test_a_checkout_is_checked_where_pythonpath_names_it(venv: Path, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (site(venv) / "oomproof").rename(checkout / "oomproof")
    assert check(venv, PYTHONPATH=str(checkout)) == ""
    nobody(checkout)
    assert f"{checkout} can be changed by the user nobody" in check(venv, PYTHONPATH=str(checkout))


@needs_root
def test_an_environment_of_roots_alone_is_taken(venv: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    nobody(tmp_path / "theirs")
    assert check(venv) == ""
    assert check(venv, PYTHONPATH=str(tmp_path / "theirs")) == "", "the service does not see that variable"


@needs_root
@pytest.mark.parametrize(
    "name",
    ["../venv", ".", "bin", "bin/python", "pyvenv.cfg", "lib", "SITE", "SITE/oomproof", "SITE/oomproof/errors.py"],
)  # fmt: skip
def test_what_another_user_owns_is_refused(venv: Path, name: str) -> None:
    path = venv.parent if name == "../venv" else Path(name.replace("SITE", str(site(venv))))
    nobody(venv / path)
    text = check(venv)
    assert f"OomproofError: {venv / path} can be changed by the user nobody" in text
    assert "hint: install it where only root can write" in text


@needs_root
@pytest.mark.parametrize(("mode", "who"), [(0o020, "the group root"), (0o002, "every user")])
def test_what_others_may_write_is_refused(venv: Path, mode: int, who: str) -> None:
    path = site(venv) / "oomproof" / "cli" / "main.py"
    path.chmod(stat.S_IMODE(path.stat().st_mode) | mode)
    assert f"{path} can be changed by {who}" in check(venv)


@needs_root
def test_every_link_on_the_way_to_the_interpreter_is_followed(venv: Path, tmp_path: Path) -> None:
    python, theirs = venv / "bin" / "python", tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "python").symlink_to(os.path.realpath(python))
    python.unlink()
    python.symlink_to("../../../theirs/python")
    assert check(venv) == ""
    nobody(theirs)
    assert f"{theirs} can be changed by the user nobody" in check(venv)


@needs_root
@pytest.mark.parametrize("exists", [True, False])
def test_what_a_pth_file_names_is_imported_from_too(venv: Path, tmp_path: Path, exists: bool) -> None:
    theirs, named = tmp_path / "theirs", tmp_path / "theirs" / "packages"
    named.mkdir(parents=True)
    (site(venv) / "more.pth").write_text(f"{named}\n")
    assert check(venv) == ""
    nobody(named if exists else theirs)
    assert f"{named if exists else theirs} can be changed by the user nobody" in check(venv)


@needs_root
def test_a_package_that_is_a_link_is_followed(venv: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs" / "package"
    theirs.mkdir(parents=True)
    (theirs / "__init__.py").write_text("")
    (site(venv) / "package").symlink_to(theirs)
    assert check(venv) == ""
    nobody(theirs / "__init__.py")
    assert f"{theirs / '__init__.py'} can be changed by the user nobody" in check(venv)


@needs_root
def test_python_that_needs_the_user_s_own_packages_is_refused(venv: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    own = home / ".local/lib" / site(venv).parent.name / "site-packages"
    own.parent.mkdir(parents=True)
    (site(venv) / "oomproof").rename(own)
    own.rename(own.parent / "oomproof")
    own.mkdir()
    (own.parent / "oomproof").rename(own / "oomproof")
    (venv / "pyvenv.cfg").write_text(
        (venv / "pyvenv.cfg").read_text().replace("site-packages = false", "site-packages = true")
    )
    assert "does not find oomproof" in check(venv, HOME=str(home))
