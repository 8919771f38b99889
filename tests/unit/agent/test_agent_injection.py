"""The agent gets into every Python of a job, and none of them behaves differently for it."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

AGENT = Path(__file__).parents[3] / "src" / "oomproof" / "agent"
SITE = AGENT / "site"
LEAF = AGENT.parent / "leaf"


def installed() -> list[str]:
    """Every Python on this machine: ours, those on PATH, those of pyenv. Old ones too: a job may start them."""
    found = [sys.executable]
    for minor in range(6, 16):
        if path := shutil.which(f"python3.{minor}"):
            found.append(path)
    for pattern in ("2.7.*", "3.*"):
        found += [str(path) for path in sorted(Path.home().glob(f".pyenv/versions/{pattern}/bin/python"))]
    real = {os.path.realpath(path): path for path in reversed(found) if "shims" not in path}
    return sorted(real.values())


def version(python: str) -> tuple[int, int]:
    done = subprocess.run(
        [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True
    )
    major, _, minor = done.stdout.strip().partition(".")
    return int(major), int(minor)


def environment(folder: Path, *path: str | Path) -> dict[str, str]:
    (folder / "agent").mkdir(exist_ok=True)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OOMPROOF", "PYTHON", "COV"))
    }
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(map(str, (SITE, *path))),
        "OOMPROOF_AGENT": str(folder / "agent"),
        "OOMPROOF_AGENT_SOCKET": str(folder / "nobody"),
    }


def run(python: str, variables: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, *words], env=variables, capture_output=True, text=True, timeout=240, cwd="/"
    )


PYTHONS = installed()
AGENTS = [python for python in PYTHONS if version(python) >= (3, 8)]


def test_the_files_are_written_for_python_3_8() -> None:
    for path in [*AGENT.glob("*.py"), *SITE.glob("*.py"), *LEAF.glob("*.py")]:
        ast.parse(path.read_text(), feature_version=(3, 8))


def test_the_leaf_imports_only_the_standard_library_and_itself() -> None:
    for path in LEAF.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""] if not node.level else ["os"]
            for name in names:
                known = name.partition(".")[0] in sys.stdlib_module_names or name.startswith(
                    ("_sha", "oomproof.leaf")
                )
                assert known, f"{path.name} imports {name}"


@pytest.mark.parametrize("python", AGENTS)
def test_the_leaf_works_in_every_python_of_a_job(python: str, tmp_path: Path) -> None:
    code = (
        "import importlib, os, sys\n"
        "package = sys.modules['oomproof'] = type(sys)('oomproof')\n"
        f"package.__path__ = [{str(LEAF.parent)!r}]\n"
        f"names = {sorted(path.stem for path in LEAF.glob('[!_]*.py'))!r}\n"
        "found = {name: importlib.import_module('oomproof.leaf.' + name) for name in names}\n"
        "proc, files, lines = found['proc_files'], found['small_files'], found['command_lines']\n"
        "assert proc.is_alive(os.getpid(), proc.start_time(os.getpid())) and proc.boottime() > 0\n"
        "assert lines.short_name(proc.command_line(os.getpid())).startswith('python')\n"
        "files.replace_file('object.json', b'{\"a\": 1}', synced=True)\n"
        "assert files.read_object('object.json') == {'a': 1} and files.read_object('none.json') == {}\n"
        "lock = files.hold_lock('a.lock')\n"
        "assert files.is_locked('a.lock') and len(files.sha256_hex(b'')) == 64\n"
        "child = os.fork() or os._exit(3)\n"
        "os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)\n"
        "assert found['process_signals'].peek_status(child) == 3 << 8 and proc.is_zombie(child)\n"
        "kv = found['kv_cache']\n"
        "layout = kv.Layout([kv.Layer(8, 4)], [], 10)\n"
        "assert kv.need_of(layout, kv.Call(1, 100, 50)).cache == 1600\n"
    )
    done = subprocess.run([python, "-I", "-S", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_but_sitecustomize_is_put_on_the_path() -> None:
    sources = [path.name for path in SITE.iterdir() if path.name not in ("__pycache__", "sitecustomize.pyc")]
    assert sources == ["sitecustomize.py"]


@pytest.mark.parametrize("python", PYTHONS)
def test_every_python_starts_as_before(python: str, tmp_path: Path) -> None:
    """No word on the terminal, no module more that costs something, and the path as the user set it."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    probe = (
        "import sys, json; sys.stdout.write(json.dumps([[p for p in sys.path if p == SITE],"
        "[m for m in ('json', 'socket', 'threading', 'torch', 'importlib.util') if m in BEFORE],"
        f"{str(theirs)!r} in sys.path, '_oomproof.agent.agent_start' in sys.modules]))"
    )
    code = f"import sys; SITE = {str(SITE)!r}; BEFORE = set(sys.modules); {probe}"
    with_agent = run(python, environment(tmp_path, theirs), "-c", code)
    assert (with_agent.returncode, with_agent.stderr) == (0, "")
    path, modules, kept, started = json.loads(with_agent.stdout)
    assert path == [] and kept is True
    assert started is (version(python) >= (3, 8))
    plain = {name: value for name, value in environment(tmp_path).items() if name != "PYTHONPATH"}
    assert modules == json.loads(run(python, {**plain, "PYTHONPATH": str(theirs)}, "-c", code).stdout)[1]


@pytest.mark.parametrize("python", PYTHONS)
def test_the_next_sitecustomize_runs_once_under_its_own_name(python: str, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text(
        "import sys\nsys.stdout.write('%s %s\\n' % (__name__, __file__))\nvalue = 42\n"
    )
    done = run(
        python,
        environment(tmp_path, theirs),
        "-c",
        "import sys, sitecustomize; sys.stdout.write('%s %s' % (sitecustomize.value, sitecustomize.__file__))",
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("sitecustomize ") and str(theirs) in first
    assert second.startswith("42 ") and str(theirs) in second


def test_an_error_in_the_next_sitecustomize_is_told_as_before(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("raise RuntimeError('mine')\n")
    done = run(
        sys.executable,
        environment(tmp_path, theirs),
        "-c",
        "import sys; print('sitecustomize' in sys.modules)",
    )
    assert done.returncode == 0 and "RuntimeError: mine" in done.stderr
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("python", AGENTS)
def test_oomproof_is_offered_where_none_is_installed(python: str, tmp_path: Path) -> None:
    code = (
        "import oomproof\n"
        "with oomproof.phase('eval'):\n    pass\n"
        "with oomproof.inference():\n    pass\n"
        "@oomproof.phase('eval')\ndef f(): return 7\n"
        "print(f(), list(oomproof.watch([1, 2])), len(oomproof.watch([1, 2])), oomproof.stop_requested())\n"
    )
    variables = {**environment(tmp_path), "OOMPROOF_STOP_FILE": str(tmp_path / "stop")}
    assert run(python, variables, "-c", code).stdout.strip() == "7 [1, 2] 2 False"
    (tmp_path / "stop").touch()
    assert run(python, variables, "-c", code).stdout.strip() == "7 [1] 2 True"


def test_an_installed_oomproof_wins_and_outside_a_run_it_does_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, oomproof; cheap = 'oomproof.agent' not in sys.modules\n"
        "with oomproof.phase('eval'), oomproof.inference():\n    pass\n"
        "print(cheap, oomproof.__version__ != '', list(oomproof.watch([1])), oomproof.stop_requested())"
    )
    plain = {name: value for name, value in os.environ.items() if not name.startswith("OOMPROOF")}
    assert run(sys.executable, plain, "-c", code).stdout.strip() == "True True [1] False"
    assert run(sys.executable, environment(tmp_path), "-c", code).stdout.strip() == "True True [1] False"


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_isolated_interpreters_go_without(flag: str, tmp_path: Path) -> None:
    done = run(
        sys.executable,
        environment(tmp_path),
        flag,
        "-c",
        "import sys; print('_oomproof.agent' in sys.modules)",
    )
    assert (done.stdout.strip(), done.stderr) == ("False", "")
    assert not list((tmp_path / "agent").iterdir())


@pytest.mark.parametrize(
    "extra", [{"PYTHONSAFEPATH": "1"}, {"PYTHONNOUSERSITE": "1"}, {"PYTHONDONTWRITEBYTECODE": "1"}]
)
def test_other_variables_do_not_disturb_it(extra: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(
        "import sys; print('_oomproof.agent.agent_start' in sys.modules, sys.argv[1:])"
    )
    variables = {**environment(tmp_path, tmp_path), **extra}
    assert run(sys.executable, variables, "-m", "work", "a").stdout.strip() == "True ['a']"


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    variables = {**environment(tmp_path), "OOMPROOF_AGENT": str(tmp_path / "not" / "there")}
    done = run(
        sys.executable, variables, "-c", "import threading, oomproof; print(oomproof.stop_requested())"
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "False", "")


CRASHES = {
    "ctypes.string_at(0)": "Segmentation fault",
    "os.abort()": "Aborted",
    "os.kill(os.getpid(), signal.SIGBUS)": "Bus error",
    "os.kill(os.getpid(), signal.SIGFPE)": "Floating point exception",
    "os.kill(os.getpid(), signal.SIGILL)": "Illegal instruction",
}


@pytest.mark.parametrize("action_record", CRASHES)
def test_a_fatal_signal_leaves_the_python_line(action_record: str, tmp_path: Path) -> None:
    from oomproof.evidence.agent_files import crashes

    script = tmp_path / "script.py"
    threads = "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    script.write_text(f"import ctypes, os, signal; {threads}\ndef inner():\n    {action_record}\ninner()\n")
    done = run(sys.executable, environment(tmp_path), str(script))
    assert done.returncode < 0 and done.stderr == "", "its own terminal stays as it would have been"
    (crash,) = crashes(tmp_path / "agent")
    assert crash.kind == CRASHES[action_record]
    assert crash.line == f"{script}:3"
    (written,) = (tmp_path / "agent").glob("*-fault.txt")
    assert "Thread 0x" not in written.read_text(), (
        "others run on: reading their frames may end it by another signal"
    )


def test_a_faulthandler_of_the_users_own_wins(tmp_path: Path) -> None:
    code = "import ctypes, faulthandler; faulthandler.enable(); ctypes.string_at(0)"
    done = run(sys.executable, environment(tmp_path), "-c", code)
    assert "Fatal Python error: Segmentation fault" in done.stderr
    assert all(path.stat().st_size == 0 for path in (tmp_path / "agent").iterdir())
    done = run(
        sys.executable,
        environment(tmp_path),
        "-X",
        "faulthandler",
        "-c",
        "import ctypes; ctypes.string_at(0)",
    )
    assert "Fatal Python error: Segmentation fault" in done.stderr


def test_a_forked_child_has_a_file_of_its_own(tmp_path: Path) -> None:
    code = (
        "import os, ctypes\n"
        "pid = os.fork()\n"
        "if pid == 0:\n    ctypes.string_at(0)\n"
        "os.waitpid(pid, 0)\nprint(os.getpid(), pid)\n"
    )
    parent, child = run(sys.executable, environment(tmp_path), "-c", code).stdout.split()
    assert (tmp_path / "agent" / f"{parent}-fault.txt").read_text() == ""
    assert "Segmentation fault" in (tmp_path / "agent" / f"{child}-fault.txt").read_text()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing(method: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, os, sys\n"
        "def work(n):\n    return n * n, '_oomproof.agent.agent_start' in sys.modules\n"
        "if __name__ == '__main__':\n"
        f"    with multiprocessing.get_context({method!r}).Pool(2) as pool:\n"
        "        print(pool.map(work, [1, 2, 3]))\n"
    )
    done = run(sys.executable, environment(tmp_path), str(script))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == "[(1, True), (4, True), (9, True)]"


def test_a_program_that_closes_all_descriptors_finds_its_own_files_whole(tmp_path: Path) -> None:
    """As daemons do. The numbers we wrote to must never reach a file that the program opens afterwards."""
    code = (
        "import ctypes, os, sys\n"
        "import oomproof\n"
        "phase = oomproof.phase('eval'); phase.__enter__()\n"  # our record is open
        "os.closerange(3, 2000)\n"
        "files = [os.open(sys.argv[1] + str(n), os.O_RDWR | os.O_CREAT, 0o600) for n in range(20)]\n"
        "phase.__exit__(None, None, None)\n"
        "ctypes.string_at(0)\n"
    )
    run(sys.executable, environment(tmp_path), "-c", code, str(tmp_path / "file"))
    files = list(tmp_path.glob("file*"))
    assert len(files) == 20 and all(path.stat().st_size == 0 for path in files)


def test_the_traceback_of_an_import_that_fails_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport torch\n"
    for python in AGENTS:
        variables = environment(tmp_path)
        bare = {
            name: text for name, text in variables.items() if name not in ("PYTHONPATH", "OOMPROOF_AGENT")
        }
        assert run(python, variables, "-c", code).stderr == run(python, bare, "-c", code).stderr


def test_a_working_folder_that_is_gone_is_no_error_of_ours(tmp_path: Path) -> None:
    code = "import os, sys; os.mkdir(sys.argv[1]); os.chdir(sys.argv[1]); os.rmdir(sys.argv[1]); os.execv(sys.argv[2], sys.argv[2:])"
    variables = environment(tmp_path)
    variables["PYTHONPATH"] += os.pathsep + "relative"
    for python in PYTHONS:
        if version(python) < (3, 11):  # later ones do not start there at all
            words = (python, "-c", "import sys; print(any('agent/site' in path for path in sys.path))")
            done = run(sys.executable, variables, "-c", code, str(tmp_path / "gone"), *words)
            assert (done.stdout.strip(), done.stderr) == ("False", "")


_FEW_FILES = ("-c", 'ulimit -n 64; exec "$0" "$@"', sys.executable)


def test_with_few_open_files_allowed_we_take_no_number_that_the_program_counts_on(tmp_path: Path) -> None:
    code = (
        "import oomproof, os, sys\n"
        "with oomproof.phase('eval'): pass\n"  # our record is open
        "os.closerange(3, 64)\n"
        "files = [os.open(sys.argv[1] + str(n), os.O_RDWR | os.O_CREAT, 0o600) for n in range(20)]\n"
        "with oomproof.phase('eval'): pass\n"
        "os.kill(os.getpid(), 11)\n"
    )
    done = run("sh", environment(tmp_path), *_FEW_FILES, "-c", code, str(tmp_path / "file"))
    assert done.returncode == -11, done.stderr
    files = list(tmp_path.glob("file*"))
    assert len(files) == 20 and all(path.stat().st_size == 0 for path in files)


def test_a_forked_child_keeps_a_file_of_the_programs_own_under_our_number(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "os.closerange(3, 2000)\n"
        "read, write = os.pipe()\n"
        "numbers = [1000, 240]\n"
        "for number in numbers: os.dup2(write, number)\n"
        "if os.fork() == 0:\n"
        "    for number in numbers: os.write(number, b'child;')\n"
        "    os._exit(0)\n"
        "os.wait(); print(os.read(read, 100).decode())\n"
    )
    done = run(sys.executable, environment(tmp_path), "-c", code)
    assert (done.stdout.strip(), done.stderr) == ("child;child;", "")


def test_loaders_and_specs_look_as_if_nobody_was_there(tmp_path: Path) -> None:
    code = (
        "import threading, importlib.machinery, inspect, pickle\n"
        "print(type(threading.__spec__.loader).__name__, type(threading.__loader__).__name__,"
        " len(inspect.getsource(threading)) > 1000, importlib.reload(threading) is threading)"
    )
    done = run(sys.executable, environment(tmp_path), "-c", code)
    assert done.stdout.split() == ["SourceFileLoader", "SourceFileLoader", "True", "True"], done.stderr


def test_an_error_in_a_thread_is_printed_once_as_before(tmp_path: Path) -> None:
    code = "import threading; t = threading.Thread(target=lambda: 1 / 0, name='t1'); t.start(); t.join()"
    with_agent = run(sys.executable, environment(tmp_path), "-c", code).stderr
    assert with_agent.count("ZeroDivisionError") == 1 and "Exception in thread t1" in with_agent
    assert "_oomproof.agent" not in with_agent


def test_excepthooks_are_left_alone(tmp_path: Path) -> None:
    """Libraries look whether sys.excepthook is still the original before they set their own."""
    code = "import sys; print(sys.excepthook is sys.__excepthook__)"
    assert run(sys.executable, environment(tmp_path), "-c", code).stdout.strip() == "True"


def test_os_exit_and_other_programs(tmp_path: Path) -> None:
    assert run(sys.executable, environment(tmp_path), "-c", "import os; os._exit(5)").returncode == 5
    done = subprocess.run(
        ["sh", "-c", "echo hello"], env=environment(tmp_path), capture_output=True, text=True
    )
    assert done.stdout == "hello\n"


def test_the_wheel_carries_the_agent() -> None:
    text = (AGENT.parents[2] / "pyproject.toml").read_text()
    assert re.search(r'package-data\]\noomproof = \["agent/site/sitecustomize.py", ', text)
