"""What starts a job is not its name: `timeout 2h python train.py` is train.py."""

from __future__ import annotations

import pytest

from oomproof.leaf.command_lines import needs_its_shell, shell_words, short_name


@pytest.mark.parametrize(
    "words",
    [
        "timeout 2h python train.py --lr 1",
        "timeout -s KILL --kill-after=5 2h python train.py",
        "/usr/bin/nice -n 10 python train.py",
        "nice -19 ionice -c 3 python train.py",
        "taskset -c 0-3 python train.py",
        "numactl --cpunodebind=0 -m 0 python train.py",
        "nohup env CUDA_VISIBLE_DEVICES=1 OMP_NUM_THREADS=2 python train.py",
        "setsid stdbuf -oL python train.py",
    ],
)
def test_the_program_behind_its_wrappers(words: str) -> None:
    assert short_name(words.split()) == "python train.py"


def test_a_wrapper_alone_keeps_its_name() -> None:
    assert short_name(["timeout", "120"]) == "timeout 120"
    assert short_name(["env"]) == "env"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("python train.py --lr 1", ["python", "train.py", "--lr", "1"]),
        ("cd /x && A=1 python3 -c 'x = 1; y = 2' | tee log", ["python3", "-c", "x = 1; y = 2"]),
        ("nice python a.py; echo done", ["nice", "python", "a.py"]),
        ("python a.py && python b.py", None),
        ("python 'a.py", None),
        ("make data", None),
    ],
)
def test_the_one_python_in_a_line_of_shell(line: str, words: list[str] | None) -> None:
    assert shell_words(["/bin/bash", "-ec", line]) == words
    assert shell_words(["bash", "run.sh", line]) is None


@pytest.mark.parametrize(
    ("line", "words", "needs"),
    [
        ("python a.py --n 4 2>&1", "python a.py --n 4", False),
        ("python a.py > out.log 2> err.log", "python a.py", False),
        ("python a.py --n 3\necho done", "python a.py --n 3", False),
        ("python a.py --data $HOME/x", "python a.py --data $HOME/x", True),
        ("python a.py *.csv", "python a.py *.csv", True),
        ("cd x && python a.py", "python a.py", True),
        ("A=1 python a.py", "python a.py", True),
        ("python a.py < file", "python a.py", True),
    ],
)
def test_what_belongs_to_the_shell_is_no_argument(line: str, words: str, needs: bool) -> None:
    found = shell_words(["sh", "-c", line])
    assert found is not None and " ".join(found) == words
    assert needs_its_shell(line) == needs


def test_code_in_quotes_is_left_as_it_is() -> None:
    code = "x = 1 * 2  # > y\nprint(x > 1)"
    assert shell_words(["sh", "-c", f"python -c '{code}' 2>&1"]) == ["python", "-c", code]
