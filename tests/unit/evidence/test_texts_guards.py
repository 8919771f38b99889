"""Guards and engines: what they did, once per death, and nothing when they only spoke."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomproof.evidence.texts.finding import Finding
from oomproof.evidence.texts.guard_parser import ANCHORS, GuardParser
from oomproof.evidence.texts.main_finding import settle

CORPUS = Path(__file__).parents[2] / "corpus" / "kernel"


def guards(text: str) -> list[Finding]:
    parser = GuardParser("g")
    for number, line in enumerate(text.splitlines(), 1):
        parser.feed(number, line)
    return parser.finish()


def own(name: str) -> list[Finding]:
    return guards((CORPUS / f"{name}.txt").read_text())


def test_earlyoom_term_then_kill_is_one_death() -> None:
    (found,) = guards(
        'earlyoom[1]: sending SIGTERM to process 7 uid 1000 "a "b"": badness 1, VmRSS 3 MiB\n'
        "earlyoom[1]: escalating to SIGKILL after 2.8 seconds\n"
    )
    assert found.cause == "earlyoom" and found.victim is not None and found.victim.pid == 7
    assert found.guard.signal == "SIGTERM, then SIGKILL"


def test_earlyoom_says_the_memory_held() -> None:
    (found,) = own("earlyoom-1.8")
    assert found.guard.held == 4962 << 20


def test_the_first_earlyoom_spoke_of_badness() -> None:
    first, last = guards(
        "Out of memory! avail: 313 MiB < min: 314 MiB\n"
        "Killing process 26967 (chrome) with badness 337 time_running=5323.8m\n"
        "Killing process 8437 (tab (2)) with badness 332\nKilling process 8438 (python) with badness 9\n"
    )
    assert first.victim is not None and first.victim.name == "chrome" and first.cause == "earlyoom"
    assert last.victim is not None and last.victim.pid == 8438


def test_nohang_names_its_victim() -> None:
    (found,) = own("nohang-0.2")
    assert found.victim is not None and (found.victim.pid, found.victim.name) == (21011, "train_gpt")
    assert found.guard.held == 6120 << 20


def test_nohang_summary_alone() -> None:
    (found,) = guards("nohang[7]:   [ OK ] Sending SIGKILL to tail: 1")
    assert found.cause == "nohang" and found.victim is not None and found.victim.name == "tail"


def test_systemd_oomd_and_systemd_tell_one_death() -> None:
    (found,) = own("systemd-oomd-252")
    assert found.guard.unit == "vte-spawn-77.scope"
    assert found.cgroup is not None and found.cgroup.endswith("vte-spawn-77.scope")


def test_systemd_does_not_say_which_limit() -> None:
    (found,) = guards("systemd[1]: x.service: A process of this unit has been killed by the OOM killer.")
    assert found.cause == "oom-kill-global" and found.strength < 0.8 and found.guard.by == "systemd-oom"


def test_a_main_process_killed_is_no_oom_by_itself() -> None:
    (found,) = guards("systemd[1]: x.service: Main process exited, code=killed, status=9/KILL")
    assert found.cause == "killed-unknown"
    (found,) = guards("systemd[1]: x.service: Main process exited, code=dumped, status=11/SEGV")
    assert found.cause == "segfault"


def test_slurm_tells_once() -> None:
    (found,) = own("slurm-new")
    assert found.cause == "slurm-oom"
    assert own("slurm-old")[0].limit == 33554432 * 1024


def test_a_jetsam_report_cut_in_the_middle() -> None:
    text = (CORPUS / "macos-jetsam-report.txt").read_text()
    (found,) = guards(text[: text.index('"states"')])
    assert found.victim is not None and found.victim.pid == 4624
    assert found.guard.held == 2_100_000 * 16384


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("pod-1   0/1   OOMKilled   3   5m", "oom-kill-memcg"),
        ('  "reason": "OOMKilled",', "oom-kill-memcg"),
        ('  "OOMKilled": true,', "oom-kill-memcg"),
        ("trainer_1 exited with code 137", "killed-unknown"),
        ("command terminated with exit code 137", "killed-unknown"),
        ("System OOM encountered, victim process: python, pid: 77", "oom-kill-global"),
        (
            "Warning  SystemOOM  3m  kubelet  System OOM encountered, victim process: a b, pid: 77",
            "oom-kill-global",
        ),
        ("lmkd: Kill 'org.app' (77), uid 10, oom_score_adj 900 to free 9kB rss", "oom-kill-global"),
        ("<4>[  100.200000] send sigkill to 77 (org.app), adj 15, size 12", "oom-kill-global"),
        ("lowmemorykiller: Using psi monitors for memory pressure", None),
        ("Job has gone over memory limit of 2048 megabytes. Peak usage: 3001 megabytes.", "oom-kill-memcg"),
        ("the container may be OOMKilled if it uses more", None),
        ('  "OOMKilled": false,', None),
        ("exited with code 1370", None),
        (
            "systemd-coredump[9]: Process 5 (a) of user 0 terminated abnormally with signal 6/ABRT, processing...",
            "abort",
        ),
        ("low swap: suspending pid 5 (x)", None),
        ("RayOutOfMemoryError: More than 95% of the memory on node x is used (28.1 / 29.4 GB).", "ray-oom"),
        ("State: OUT_OF_MEMORY (exit code 0)", "slurm-oom"),
        ("slurmstepd: error: Detected 0 oom_kill events in StepId=1.0.", None),
    ],
)
def test_one_line(line: str, cause: str | None) -> None:
    assert [found.cause for found in guards(line)] == ([cause] if cause else [])


@settings(max_examples=80)
@given(st.lists(st.tuples(st.text(max_size=30), st.sampled_from(ANCHORS), st.text(max_size=30)), max_size=30))
def test_anything_is_survived(parts: list[tuple[str, str, str]]) -> None:
    guards("\n".join("".join(part) for part in parts))


def test_of_several_events_the_youngest_is_told() -> None:
    lines = [
        f"{age:<8} Warning   SystemOOM   node/n1   System OOM encountered, victim process: {name}, pid: {pid}"
        for age, name, pid in (("3m", "python", 9120), ("2d1h", "java", 811), ("53m", "node", 77))
    ]
    found = settle(guards("\n".join(lines)))
    assert found is not None and found.victim is not None
    assert (found.victim.pid, found.victim.name) == (9120, "python")


def test_android_says_what_the_victim_held() -> None:
    line = "  lowmemorykiller: Kill 'org.app' (77), uid 10, oom_score_adj 500 to free 90kB rss, 40kB anon rss, 5kB swap... reason: low"
    (found,) = guards(line)
    assert found.victim is not None
    assert (found.victim.pid, found.victim.name, found.victim.anon_rss) == (77, "org.app", 40 * 1024)


def test_ray_names_the_worker_it_killed() -> None:
    text = (
        "WARNING worker.py:1839 -- A worker died or was killed while executing a task by an unexpected system error. "
        "RayTask ID: 8ce7 Worker ID: 5c9a Node ID: 3a4b Worker IP address: 10.0.0.2 Worker port: 10005 Worker PID: 4711 "
        "Worker exit type: NODE_OUT_OF_MEMORY Worker exit detail: Task was killed due to the node running low on memory."
    )
    (found,) = guards(text)
    assert found.cause == "ray-oom" and found.victim is not None and found.victim.pid == 4711


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("State: OUT_OF_MEMORY (exit code 0)", 1),
        ("3756240.batch  batch  OUT_OF_ME+  0:125", 1),
        ("  JobState=OUT_OF_MEMORY Reason=OutOfMemory", 1),
        ("# Add OUT_OF_MEMORY status", 0),
        ("A job in the state OUT_OF_MEMORY is shown in red", 0),
    ],
)
def test_slurms_state_is_a_column_not_a_word(line: str, told: int) -> None:
    assert [found.cause for found in guards(line)] == ["slurm-oom"] * told
