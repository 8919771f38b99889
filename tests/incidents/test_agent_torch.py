"""The agent beside PyTorch: what it tells of a loop, and that compiled graphs and loader workers stay as they were."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import DEADLINE, Lab, until

from oomproof.recording.reader import open_recording

pytest.importorskip("torch", reason="the extra [ml] is not installed")
PYTHON = sys.executable
pytestmark = pytest.mark.timeout(240)

GRAPHS = """
import json, sys, torch
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def forward(x):
    return model(x).sum()

def whole_step(x):
    model.train()
    optimizer.zero_grad()
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    return loss

def evaluate(x):
    model.eval()
    with torch.no_grad():
        return model(x).sum()

torch._dynamo.config.error_on_recompile = True
compiled = torch.compile(forward, backend="eager", fullgraph=True)
for _ in range(3):  # the first call comes before any forward that is not compiled
    compiled(torch.randn(2, 4)).backward()
torch._dynamo.config.error_on_recompile = False
own = torch._dynamo.variables.nn_module.unpatched_nn_module_call_impl is torch.nn.Module._call_impl
found = {"nn.Module as the compiler knows it": own}
for function in (forward, whole_step, evaluate):
    torch._dynamo.reset()
    told = torch._dynamo.explain(function)(torch.randn(2, 4))
    found[function.__name__] = [told.graph_count, told.graph_break_count]
for _ in range(2):
    torch._dynamo.reset()
    torch.compile(forward, backend="eager", fullgraph=True)(torch.randn(2, 4))
print(json.dumps([found, "_oomproof.agent.trainers.phases_torch" in sys.modules]))
"""


def test_compiled_graphs_are_the_same(lab: Lab) -> None:
    plain = subprocess.run([PYTHON, "-c", GRAPHS], capture_output=True, text=True, timeout=200)
    watched = lab.run("run", "--", PYTHON, "-c", GRAPHS)
    without, with_agent = json.loads(plain.stdout), json.loads(watched.stdout)
    assert (without[1], with_agent[1]) == (False, True)
    assert without[0] == with_agent[0]


PHASES = """
import time, torch, oomproof
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
held_out = DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=4, num_workers=1)
def pause(): time.sleep(0.12)
for epoch in range(2):
    model.train()
    for _ in range(3):
        model(torch.randn(2, 4)).sum().backward(); optimizer.step(); pause()
    if epoch == 0:
        model.eval()
    with torch.no_grad():  # the second time nobody calls eval()
        for (x,) in held_out:
            model(x); pause()
    torch.save(model.state_dict(), "model.pt")
with oomproof.phase("export"):
    pause()
torch.load("model.pt")
"""


def test_the_phases_of_a_plain_loop(lab: Lab, tmp_path: Path) -> None:
    done = lab.run("run", "--name", "phases", "--", PYTHON, "-c", PHASES, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = lab.folder_of("phases")
    assert folder is not None
    rows = open_recording(folder / "1" / "recording.sqlite").rows(
        "SELECT name, step, anon FROM phase ORDER BY t"
    )
    # a save takes less than the twentieth of a second in which two changes are told as one
    names = [str(name) for (name, _, _) in rows if name != "save"]
    order = [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]
    assert order[:6] == ["load", "train", "eval", "train", "eval", "export"]
    assert max(step for _, step, _ in rows if isinstance(step, int)) == 6
    assert all(anon > 50 << 20 for _, _, anon in rows if isinstance(anon, int))
    assert (folder / "1" / "agent").stat().st_mode & 0o077 == 0
    verdict = lab.verdict("phases")["verdict"]
    assert (verdict["cause"], verdict["step"]) == ("finished", 6)


FIRST_FORWARD = """
import os, signal, sys, torch
class Net(torch.nn.Linear):
    def forward(self, x):
        if self.training:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)
def position():
    return open(f"{os.environ['OOMPROOF_AGENT']}/{os.getpid()}-now.txt").read().split()[4]
model = Net(4, 1)
torch.optim.Adam(model.parameters())
torch.nn.Upsample(scale_factor=2)(torch.ones(1, 1, 4))
print("after a transform without weights:", position())
if sys.argv[1] == "eval first":
    model.eval()
    with torch.no_grad():
        model(torch.ones(2, 4))
    print("evaluating:", position())
    model.train()
model(torch.ones(2, 4))
"""


@pytest.mark.parametrize("how", ["eval first", "at once"])
def test_the_first_forward_ends_loading(lab: Lab, how: str) -> None:
    """nanoGPT's way: no DataLoader, and memory runs out in the first training forward, before any backward or step."""
    done = lab.run("run", "--name", "first", "--", PYTHON, "-c", FIRST_FORWARD, how)
    evaluating = "evaluating: eval\n" if how == "eval first" else ""
    assert done.stdout == f"after a transform without weights: load\n{evaluating}", done.stderr
    assert lab.verdict("first")["verdict"]["phase"] == "train"


WORKERS = """
import multiprocessing, sys, torch
from torch.utils.data import DataLoader
class Data(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, n):
        if n == 40 and sys.argv[1] == "die":
            import os, signal
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.full((4,), float(n))
if __name__ == "__main__":
    total = 0.0
    for batch in DataLoader(Data(), batch_size=4, num_workers=2, multiprocessing_context=sys.argv[2]):
        total += float(batch.sum())
    print("total", total)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_loader_workers_live_as_before(lab: Lab, tmp_path: Path, method: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(WORKERS)
    done = lab.run("run", "--name", "workers", "--", PYTHON, str(script), "live", method)
    assert (done.returncode, done.stdout) == (0, "total 8064.0\n"), done.stderr
    folder = lab.folder_of("workers")
    assert folder is not None
    rows = open_recording(folder / "1" / "recording.sqlite").rows("SELECT kind, text FROM event")
    assert [row for row in rows if row[0] in ("trouble", "exception", "agent:agent-failed")] == []


def test_a_killed_loader_worker_is_named(lab: Lab, tmp_path: Path) -> None:
    """Often the parent only sees a broken connection, or loses its traceback: the verdict must not depend on that."""
    script = tmp_path / "script.py"
    script.write_text(WORKERS)
    for turn in range(3):
        done = lab.run("run", "--name", f"worker{turn}", "--", PYTHON, str(script), "die", "fork")
        assert done.returncode == 1
        verdict = lab.verdict(f"worker{turn}")
        assert verdict["verdict"]["cause"] == "dataloader-killed", done.stderr
        assert any(
            each["id"].startswith(("agent.exception", "agent.worker-lost")) for each in verdict["evidence"]
        )


def test_a_rank_that_crashes_is_told_with_its_line(lab: Lab, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import ctypes, os, torch\nimport torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "if dist.get_rank() == 1:\n    ctypes.string_at(0)\ndist.barrier()\n"
    )
    from test_agent_programs import free_port

    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    done = lab.run("run", "--name", "rank", "--", PYTHON, *words, str(script))
    assert done.returncode == 1
    verdict = lab.verdict("rank")["verdict"]
    assert verdict["cause"] == "segfault" and f"{script}:5" in verdict["headline"]


def test_no_agent_and_absent_agents_are_said(lab: Lab) -> None:
    code = "import os, sys; print('_oomproof.agent' in sys.modules, os.environ.get('PYTHONPATH'))"
    environment = {**lab.environment, "PYTHONPATH": "/mine"}
    lab.environment = environment
    assert lab.run("run", "--name", "off", "--no-agent", "--", PYTHON, "-c", code).stdout == "False /mine\n"
    assert "agent  off (--no-agent)" in lab.run("runs", "show", "off").stdout
    lab.run("run", "--name", "isolated", "--", PYTHON, "-I", "-c", code)
    assert "agent  absent" in lab.run("runs", "show", "isolated").stdout
    lab.run("run", "--name", "shell", "--", "sh", "-c", "true")
    assert "agent  absent" in lab.run("runs", "show", "shell").stdout
    first, path = lab.run("run", "--name", "on", "--", PYTHON, "-c", code).stdout.split()
    assert first == "True" and path.split(os.pathsep)[1] == "/mine"
    assert "agent  in 1 Python process" in lab.run("runs", "show", "on").stdout


TELLING = """
import os, time, oomproof
for number in range(10_000):
    with oomproof.phase(f"turn {number}"):
        time.sleep(0.2)
    if os.path.exists("enough"):
        break
"""


def test_a_guard_that_is_taken_up_again_hears_the_agent(lab: Lab, tmp_path: Path) -> None:
    """Nobody reads for a while; the job goes on as if somebody did, and what it tells then arrives again."""
    running = lab.start("orphan", "--", PYTHON, "-c", TELLING, cwd=tmp_path)
    path = running.attempt / "recording.sqlite"

    def turns() -> list[int]:
        rows = open_recording(path).rows("SELECT name FROM phase WHERE name LIKE 'turn %' ORDER BY t")
        return [int(str(row[0]).split()[1]) for row in rows]

    until(turns, "the first turn to be recorded")
    running.process.kill()
    running.process.wait()
    before = max(turns())
    until(lambda: lab.run("runs", "--json").stdout.count("unguarded"), "the guard to be missed")
    watch = subprocess.Popen(
        lab.command("watch", "orphan"),
        env=lab.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: max(turns()) > before + 2, "later turns to be recorded")
    (tmp_path / "enough").touch()
    assert watch.wait(DEADLINE) == 0
    assert lab.verdict("orphan")["verdict"]["cause"] == "finished"
