"""By hand, on a machine with an NVIDIA GPU (driver 570 or newer) and PyTorch: jobs paused with their VRAM given back.

    PYTHONPATH=src python tests/gpu/pause.py [RESULTS.json]

Needs only the standard library, pynvml (nvidia-ml-py), psutil and torch. About five minutes. Every wait has a deadline.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

GIB = 1 << 30
OURS = [sys.executable, "-m", "oomproof.cli.main"]

# A training loop that ends with a hash of its weights; deterministic, so that two runs must agree bit for bit.
TRAIN = """
import hashlib, os, sys, time
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
import torch
torch.use_deterministic_algorithms(True)
torch.manual_seed(7)
steps, gib = int(sys.argv[1]), float(sys.argv[2])
ballast = torch.full((int(gib * 2**28),), 3.0, device="cuda") if gib else None
model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
host = torch.Generator().manual_seed(11)
for step in range(steps):
    batch = torch.randn(256, 1024, generator=host).cuda()
    loss = (model(batch) - batch.roll(1, 1)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    if step % 20 == 0:
        print("step", step, flush=True)
    time.sleep(float(sys.argv[3]))
whole = ballast is None or float(ballast.min()) == float(ballast.max()) == 3.0
digest = hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())).hexdigest()
print("weights", digest, "ballast whole:", whole, flush=True)
"""
RANKS = """
import os, sys, time, torch
pids = []
for rank in range(2):
    pid = os.fork()
    if pid == 0:
        x = torch.full((2**28,), float(rank + 1), device="cuda"); print("rank", rank, "ready", flush=True)
        end = time.time() + float(sys.argv[1])
        while time.time() < end:
            x.mul_(1.0); torch.cuda.synchronize(); time.sleep(0.01)
        print("rank", rank, "whole:", float(x.double().sum()) == (rank + 1) * 2**28, flush=True); os._exit(0)
    pids.append(pid)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids))
"""
BALLAST = "import sys, time, torch; x = torch.empty(int(float(sys.argv[1]) * 2**30), dtype=torch.uint8, device='cuda'); print('held', flush=True); time.sleep(600)"

failures: list[str] = []
results: dict[str, Any] = {}
environment = {**os.environ}


def check(name: str, good: bool, detail: object = "") -> None:
    print(f"{'ok  ' if good else 'FAIL'} {name}: {detail}", flush=True)
    results[name] = {"ok": bool(good), "detail": str(detail)}
    if not good:
        failures.append(name)


def until(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.05)
    raise TimeoutError(f"waited {seconds:.0f} s for {what}")


def ours(*words: str, seconds: float = 180.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*OURS, *words], env=environment, capture_output=True, text=True, timeout=seconds)


def start(
    name: str, *options: str, program: str, arguments: list[str], prefix: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    command = [
        *prefix,
        *OURS,
        "run",
        "--name",
        name,
        *options,
        "--",
        sys.executable,
        "-W",
        "ignore",
        "-u",
        "-c",
        program,
        *arguments,
    ]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def attempt(name: str) -> Path:
    def find() -> Path | None:
        for path in Path(environment["XDG_STATE_HOME"]).glob("oomproof/runs/*/run.json"):
            if json.loads(path.read_text()).get("name") == name:
                return path.parent / "1"
        return None

    return until(find, f"the run {name}")


def printed(name: str, text: str, seconds: float = 120.0) -> str:
    log = attempt(name) / "output.log"
    until(lambda: log.exists() and text in log.read_text(), f"{text!r} of {name}", seconds)
    return log.read_text()


def card() -> tuple[int, int]:
    """(used, total) bytes."""
    out = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.used,memory.total", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
    ).stdout.splitlines()[0]
    used, total = (int(word) << 20 for word in out.split(","))
    return used, total


def ended(process: subprocess.Popen[str], seconds: float = 180.0) -> tuple[int, str]:
    _, said = process.communicate(timeout=seconds)
    return process.returncode, said


def bit_equal() -> None:
    """Ten pauses at random moments: the same weights as undisturbed."""
    steps = ["900", "2", "0.01"]
    plain = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TRAIN, *steps], capture_output=True, text=True
    ).stdout
    wanted = plain.split("weights", 1)[1].strip()
    job = start("equal", program=TRAIN, arguments=steps)
    printed("equal", "step 20")
    freed, times = [], []
    for _ in range(10):
        time.sleep(random.uniform(0.05, 0.6))
        before = card()[0]
        begun = time.monotonic()
        froze = ours("pause", "equal", "--gpu")
        middle, freed_to = time.monotonic(), card()[0]
        thawed = ours("resume", "equal")
        times.append((round(middle - begun, 2), round(time.monotonic() - middle, 2)))
        freed.append(before - freed_to)
        if froze.returncode or thawed.returncode:
            check("freeze --gpu and thaw", False, (froze.stderr[-500:], thawed.stderr[-500:]))
            break
    print(froze.stderr, thawed.stderr)
    status, _ = ended(job)
    got = printed("equal", "weights").split("weights", 1)[1].strip()
    check(
        "bit-equal weights after ten pauses",
        status == 0 and got == wanted and "True" in got,
        (status, got, wanted),
    )
    check("each pause freed the VRAM", min(freed) > 2 * GIB, [round(size / GIB, 2) for size in freed])
    results["pause_and_restore_seconds"] = times
    print("seconds of freeze --gpu and thaw:", times)


def speed(sizes: tuple[int, ...] = (8, 24)) -> None:
    """GB/s out and back, by the driver alone."""
    from oomproof.machine import cuda_checkpoint

    rows = []
    for gib in sizes:
        job = subprocess.Popen([sys.executable, "-c", BALLAST, str(gib)], stdout=subprocess.PIPE, text=True)
        assert job.stdout is not None
        job.stdout.readline()
        held = card()[0]
        for _ in range(2):
            out = cuda_checkpoint.ask("pause", [job.pid], 120)
            back = cuda_checkpoint.ask("resume", [job.pid], 120)
            rows.append(
                {"gib": round(held / GIB, 1), "out_s": out.seconds, "back_s": back.seconds,
                 "out_gib_s": round(held / GIB / out.seconds, 2), "back_gib_s": round(held / GIB / back.seconds, 2),
                 "problem": out.problem or back.problem}
            )  # fmt: skip
            print(rows[-1], flush=True)
        job.kill()
        job.wait()
    results["speed"] = rows
    check("pause and resume at every size", all(row["problem"] is None for row in rows))


def share() -> None:
    """Two jobs of 60 % of a card each take turns, and both finish. A ballast makes the card smaller."""
    used, total = card()
    ballast = subprocess.Popen(
        [sys.executable, "-c", BALLAST, str((total - used) / GIB - 25)], stdout=subprocess.PIPE, text=True
    )
    assert ballast.stdout is not None
    ballast.stdout.readline()
    free = (total - card()[0]) / GIB
    each = f"{free * 0.6:.1f}G"
    held = str(round(free * 0.6 - 2, 1))
    options = ("--gpu-share", "--gpu-need", each, "--gpu-turn", "12")
    begun = time.monotonic()
    first = start("first", *options, program=TRAIN, arguments=["1500", held, "0.01"])
    printed("first", "step 20")
    second = start("second", *options, program=TRAIN, arguments=["1500", held, "0.01"])
    statuses = [ended(first, 400), ended(second, 400)]
    took = time.monotonic() - begun
    ballast.kill()
    ballast.wait()
    for status, said in statuses:
        print(status, said, flush=True)
    outs = [
        (attempt(name) / "output.log").read_text().rpartition("weights")[2].strip()
        for name in ("first", "second")
    ]
    check(
        "both jobs of 60 % finished",
        [status for status, _ in statuses] == [0, 0],
        (each, [s for s, _ in statuses]),
    )
    check("with whole and equal data", outs[0] == outs[1] and "True" in outs[0], outs)
    check(
        "they took turns",
        all("paused: its turn" in said or "waiting for GPU" in said for _, said in statuses),
    )
    results["share"] = {"free_gib": round(free, 1), "each": each, "seconds": round(took, 1)}


def lost_guard(while_switching: bool = False) -> None:
    """A run paused for its turn loses its guard: the keeper gives it the card again as soon as there is room.

    ``while_switching``: just when the other one gives the card back for it, and would take it again at once.
    """
    one, two = ("orphan-2", "other-2") if while_switching else ("orphan", "other")
    until(lambda: card()[0] < GIB, "an empty card")
    used, total = card()
    held = str(round((total - used) / GIB - 30, 1))
    ballast = subprocess.Popen([sys.executable, "-c", BALLAST, held], stdout=subprocess.PIPE, text=True)
    assert ballast.stdout is not None
    ballast.stdout.readline()
    options = ("--gpu-share", "--gpu-need", "20G", "--gpu-turn", "4")
    orphan = start(
        one, *options, program=TRAIN, arguments=["2500" if while_switching else "700", "16", "0.01"]
    )
    printed(one, "step 20")
    other = start(
        two, *options, program=TRAIN, arguments=["2500" if while_switching else "700", "16", "0.01"]
    )
    try:
        until(
            lambda: (attempt(one) / "gpu_paused.json").exists() and card()[0] < total - 20 * GIB,
            "the pause",
            60,
        )
        printed(two, "step 20")
        if while_switching:
            until(lambda: (attempt(two) / "gpu_paused.json").exists(), "the other's pause", 60)
        orphan.kill()
        orphan.wait()
        printed(one, "weights", 200)
        good = "whole: True" in printed(one, "weights") and ended(other)[0] == 0
    except TimeoutError as error:
        good = False
        print(error)
    ballast.kill()
    ballast.wait()
    told = (attempt(one) / "keeper.jsonl").read_text()[-400:], (attempt(one) / "keeper.err").read_text()[:600]
    check(f"a killed guard leaves no job paused{', while switching' if while_switching else ''}", good, told)


def lost_guard_in_a_switch() -> None:
    lost_guard(while_switching=True)


def paused_by_hand() -> None:
    """A run paused by hand stays so when its guard is killed, and thaws by hand."""
    job = start("by-hand", program=TRAIN, arguments=["300", "2", "0.01"])
    printed("by-hand", "step 20")
    froze = ours("pause", "by-hand", "--gpu")
    job.kill()
    job.wait()
    time.sleep(7)
    still = "weights" not in (attempt("by-hand") / "output.log").read_text()
    thawed = ours("resume", "by-hand")
    text = printed("by-hand", "weights", 60)
    check(
        "frozen by hand, thawed by hand, without a guard",
        still and "whole: True" in text,
        (froze.stderr[-200:], thawed.stderr[-200:]),
    )


def keeper_of(name: str) -> int:
    return int(json.loads((attempt(name) / "started.json").read_text())["keeper"]["pid"])


def both_killed() -> None:
    """Paused by hand, then guard and keeper are killed: `thaw` still gives the job its card and lets it finish."""
    job = start("nobody", program=TRAIN, arguments=["300", "2", "0.01"])
    printed("nobody", "step 20")
    froze = ours("pause", "nobody", "--gpu")
    without = card()[0]
    job.kill()
    os.kill(keeper_of("nobody"), signal.SIGKILL)
    job.wait()
    leader = int(json.loads((attempt("nobody") / "started.json").read_text())["job"]["pid"])
    thawed = ours("resume", "nobody")
    back = card()[0]
    try:
        until(lambda: not os.path.exists(f"/proc/{leader}"), "the end of the job", 60)
    except TimeoutError as error:
        print(error)
    told = ours("why", "nobody").stdout
    check(
        "both processes killed while paused: thaw restores the card",
        froze.returncode == thawed.returncode == 0 and back - without > 2 * GIB,
        (froze.stderr[-200:], thawed.stderr[-300:], without >> 20, back >> 20, told[-400:]),
    )


def keeper_killed() -> None:
    """The keeper is killed: the front goes on with the job, pauses it with its card, and gets the real status."""
    job = start("no-keeper", program=TRAIN, arguments=["500", "2", "0.01"])
    printed("no-keeper", "step 20")
    os.kill(keeper_of("no-keeper"), signal.SIGKILL)
    printed("no-keeper", "step 60")
    froze, freed = ours("pause", "no-keeper", "--gpu"), card()[0]
    thawed = ours("resume", "no-keeper")
    status, said = ended(job)
    check(
        "keeper killed: paused with its card, finished, real status",
        froze.returncode == thawed.returncode == status == 0
        and "whole: True" in printed("no-keeper", "weights")
        and freed < 2 * GIB,
        (froze.stderr[-300:], thawed.stderr[-300:], status, freed >> 20, said[-300:]),
    )


def ranks() -> None:
    """Two CUDA processes of one job: both or none."""
    job = start("ranks", program=RANKS, arguments=["25"])
    printed("ranks", "rank 0 ready")
    printed("ranks", "rank 1 ready")
    time.sleep(1)
    before = card()[0]
    froze = ours("pause", "ranks", "--gpu")
    freed = before - card()[0]
    thawed = ours("resume", "ranks")
    status, _ = ended(job)
    text = printed("ranks", "rank 1 whole")
    check(
        "all processes of a job",
        status == 0 and text.count("whole: True") == 2 and freed > 2 * GIB,
        (status, round(freed / GIB, 2), froze.stderr[-300:], thawed.stderr[-300:]),
    )


def no_room() -> None:
    """A restore that finds no memory says so, loses nothing, and works later."""
    job = start("squeezed", program=TRAIN, arguments=["400", "8", "0.01"])
    printed("squeezed", "step 20")
    ours("pause", "squeezed", "--gpu")
    used, total = card()
    thief = subprocess.Popen(
        [sys.executable, "-c", BALLAST, str((total - used) / GIB - 4)], stdout=subprocess.PIPE, text=True
    )
    assert thief.stdout is not None
    thief.stdout.readline()
    refused = ours("resume", "squeezed")
    thief.kill()
    thief.wait()
    time.sleep(1)
    again = ours("resume", "squeezed")
    status, _ = ended(job)
    check(
        "no room is said",
        refused.returncode != 0 and "are free" in refused.stderr,
        refused.stderr[-400:],
    )
    check(
        "and nothing is lost by it",
        again.returncode == 0 and status == 0 and "whole: True" in printed("squeezed", "weights"),
        (again.stderr[-300:], status),
    )


def restore_without_room() -> None:
    """What the driver itself does when there is none: asked with a short deadline, the room comes later."""
    from oomproof.machine import cuda_checkpoint

    job = subprocess.Popen([sys.executable, "-c", BALLAST, "8"], stdout=subprocess.PIPE, text=True)
    assert job.stdout is not None
    job.stdout.readline()
    cuda_checkpoint.ask("pause", [job.pid], 60)
    used, total = card()
    thief = subprocess.Popen(
        [sys.executable, "-c", BALLAST, str((total - used) / GIB - 4)], stdout=subprocess.PIPE, text=True
    )
    assert thief.stdout is not None
    thief.stdout.readline()
    without = cuda_checkpoint.ask("resume", [job.pid], 20)
    thief.kill()
    thief.wait()
    time.sleep(3)
    states = subprocess.run(
        [sys.executable, cuda_checkpoint.__file__, "find", str(job.pid)],
        capture_output=True,
        text=True,
        timeout=20,
    ).stdout
    again = cuda_checkpoint.ask("resume", [job.pid], 20)
    alive = job.poll()
    job.kill()
    check("what the driver does without room (for the record)", True, (without, states, again, alive))


def refused() -> None:
    """What the job's limit cannot hold is refused before anything is touched."""
    job = start("tight", "--limit", "6G", program=TRAIN, arguments=["500", "8", "0.01"])
    printed("tight", "step 20")
    answer = ours("pause", "tight", "--gpu")
    status, _ = ended(job)
    check(
        "refused when host memory would not hold it",
        answer.returncode != 0 and "would go to" in answer.stderr and status == 0,
        (answer.stderr[-400:], status),
    )


def stopped_while_paused() -> None:
    job = start("ended", program=TRAIN, arguments=["4000", "1", "0.01"])
    printed("ended", "step 20")
    ours("pause", "ended", "--gpu")
    answer = ours("stop", "ended", "--grace", "5")
    status, _ = ended(job)
    check(
        "stop works on a paused job", answer.returncode == 0 and status != 0, (answer.stderr[-300:], status)
    )


def as_user() -> None:
    """Without any privilege: job, guard and driver calls as uid 1000."""
    home = tempfile.mkdtemp()
    os.chmod(home, 0o777)
    before = dict(environment)
    environment.update(XDG_STATE_HOME=f"{home}/state", XDG_RUNTIME_DIR="", HOME=home)
    prefix = (
        "setpriv",
        "--reuid=1000",
        "--regid=1000",
        "--clear-groups",
        "--no-new-privs",
        "--bounding-set=-all",
    )
    try:
        job = start("plain-user", program=TRAIN, arguments=["500", "2", "0.01"], prefix=prefix)
        printed("plain-user", "step 20")
        froze = subprocess.run(
            [*prefix, *OURS, "pause", "plain-user", "--gpu"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        freed = card()[0]
        thawed = subprocess.run(
            [*prefix, *OURS, "resume", "plain-user"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        status, _ = ended(job)
        check(
            "as an ordinary user",
            froze.returncode == thawed.returncode == status == 0 and freed < GIB,
            (froze.stderr[-400:], thawed.stderr[-300:], status, freed >> 20),
        )
    finally:
        environment.clear()
        environment.update(before)


def main() -> int:
    environment["XDG_STATE_HOME"] = tempfile.mkdtemp()
    environment["XDG_RUNTIME_DIR"] = tempfile.mkdtemp()
    target = sys.argv[1] if len(sys.argv) > 1 else None
    chosen = sys.argv[2:]
    for part in (
        bit_equal,
        ranks,
        no_room,
        refused,
        stopped_while_paused,
        paused_by_hand,
        both_killed,
        keeper_killed,
        share,
        lost_guard,
        lost_guard_in_a_switch,
        as_user,
        speed,
    ):
        if chosen and part.__name__ not in chosen:
            continue
        begun = time.monotonic()
        try:
            part()
        except Exception as error:
            check(part.__name__, False, f"{type(error).__name__}: {error}")
        print(f"--- {part.__name__}: {time.monotonic() - begun:.1f} s", flush=True)
        if target:
            Path(target).write_text(json.dumps(results, indent=1))
    print("FAILED: " + ", ".join(failures) if failures else "all checks passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
