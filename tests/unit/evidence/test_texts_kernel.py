"""The kernel's words, of many versions: every kill with its victim exactly as printed, and no kill where none was."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomproof.diagnosis.judge import judge_texts
from oomproof.evidence.texts.finding import Finding, Sizes
from oomproof.evidence.texts.guard_parser import GuardParser
from oomproof.evidence.texts.kernel_parser import KernelParser
from oomproof.evidence.texts.line_prefixes import strip
from oomproof.evidence.texts.main_finding import settle
from oomproof.evidence.texts.text_case import read_texts

CORPUS = Path(__file__).parents[2] / "corpus" / "kernel"
SHARED = Path(__file__).parents[4] / "shared" / "corpus"
CASES = [json.loads(line) for line in (CORPUS / "truth.jsonl").read_text().splitlines()]
SIZES = {
    "total_vm_kb": "total_vm",
    "anon_rss_kb": "anon_rss",
    "file_rss_kb": "file_rss",
    "shmem_rss_kb": "shmem_rss",
}


def kernel(text: str) -> list[Finding]:
    parser = KernelParser("k")
    for number, line in enumerate(text.splitlines(), 1):
        parser.feed(number, line)
    return parser.finish()


def everything(text: str) -> list[Finding]:
    parser = GuardParser("k")
    for number, line in enumerate(text.splitlines(), 1):
        parser.feed(number, line)
    return [*kernel(text), *parser.finish()]


def answer(path: Path) -> dict[str, Any]:
    """What `oomproof why FILE` says, in the words of the truth file."""
    said = judge_texts(read_texts([str(path)]))
    victim = said.victim
    answered: dict[str, Any] = {"kind": said.cause, "kills": len(said.kills)}
    answered["victim_pid"] = victim.pid if victim else None
    answered["victim_name"] = victim.name if victim else None
    for key, name in SIZES.items():
        size = getattr(victim, f"{name}_bytes") if victim else None
        answered[key] = None if size is None else size / 1024
    return answered


@pytest.mark.parametrize("case", CASES, ids=[case["file"] for case in CASES])
def test_the_projects_own_texts(case: dict[str, Any]) -> None:
    answered = answer(CORPUS / case["file"])
    assert answered.pop("kind") in (case["kind"], *case.get("also", ()))
    kills = answered.pop("kills")
    assert kills == case.get("kills", kills)
    assert answered == {key: case[key] for key in answered}


def test_the_corpus_is_wide() -> None:
    kinds = {case["kind"] for case in CASES}
    assert len(CASES) >= 60 and sum(case["kind"] == "not-a-crash" for case in CASES) >= 15
    assert kinds >= {
        "oom-kill-global", "oom-kill-memcg", "oom-kill-cpuset", "oom-kill-mempolicy", "segfault", "gpf", "xid",
        "bus-error", "abort", "systemd-oomd", "earlyoom", "nohang", "oomd", "slurm-oom", "ray-oom", "jetsam",
        "killed-unknown", "other-error", "not-a-crash",
    }  # fmt: skip


@pytest.mark.skipif(not SHARED.is_dir(), reason="the published texts are not on this machine")
def test_published_texts() -> None:
    right = fields = wrong_fields = total = 0
    for line in (SHARED / "truth.jsonl").read_text().splitlines():
        case = json.loads(line)
        if not case["file"].startswith("kernel/"):
            continue
        answered = answer(SHARED / case["file"])
        total += 1
        kind = answered.pop("kind")
        answered.pop("kills")
        right += kind in (case["kind"], *case.get("also", ()))
        assert not (case["kind"] == "not-a-crash" and kind != "not-a-crash"), case["file"]
        fields += len(answered)
        wrong_fields += sum(case[key] != value for key, value in answered.items())
    assert right >= 0.95 * total and wrong_fields <= 0.01 * fields


REPORT = (CORPUS / "real-memcg-anon.txt").read_text()
FAMILY = (CORPUS / "real-memcg-family.txt").read_text()


def test_what_a_whole_report_tells() -> None:
    (found,) = kernel(REPORT)
    assert found.cause == "oom-kill-memcg" and found.strength == 1 and found.pids == (8035,)
    assert found.limit == 120 << 20 and found.cgroup == "/oomproof-corpus-kern"
    assert found.seconds == pytest.approx(6268.410489) and found.time == "6268.410489"
    assert found.kernel.page_size == 4096 and found.kernel.constraint == "CONSTRAINT_MEMCG"
    assert "120 MiB" in found.says and len(found.text) <= 600


def test_every_kill_is_told_oldest_first() -> None:
    found = kernel(FAMILY)
    assert [each.victim.pid for each in found if each.victim] == [8178, 8180, 8179]


def test_a_table_adds_sizes_apart_from_the_printed_ones() -> None:
    text = (CORPUS / "g-6.8-columns.txt").read_text()
    (found,) = kernel(text)
    assert found.victim is not None
    printed = (found.victim.anon_rss or 0) + (found.victim.shmem_rss or 0)
    assert found.kernel.table_rss == printed == 7309011 * 4096, (
        "one figure: without the pages of mapped files"
    )
    largest = found.kernel.jobs[0]
    assert (largest.pids, largest.name, largest.ram) == ((31207,), "pt_main_thread", printed)
    (found,) = kernel((CORPUS / "g-ppc64-64k.txt").read_text())
    assert found.kernel.page_size == 65536


def test_two_machines_in_one_log_keep_their_limits_apart() -> None:
    java, python = kernel((CORPUS / "m-interleaved-hosts.txt").read_text())
    assert java.cause == "oom-kill-global" and java.limit is None
    assert python.limit == 1 << 30 and python.cgroup == "/docker/77"


def test_the_killed_line_outranks_the_reaper_and_the_announcement() -> None:
    text = (
        "[1.000] Out of memory: Kill process 10 (sh) score 1 or sacrifice child\n"
        "[1.001] Killed process 11 (sleep) total-vm:8kB, anon-rss:4kB, file-rss:0kB\n"
        "[1.002] oom_reaper: reaped process 77 (docker), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB\n"
    )
    (found,) = kernel(text)
    assert found.victim is not None and (found.victim.pid, found.victim.name) == (11, "sleep")
    assert found.pids == (11, 10)


def test_a_kill_told_twice_is_one() -> None:
    assert len(kernel(REPORT + REPORT)) == 1


def test_a_reaper_alone_still_names_the_victim() -> None:
    (found,) = kernel("[9.000001] oom_reaper: reaped process 5 (a b), now anon-rss:0kB, file-rss:0kB")
    assert found.victim is not None and found.victim.name == "a b" and found.strength < 0.8


@pytest.mark.parametrize(
    "text",
    [
        "[1.000] Out of memory: Killed process 12\n(a b) total-vm:8kB, anon-rss:4kB,\nfile-rss:0kB, shmem-rss:0kB",
        "Warning OOMKilling Out of memory: Kill process 9 (x) score 9 or sacrifice child Killed process 12 (a b) "
        "total-vm:8kB, anon-rss:4kB, file-rss:0kB, shmem-rss:0kB",
        "> Out of memory: Killed\n> process 12 (a b) total-vm:8kB, anon-rss:4kB, file-rss:0kB, shmem-rss:0kB",
        " * Out of memory: Killed process 12 (a b)\n *    total-vm:8kB, anon-rss:4kB, file-rss:0kB, shmem-rss:0kB",
    ],
)
def test_lines_broken_and_joined(text: str) -> None:
    (found,) = kernel(text)
    assert found.cause == "oom-kill-global"
    assert found.victim == Sizes(12, "a b", 8192, 4096, 0, 0)


def test_a_report_quoted_and_cut_behind_its_first_words() -> None:
    (found,) = kernel(
        "> [9.500000] worker invoked oom-killer:\n> gfp_mask=0x24201ca, order=0,\n> oom_score_adj=0"
    )
    assert found.cause == "oom-kill-global" and not found.pids


def test_openvz() -> None:
    (found,) = kernel(
        "Out of memory in UB 101: OOM killed process 2345 (mysqld) score 0 vm:393892kB, rss:38220kB"
    )
    assert found.cause == "oom-kill-memcg" and found.victim == Sizes(2345, "mysqld")


def test_the_gpus_fault_is_the_root_of_its_programs() -> None:
    text = "NVRM: Xid (PCI:0000:01:00): 31, pid=7, name=a, MMU Fault\na[7]: segfault at 0 ip 0 sp 0 error 4 in b[0+1]\n"
    found = settle(kernel(text))
    assert found is not None and found.cause == "xid"


def test_a_process_named_only_by_the_drivers_clean_up() -> None:
    error = "NVRM: Xid (PCI:0000:01:00): 13, Graphics Exception: ESR 0x50=0x11\n"
    found = settle(kernel(error + "NVRM: Xid (PCI:0000:01:00): 43, pid=7, name=a, channel 0x30\n"))
    assert found is not None and found.kernel.xid == 13 and found.victim == Sizes(7, "a")
    other_card = settle(kernel(error + "NVRM: Xid (PCI:0000:02:00): 43, pid=7, name=a, channel 0x30\n"))
    assert other_card is not None and other_card.victim is None


@pytest.mark.parametrize(
    ("line", "cause", "pid", "name"),
    [
        ("> VM: killing process watcher", "oom-kill-global", None, "watcher"),
        ("[ 1234.567890] VM: killing process rsync(812)", "oom-kill-global", 812, "rsync"),
        ("sim[...] general protection ip:40142f", "gpf", None, "sim"),
        ("sim[PID]: segfault at 0 ip 0 sp 0 error 4 in b[0+1]", "segfault", None, "sim"),
    ],
)
def test_victims_without_a_number(line: str, cause: str, pid: int | None, name: str) -> None:
    (found,) = kernel(line)
    assert (found.cause, found.victim) == (cause, Sizes(pid, name))


def test_the_kernels_source_kills_nobody() -> None:
    assert kernel('        printk("VM: killing process %s\\n", tsk->comm);') == []


def test_a_cgroup_named_outranks_a_wrong_constraint() -> None:
    text = (
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/t,task_memcg=/t,"
        "task=a,b,pid=7,uid=0"
    )
    (found,) = kernel(text)
    assert found.cause == "oom-kill-memcg" and found.victim is not None and found.victim.name == "a,b"


LOCAL = time.mktime((2024, 1, 2, 3, 4, 5, 0, 0, -1))  # dmesg -T writes the time of the wall, without its zone


@pytest.mark.parametrize(
    ("line", "time_", "seconds", "tag", "message"),
    [
        ("[12345.678901] x y", "12345.678901", 12345.678901, None, "x y"),
        ("<6>[    1.500000] x", "1.500000", 1.5, None, "x"),
        ("6,1234,5678000,-;x", "5678000", 5.678, None, "x"),
        ("[Tue Jan  2 03:04:05 2024] x", "Tue Jan  2 03:04:05 2024", LOCAL, None, "x"),
        ("Jan  2 03:04:05 host kernel: [ 1.500000] x: y", "Jan  2 03:04:05", 1.5, "kernel", "x: y"),
        ("Jan 02 03:04:05 kernel: memory: usage", "Jan 02 03:04:05", None, "kernel", "memory: usage"),
        (
            "2024-01-02T03:04:05+0000 host systemd[1]: x",
            "2024-01-02T03:04:05+0000",
            1704164645.0,
            "systemd[1]",
            "x",
        ),
        ("2024-01-02T03:04:05.250000000Z x", "2024-01-02T03:04:05.250000000Z", 1704164645.25, None, "x"),
        ("[  589.494216] host kernel: x", "589.494216", 589.494216, "kernel", "x"),
        ("kern  :err   : [ 1.500000] x", "1.500000", 1.5, None, "x"),
        ("python3[5]: segfault at 0", None, None, None, "python3[5]: segfault at 0"),
        ("> > [ 1.500000] x", "1.500000", 1.5, None, "x"),
        ("plain words: here", None, None, None, "plain words: here"),
        ("", None, None, None, ""),
    ],
)
def test_prefixes(line: str, time_: str | None, seconds: float | None, tag: str | None, message: str) -> None:
    found = strip(line)
    assert (found.time, found.tag, found.message) == (time_, tag, message)
    assert found.seconds == (None if seconds is None else pytest.approx(seconds, rel=0, abs=0.001))


def test_a_journal_object() -> None:
    record = {
        "MESSAGE": list(b"a\xff"),
        "__REALTIME_TIMESTAMP": "1704164645000000",
        "SYSLOG_IDENTIFIER": "x",
        "_PID": "5",
    }
    found = strip(json.dumps(record))
    assert found.seconds == 1704164645 and found.tag == "x[5]" and found.message.startswith("a")
    assert strip('{"MESSAGE": null}').message == "" and strip("{broken").message == "{broken"


ALL = "\n".join((CORPUS / case["file"]).read_text() for case in CASES)
PIECES = ALL.splitlines()


@settings(max_examples=60)
@given(st.data())
def test_any_cut_or_mix_is_survived(data: st.DataObject) -> None:
    lines = data.draw(st.lists(st.sampled_from(PIECES), max_size=60))
    cuts = data.draw(st.lists(st.integers(0, 400), min_size=len(lines), max_size=len(lines)))
    noise = data.draw(st.lists(st.text(max_size=40), max_size=5))
    text = "\n".join(
        [line[:cut] if cut < 200 else line for line, cut in zip(lines, cuts, strict=True)] + noise
    )
    for found in everything(text):
        assert len(found.text) <= 600 and 0 < found.strength <= 1 and found.line >= 1


@settings(max_examples=40)
@given(st.integers(0, len(REPORT)), st.integers(0, len(REPORT)))
def test_a_report_cut_anywhere_names_no_other_victim(start: int, stop: int) -> None:
    for found in kernel(REPORT[start:stop]):
        if found.cause.startswith("oom-kill") and found.victim and found.victim.pid is not None:
            assert "8035".startswith(str(found.victim.pid))


def test_time_grows_with_the_text_and_memory_does_not() -> None:
    lines = [
        f"[{number}.000001] Out of memory: Killed process {number} (p) total-vm:{number}kB, anon-rss:1kB, file-rss:0kB"
        if number % 2
        else f"[ {number}] 1000 5 6 7 8 0 0 [[[[((((" * 3
        for number in range(1, 8_001)
    ]

    def seconds(count: int) -> float:
        begun = time.process_time()
        kernel("\n".join(lines[:count]))
        return time.process_time() - begun

    seconds(1_000)
    small, large = min(seconds(2_000) for _ in range(2)), seconds(8_000)
    assert large < 12 * small + 0.5  # four times the text
    tracemalloc.start()
    fed(1_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000 * 6_500, "bytes a kill, of which there are at most"
    assert len(fed(12_000).finish()) <= 10_000


def fed(kills: int) -> KernelParser:
    parser = KernelParser("k")
    for number in range(kills):
        killed = f"Killed process {number} (p) total-vm:{number}kB, anon-rss:1kB"
        parser.feed(number + 1, f"[1.000001] Out of memory: {killed}")
    return parser


@pytest.mark.parametrize(
    ("head", "unit", "tail"),
    [
        ("", "(", ""),
        ("", "[", ""),
        ("Killed process 1 ", "(", ""),
        ("", "a ", ""),
        ("x invoked oom-killer: ", "order=", ""),
        ("", "segfault at ", ""),
        ("oom-kill:constraint=CONSTRAINT_NONE,", "task=", ""),
        ("", "error 4 in ", "segfault"),
        ("", "a[1", " segfault traps: "),
    ],
)
def test_a_long_line_takes_linear_time(head: str, unit: str, tail: str) -> None:
    def seconds(length: int) -> float:
        begun = time.process_time()
        everything(head + unit * (length // len(unit)) + tail)
        return time.process_time() - begun

    seconds(1_000)
    assert seconds(20_000) < 3 * 4 * min(seconds(5_000), seconds(5_000)) + 0.3  # 16 times, were it quadratic


@pytest.mark.parametrize(
    ("trace", "cause"),
    [
        ("dump_header+0x4a/0x201\n{}out_of_memory.cold+0xa/0x7e\n{}mem_cgroup_out_of_memory+0x13a/0x150", "oom-kill-memcg"),
        ("dump_header from oom_kill_process+0x23c/0x248\n{}oom_kill_process from out_of_memory+0x218/0x34c", "oom-kill-global"),
        ("[<ffff>] dump_header+0x8e/0x214\n{}[<ffff>] oom_kill_process+0x24e/0x3b0", "oom-kill-global"),
    ],
)  # fmt: skip
def test_a_call_trace_alone_tells_of_a_kill(trace: str, cause: str) -> None:
    stamp = "[  503.276706] "
    findings = kernel(stamp + trace.replace("{}", stamp))
    assert [(each.cause, each.strength < 0.7) for each in findings] == [(cause, True)]


def test_a_table_that_a_patch_shows_is_no_kill() -> None:
    table = "[ 1630.90] Tasks state (memory values in pages):\n[ 1630.91] [  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name\n"
    row = "[ 1630.92] [    156]     0   156   153531   153345  1269760        0             0 mm_test\n"
    assert kernel(table + row)
    assert not kernel(f"Example of oom including the new fields:\n{table}{row}")


def test_sizes_that_a_paste_put_commas_into() -> None:
    line = "Out of memory: Killed process 7899 (python) total-vm:26,184,840kB, anon-rss:15,370,088kB, file-rss:0kB, shmem-rss:0kB"
    (found,) = kernel(line)
    assert found.victim == Sizes(7899, "python", 26184840 * 1024, 15370088 * 1024, 0, 0)


def test_a_trace_from_where_a_page_was_charged_is_a_cgroups() -> None:
    (found,) = kernel(
        "[1.0] php invoked oom-killer: gfp_mask=0xd0, order=0, oom_score_adj=0\n"
        "[1.1]  [<ffffffff8115a32e>] oom_kill_process+0x24e/0x3b0\n"
        "[1.2]  [<ffffffff811bd1ce>] __mem_cgroup_try_charge+0xb0/0xc0\n"
    )
    assert found.cause == "oom-kill-memcg"


def test_figures_across_a_screens_width() -> None:
    wide = " " * 165
    (found,) = kernel(
        f"[2.0] Out of memory: Killed process 25315 (python3) total-vm:53312244{wide}kB, anon-rss:31451456kB, "
        "file-rss:74816kB, shmem-rss:12296kB, UID:0 oom_score_adj:0"
    )
    assert found.victim is not None
    assert (found.victim.total_vm, found.victim.anon_rss) == (53312244 << 10, 31451456 << 10)


def test_a_sentence_about_the_killer_is_no_report() -> None:
    assert not kernel(
        "we could see that it has invoked oom-killer: which is a thing that kernels do at times"
    )
