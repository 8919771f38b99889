"""Unmodified programs sized without a GPU: their steps are seen, their files stay as they were."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from oomproof.sizing import watched_child
from oomproof.sizing.estimate import Sizing
from oomproof.sizing.script_sizing import size_command

pytest.importorskip("torch", reason="the extra [ml] is not installed")
pytestmark = pytest.mark.timeout(280)
MIB = 1 << 20


def size(
    script: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *command: str
) -> tuple[Sizing, int, list[str]]:
    """``command``: what starts the script; Python where there is none."""
    (folder / "train.py").write_text(script)
    monkeypatch.chdir(folder)
    told: list[str] = []
    sized = size_command(
        [*(command or (sys.executable, "-W", "ignore")), "train.py"],
        time_limit=120.0, gpu_total=None, allow_writes=False, tell=told.append,
    )  # fmt: skip
    sizing = sized.sizing
    if sizing.refused and "cannot be kept private here" in sizing.refused:
        pytest.skip(sizing.refused)
    assert sorted(path.name for path in folder.iterdir()) == ["train.py"], "nothing was written"
    return sizing, sized.status, told


TRAINER = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

class Data(torch.utils.data.Dataset):
    def __len__(self): return 4000
    def __getitem__(self, index):
        ids = torch.randint(0, 1000, (128,))
        return dict(input_ids=ids, labels=ids)

model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=256, n_head=4, vocab_size=32000))
arguments = TrainingArguments("out", per_device_train_batch_size=8, bf16=True, max_steps=1000, eval_strategy="steps",
                              eval_steps=500, save_steps=1, report_to=[], gradient_accumulation_steps=2)
Trainer(model, arguments, train_dataset=Data(), eval_dataset=Data()).train()
raise SystemExit("the training was to be stopped")
"""


def test_hugging_face_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    sizing, status, told = size(TRAINER, tmp_path, monkeypatch)
    assert (sizing.refused, status) == (None, 0), told
    assert sizing.gpu is not None and sizing.host is not None
    weights = 4 * (32000 * 256 + 1024 * 256 + 2 * (12 * 256 * 256 + 13 * 256) + 2 * 256)
    assert sizing.gpu.parts["weights"] == pytest.approx(weights, rel=0.01), "tied: once"
    assert sizing.gpu.parts["optimizer state"] == pytest.approx(2 * weights, rel=0.01)
    assert {phase.name for phase in sizing.phases if phase.reached} == {"train", "eval"}
    assert sum(sizing.gpu.parts.values()) == sizing.gpu.expected
    line = (
        TRAINER.splitlines().index(
            "Trainer(model, arguments, train_dataset=Data(), eval_dataset=Data()).train()"
        )
        + 1
    )
    assert f"train.py:{line}" in sizing.peak
    assert sizing.host.expected < 3 << 30
    assert any(note.startswith("held back: ") for note in sizing.notes)


LIGHTNING = """
import torch, lightning
from torch import nn

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(512, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 10))
    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])
    def validation_step(self, batch, index):
        self.log("loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

data = torch.utils.data.TensorDataset(torch.randn(2000, 512), torch.randint(0, 10, (2000,)))
loaders = [torch.utils.data.DataLoader(data, 64), torch.utils.data.DataLoader(data, 64)]
lightning.Trainer(max_epochs=300, accelerator="gpu", devices=1, precision="bf16-mixed").fit(Model(), *loaders)
"""


@pytest.mark.long
def test_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning")
    sizing, status, told = size(LIGHTNING, tmp_path, monkeypatch)
    assert (sizing.refused, status) == (None, 0), told
    assert sizing.gpu is not None
    weights = 4 * (512 * 4096 + 4096 + 4096 * 10 + 10)
    assert sizing.gpu.parts["weights"] == pytest.approx(weights, rel=0.01)
    assert sizing.gpu.parts["optimizer state"] == pytest.approx(2 * weights, rel=0.01)
    assert {phase.name for phase in sizing.phases if phase.reached} == {"train", "eval"}


RANKS = """
import os, sys, torch, torch.distributed as distributed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def train(rank, world=None):
    given = {} if world is None else dict(rank=rank, world_size=world, init_method="tcp://127.0.0.1:29511")
    distributed.init_process_group("nccl", **given)
    assert distributed.get_world_size() == 4 and distributed.get_rank() == 0, "no other rank is followed"
    torch.cuda.set_device(rank)
    net = nn.parallel.DistributedDataParallel(nn.Linear(1024, 4096).cuda(rank), device_ids=[rank])
    optimizer = torch.optim.AdamW(net.parameters())
    for x, in DataLoader(TensorDataset(torch.randn(40_000, 1024)), 64, num_workers=1):
        net(x.cuda(rank)).pow(2).mean().backward(); optimizer.step(); optimizer.zero_grad()

if __name__ == "__main__":
    torch.multiprocessing.spawn(train, args=(4,), nprocs=4) if SPAWNED else train(int(os.environ["LOCAL_RANK"]))
"""


@pytest.mark.parametrize("spawned", [False, True], ids=["torchrun", "spawn"])
def test_one_of_four_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spawned: bool) -> None:
    pytest.importorskip("torch.distributed.run")
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4")
    command = () if spawned else torchrun
    script = RANKS.replace("SPAWNED", str(spawned))
    sizing, status, told = size(script, tmp_path, monkeypatch, *command)
    assert (sizing.refused, status) == (None, 0), told
    assert sizing.gpu is not None and sizing.host is not None
    weights = 4 * (1024 * 4096 + 4096)
    assert sizing.gpu.parts["weights"] == sizing.gpu.parts["gradient buckets"] == weights, "of one rank"
    assert sum("one rank of 4" in note and "all 4 ranks" in note for note in sizing.notes) == 1
    parts = dict(sizing.host.parts)
    others, launcher = parts.pop("3 other ranks"), parts.pop("launcher")
    assert others == 3 * (sum(parts.values()) - parts.get("checkpoint copy", 0)), "each as much as this one"
    assert 20 * MIB < launcher < 800 * MIB
    assert parts["loader workers"] < 150 * MIB, "no other rank is taken for a worker"


def test_spawned_processes_that_are_no_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them run: the training needs what they make."""
    script = (
        "import torch\n\ndef work(number, shared):\n    shared[number] = 1\n\n"
        "if __name__ == '__main__':\n    shared = torch.zeros(3).share_memory_()\n"
        "    torch.multiprocessing.spawn(work, args=(shared,), nprocs=3)\n    assert shared.sum() == 3\n"
        "    net = torch.nn.Linear(8, 8).cuda()\n    optimizer = torch.optim.SGD(net.parameters(), 0.1)\n"
        "    for _ in range(5):\n        net(torch.ones(2, 8).cuda()).sum().backward(); optimizer.step()\n"
    )
    sizing, status, told = size(script, tmp_path, monkeypatch)
    assert (sizing.refused, status) == (None, 0), told
    assert sizing.host is not None and not any("rank" in text for text in (*sizing.notes, *sizing.host.parts))


def test_a_script_that_fails_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizing, status, told = size("raise ValueError('my own mistake')\n", tmp_path, monkeypatch)
    assert status == 1
    assert sizing.refused is not None and "failed by itself" in sizing.refused
    assert "ValueError: my own mistake" in told


def test_a_python_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a script says that is started with the machine's Python, outside its environment."""
    script = "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"
    sizing, status, told = size(script, tmp_path, monkeypatch)
    assert status == 1 and sizing.refused is not None
    assert f"{sys.executable} has no torch" in sizing.refused and "No module named 'torch'" in told[-1]


def test_a_metric_that_checks_its_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchmetrics counts distinct labels; on a virtual GPU every label would be another one."""
    pytest.importorskip("torchmetrics")
    script = (
        "import torch, torchmetrics\nmodel = torch.nn.Linear(8, 3).cuda()\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "metric = torchmetrics.classification.MulticlassAccuracy(3).cuda()\nfor _ in range(5):\n"
        "    out, labels = model(torch.randn(64, 8).cuda()), torch.randint(0, 3, (64,)).cuda()\n"
        "    metric(out.argmax(1), labels)\n    out.sum().backward()\n    optimizer.step()\n"
    )
    sizing, status, told = size(script, tmp_path, monkeypatch)
    assert (sizing.refused, status) == (None, 0), told


def test_a_check_of_values_is_not_blamed_on_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "import torch\nlabels = torch.nn.Linear(8, 3).cuda()(torch.randn(64, 8).cuda()).argmax(1)\n"
        "print('x' * 5000)\nassert len(torch.unique(labels)) <= 3, 'odd labels'\n"
    )
    sizing, status, told = size(script, tmp_path, monkeypatch)
    assert status == 1 and sizing.refused is not None and "for lack of real values" in sizing.refused
    assert "AssertionError: odd labels" in told and max(map(len, told)) < 1000


def test_its_cgroup_goes_although_a_killed_process_is_slow_to_leave() -> None:
    """After Ctrl-C: the kernel takes a moment to end a process with much memory."""
    with watched_child.limited(1 << 30) as join:
        if not join:
            pytest.skip("no cgroup can be made here")
        code = "import time; held = bytearray(b'x') * (200 << 20); print(flush=True); time.sleep(60)"
        child = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, preexec_fn=lambda: watched_child.enter(join)
        )
        assert child.stdout is not None and child.stdout.readline()
        child.kill()
    left = [file for file in join if Path(file).parent.exists() and "oomproof-size-" in file]
    child.wait()
    child.stdout.close()
    assert not left


def test_what_cannot_be_followed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import torch\ntry:\n    torch.cuda.CUDAGraph()\nexcept Exception:\n    pass\n"
    sizing, status, _ = size(script, tmp_path, monkeypatch)
    assert status == 0
    assert sizing.refused is not None and "CUDA graphs" in sizing.refused, "no handler swallows it"


BEGINS = "import torch\nmodel = torch.nn.Linear(8, 8).cuda()\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
STEPS = (
    "for _ in range(5):\n    model(torch.ones(4, 8, device='cuda')).sum().backward()\n    optimizer.step()\n"
)
BUILDS = """
from torch.utils.cpp_extension import load_inline
load_inline("blur", cpp_sources="", cuda_sources="torch::Tensor blur(torch::Tensor x) { return x; }", functions=["blur"])
"""


@pytest.mark.parametrize(
    ("script", "status", "says"),
    [
        (BEGINS + BUILDS + STEPS, 0, "blur is a CUDA extension that the script builds"),
        (BEGINS + "raise RuntimeError('x must be a CUDA tensor')\n", 0, "compiled code that wants a real GPU"),
        (BEGINS + "import ctypes\nctypes.string_at(model.weight.data_ptr() * 0 + 8)\n", 139, "an address in the GPU's memory"),
        ("import os\nos.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'backend:cudaMallocAsync'\n" + BEGINS + STEPS, 0, "cudaMallocAsync"),
        (BEGINS + "print('no data')\n", 0, "ended without a step"),
    ],
    ids=["a CUDA extension", "compiled code", "a crash", "another allocator", "no step"],
)  # fmt: skip
def test_each_refusal_has_its_reason(
    script: str, status: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizing, ended, told = size(script, tmp_path, monkeypatch)
    assert sizing.refused is not None and says in sizing.refused, (sizing.refused, told)
    assert ended == status and sizing.gpu is None


def test_settings_that_a_script_makes_of_its_allocator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many set the variable in their first line, where no shell sees it."""
    grows = BEGINS + (
        "for width in range(1, 40):\n    model(torch.ones(100_000 * (1 + width % 7), 8, device='cuda')).sum().backward()\n    optimizer.step()\n"
    )
    asked = "import os\nos.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'\n" + grows
    called = grows.replace(
        "model =", "torch.cuda.memory._set_allocator_settings('expandable_segments:True')\nmodel ="
    )
    wastes = []
    for script in (grows, asked, called):
        sizing, _, told = size(script, tmp_path, monkeypatch)
        assert sizing.gpu is not None, (sizing.refused, told)
        wastes.append(sizing.gpu.parts.get("allocator waste", 0))
    assert wastes[1] == wastes[2] < wastes[0] / 2, wastes


EVALUATES_LONG = """
import torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    with torch.no_grad():
        model(torch.ones(4, 8, device="cuda"))
"""


WAITS_FOR_A_VALUE = """
import torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = model(torch.ones(4, 8, device="cuda")).sum()
while loss.item() > 1e-9: loss = loss / 2
"""


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("import time, torch\nmodel = torch.nn.Linear(8, 8).cuda()\nwhile True:\n    time.sleep(0.1)\n", "made no step in time"),
        (EVALUATES_LONG, "what training takes was not seen"),
        (WAITS_FOR_A_VALUE, "it read values of the GPU at waits.py:6"),
    ],
)  # fmt: skip
def test_a_script_that_never_steps(
    script: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "waits.py").write_text(script)
    monkeypatch.chdir(tmp_path)
    sized = size_command(
        [sys.executable, "waits.py"], time_limit=1.0, gpu_total=None, allow_writes=False, tell=print
    )
    sizing = sized.sizing
    assert sized.status == 0 and sizing.gpu is None
    assert sizing.refused is not None and says in sizing.refused
