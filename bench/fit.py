"""By hand, on a machine with a GPU: `oomproof.fit_batch` beside accelerate's `find_executable_batch_size` and Lightning's `BatchSizeFinder`.

    PYTHONPATH=src python bench/fit.py --out fit.json            six models, each method in a process of its own
    PYTHONPATH=src python bench/fit.py --pretend --out fit.json  without a GPU: small models, memory that ends by agreement

For each: seconds without imports and the start of CUDA, how many times memory ran out, the batch, and its share of the true maximum (the
largest with which four steps finish in a fresh process). The allocator may reserve 24 GiB (--cap). First what runs alone on the card; then, several
processes at once, the true maxima and the methods of BESIDE, whose seconds are marked with a star. What is in the file is not measured again.
Needs torch, torchvision, transformers, accelerate and lightning; about 300 s on an H200.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

GIB = 1 << 30
STEPS = 3  # of each trial, as Lightning's own
TRUE_STEPS = 4
LOOKS = 3  # batches of one model that are tried at once for its true maximum
AT_ONCE = 5  # processes of 24 GiB on the card
SECONDS = 75  # for one method on one model
ALONE = ("oomproof-step", "lightning-binsearch", "oomproof-function")
BESIDE = ("accelerate", "oomproof-lightning", "lightning-power")
METHODS = (*ALONE, *BESIDE)
# Where accelerate starts: a power of two above the true maximum, which nobody knows before; it tries nine tenths each time
STARTS = {"gpt2": 64, "vit": 512, "resnet": 512, "deberta": 256, "convnext": 512, "llama": 64}
PRETENDED = 37  # the largest batch that "fits" with --pretend


# -- models: weights at random, sizes as published ---------------------------------------------------------


def gpt2(small: bool) -> tuple[Any, Callable[[int], Any]]:
    import torch
    import transformers

    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 500} if small else {}
    config = transformers.GPT2Config(**sizes)
    return transformers.GPT2LMHeadModel(config), tokens(64 if small else 512, config.vocab_size, torch)


def deberta(small: bool) -> tuple[Any, Callable[[int], Any]]:
    import torch
    import transformers

    sizes = (
        {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128, "vocab_size": 500}
        if small
        else {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 128100}
    )  # fmt: skip
    config = transformers.DebertaV2Config(**sizes)
    model = transformers.DebertaV2ForSequenceClassification(config)

    def make(size: int) -> Any:
        return {
            "input_ids": torch.ones(size, 32 if small else 256, dtype=torch.long),
            "labels": torch.zeros(size, dtype=torch.long),
        }

    return model, make


def llama(small: bool) -> tuple[Any, Callable[[int], Any]]:
    import torch
    import transformers

    sizes = (
        {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 500}
        if small
        else {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000}
    )  # fmt: skip
    config = transformers.LlamaConfig(**sizes)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    return model, tokens(64 if small else 1024, config.vocab_size, torch)


def tokens(length: int, vocabulary: int, torch: Any) -> Callable[[int], Any]:
    def make(size: int) -> Any:
        ids = torch.ones(size, length, dtype=torch.long)
        return {"input_ids": ids, "labels": ids.clone()}

    return make


def vision(name: str) -> Callable[[bool], tuple[Any, Callable[[int], Any]]]:
    def build(small: bool) -> tuple[Any, Callable[[int], Any]]:
        import torch

        if small:
            model: Any = torch.nn.Sequential(
                torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 10)
            )  # fmt: skip
        else:
            import torchvision

            model = getattr(torchvision.models, name)(weights=None)
        side = 32 if small else 224

        def make(size: int) -> Any:
            return {"x": torch.zeros(size, 3, side, side), "labels": torch.zeros(size, dtype=torch.long)}

        return model, make

    return build


MODELS: dict[str, Callable[[bool], tuple[Any, Callable[[int], Any]]]] = {
    "gpt2": gpt2,
    "vit": vision("vit_b_16"),
    "resnet": vision("resnet50"),
    "llama": llama,
    "deberta": deberta,
    "convnext": vision("convnext_tiny"),
}


def loss_of(model: Any, batch: Any) -> Any:
    import torch

    if "x" in batch:
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["labels"])
    return model(**batch).loss


# -- in a process of its own -------------------------------------------------------------------------------


class Job:
    """One model, and the memory it may have."""

    def __init__(self, name: str, cap: int, pretend: bool) -> None:
        import torch

        self.torch, self.name, self.pretend = torch, name, pretend
        self.device = "cpu" if pretend else "cuda"
        self.ooms = 0
        self.cap = cap
        if not pretend:
            total = torch.cuda.mem_get_info()[1]
            torch.cuda.set_per_process_memory_fraction(cap / total)
            left, right = torch.randn(64, 64, device="cuda"), torch.randn(1, 3, 32, 32, device="cuda")
            (left @ left).sum().item()
            torch.nn.functional.conv2d(right, torch.randn(4, 3, 3, 3, device="cuda")).sum().item()
            torch.cuda.empty_cache()

    def build(self) -> tuple[Any, Any, Callable[[int], Any]]:
        self.torch.manual_seed(0)
        with self.torch.device(self.device):
            model, make = MODELS[self.name](self.pretend)
        model = model.to(self.device)
        model.train()
        return model, self.torch.optim.AdamW(model.parameters(), lr=1e-5), make

    def moved(self, batch: Any) -> Any:
        return {name: tensor.to(self.device) for name, tensor in batch.items()}

    def step(self, model: Any, optimizer: Any, batch: Any) -> None:
        self.pretend_to_fail(batch)
        loss_of(model, self.moved(batch)).backward()
        optimizer.step()
        optimizer.zero_grad()

    def pretend_to_fail(self, batch: Any) -> None:
        if self.pretend and len(next(iter(batch.values()))) > PRETENDED:
            self.ooms += 1
            raise self.torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 24.00 GiB"
            )

    def raised(self) -> int:
        return self.ooms if self.pretend else int(self.torch.cuda.memory_stats().get("num_ooms", 0))

    def synchronize(self) -> None:
        if not self.pretend:
            self.torch.cuda.synchronize()


def trained(job: Job, size: int, steps: int = STEPS) -> None:
    model, optimizer, make = job.build()
    for _ in range(steps):
        job.step(model, optimizer, make(size))
    job.synchronize()


def with_oomproof_step(job: Job) -> int:
    import oomproof

    model, optimizer, make = job.build()
    found = oomproof.fit_batch(job.step, model, optimizer, make, most=64 if job.pretend else None)
    return int(found.size)


def with_oomproof_function(job: Job) -> int:
    import oomproof

    @oomproof.fit_batch(most=64 if job.pretend else None)
    def train(batch: Any) -> int:
        trained(job, batch.size)
        return int(batch.size)

    return int(train())


def with_accelerate(job: Job) -> int:
    from accelerate.utils import find_executable_batch_size

    @find_executable_batch_size(starting_batch_size=64 if job.pretend else STARTS[job.name])
    def train(batch_size: int) -> int:
        trained(job, batch_size)
        return batch_size

    return int(train())


def with_lightning(job: Job, callback: Any, limit: int) -> int:
    import lightning.pytorch as lightning

    class Rows(job.torch.utils.data.Dataset):  # type: ignore[name-defined, misc]
        def __len__(self) -> int:
            return limit

        def __getitem__(self, row: int) -> int:
            return row

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, _, self.make = job.build()
            self.batch_size = 2

        def training_step(self, batch: Any, index: int) -> Any:
            job.pretend_to_fail(batch)
            return loss_of(self.model, batch)

        def configure_optimizers(self) -> Any:
            return job.torch.optim.AdamW(self.parameters(), lr=1e-5)

        def train_dataloader(self) -> Any:
            return job.torch.utils.data.DataLoader(
                Rows(), batch_size=self.batch_size, collate_fn=lambda rows: self.make(len(rows))
            )

    class Found(lightning.Callback):
        size = 0

        def on_train_start(self, trainer: Any, module: Any) -> None:
            self.size = module.batch_size
            trainer.should_stop = True

    import tempfile

    found, module = Found(), Module()
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_steps=1, accelerator="cpu" if job.pretend else "gpu", devices=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder, callbacks=[callback, found],
        )  # fmt: skip
        trainer.fit(module)
    return int(module.batch_size)


def with_finder(mode: str) -> Callable[[Job], int]:
    def search(job: Job) -> int:
        from lightning.pytorch.callbacks import BatchSizeFinder

        return with_lightning(job, BatchSizeFinder(mode=mode, steps_per_trial=STEPS), 1 << 20)

    return search


def with_fit_batch(job: Job) -> int:
    import lightning.pytorch  # noqa: F401

    from oomproof import FitBatch

    return with_lightning(job, FitBatch("any", most=64 if job.pretend else None), 1 << 20)


SEARCHES: dict[str, Callable[[Job], int]] = {
    "oomproof-step": with_oomproof_step,
    "oomproof-function": with_oomproof_function,
    "oomproof-lightning": with_fit_batch,
    "lightning-binsearch": with_finder("binsearch"),
    "lightning-power": with_finder("power"),
    "accelerate": with_accelerate,
}


def in_child(work: Callable[[], dict[str, Any]], seconds: float) -> Callable[[], dict[str, Any]]:
    """Starts it at once; the answer is waited for. A fork: imports are done, CUDA is not started."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        signal.alarm(int(seconds))
        try:
            answer = work()
        except BaseException as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)

    def wait() -> dict[str, Any]:
        with os.fdopen(reading) as pipe:
            text = pipe.read()
        _, status = os.waitpid(child, 0)
        if not text:
            return {
                "error": f"ended by signal {os.WTERMSIG(status)}"
                if os.WIFSIGNALED(status)
                else f"status {status}"
            }
        answer: dict[str, Any] = json.loads(text)
        return answer

    return wait


def searched(
    method: str, name: str, cap: int, pretend: bool, seconds: float = SECONDS
) -> Callable[[], dict[str, Any]]:
    def work() -> dict[str, Any]:
        job = Job(name, cap, pretend)
        _import_first(method)
        started = time.monotonic()
        size = SEARCHES[method](job)
        job.synchronize()
        return {"seconds": round(time.monotonic() - started, 2), "ooms": job.raised(), "batch": size}

    return in_child(work, seconds)


def _import_first(method: str) -> None:
    """Nobody's seconds."""
    if method.startswith("oomproof"):
        import oomproof

        _ = oomproof.fit_batch
        import oomproof.sizing.fitting.batch_api
    if "lightning" in method:
        import lightning.pytorch  # noqa: F401

        import oomproof.sizing.integrations.lightning
    if method == "accelerate":
        import accelerate  # noqa: F401


# -- the true maximum --------------------------------------------------------------------------------------


def succeeds(name: str, size: int, cap: int, pretend: bool) -> Callable[[], dict[str, Any]]:
    def work() -> dict[str, Any]:
        from oomproof.sizing.fitting.oom_errors import memory_cause

        job = Job(name, cap, pretend)
        try:
            trained(job, size, TRUE_STEPS)
        except Exception as error:
            if memory_cause(error) is None:
                raise
            return {"fits": False}
        retries = 0 if pretend else int(job.torch.cuda.memory_stats()["num_alloc_retries"])
        return {"fits": True, "retries": retries}

    return in_child(work, SECONDS)


class Border:
    """The true maximum of one model: batches are tried from ``guess`` outward, some at once."""

    def __init__(self, guess: int, most: int) -> None:
        self.guess, self.most = guess, most
        self.known: dict[int, bool] = {}

    @property
    def fitting(self) -> int:
        return max((size for size, fits in self.known.items() if fits), default=0)

    @property
    def failing(self) -> int:
        return min((size for size, fits in self.known.items() if not fits), default=self.most + 1)

    @property
    def is_known(self) -> bool:
        gap = self.failing - self.fitting
        return gap <= 1 or (bool(self.fitting) and gap <= self.fitting * 0.004)

    def to_try(self) -> list[int]:
        fitting, failing, guess = self.fitting, self.failing, self.guess
        if not self.known:
            spread = [guess, guess + max(1, guess // 100), guess + max(2, guess // 25)]
        elif not fitting:
            spread = [int(failing * share) for share in (0.95, 0.85, 0.6)]
        elif failing > self.most:
            shares = enumerate((0.04, 0.12, 0.4), 1)
            spread = [fitting + max(index, int(fitting * share)) for index, share in shares]
        else:
            spread = [fitting + (failing - fitting) * index // (LOOKS + 1) for index in range(1, LOOKS + 1)]
        return sorted({size for size in spread if fitting < size < failing}) or [fitting + 1]

    def as_dict(self) -> dict[str, Any]:
        return {
            "batch": self.fitting, "fails": self.failing, "looks": len(self.known), "exact": self.is_known,
        }  # fmt: skip


class Beside:
    """Several processes on the card at once, as many as fit."""

    def __init__(self, ends: float) -> None:
        self.ends = ends
        self.waiting: list[tuple[Callable[[], Callable[[], dict[str, Any]]], Callable[[Any], None]]] = []

    def run(self) -> None:
        from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

        running: dict[Future[dict[str, Any]], Callable[[Any], None]] = {}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            while self.waiting or running:
                while self.waiting and len(running) < AT_ONCE and time.monotonic() < self.ends:
                    start, done = self.waiting.pop(0)
                    running[pool.submit(start())] = done  # forked here, in the main thread
                if not running:
                    return
                for ended in wait(running, return_when=FIRST_COMPLETED).done:
                    running.pop(ended)(ended.result())


# -- the table ---------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", default="fit.json")
    parser.add_argument("--cap", type=float, default=24.0, help="GiB that the allocator may reserve")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seconds", type=float, default=320, help="nothing is begun after that")
    parser.add_argument("--pretend", action="store_true")
    arguments = parser.parse_args()
    path, cap = Path(arguments.out), int(arguments.cap * GIB)
    results = earlier(path)
    with contextlib.redirect_stdout(sys.stderr):
        # before any fork, and without starting CUDA: a child could not start it again
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        import accelerate  # noqa: F401
        import transformers  # noqa: F401

        if not arguments.pretend:
            import torchvision  # noqa: F401
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        warnings.simplefilter("ignore")
    started = time.monotonic()
    bench = Bench(path, results, cap, arguments.pretend, started + arguments.seconds)
    for method in [method for method in ALONE if method in arguments.methods]:
        for name in arguments.models:
            bench.alone(method, name)
    bench.others(arguments.models, [method for method in BESIDE if method in arguments.methods])
    print_table(results)
    print(f"{time.monotonic() - started:.0f} s in all")
    return 0


def earlier(path: Path) -> dict[str, Any]:
    """What was measured already; what failed or ran out of time is tried again."""
    known = json.loads(path.read_text()) if path.exists() else {}
    return {
        name: {method: answer for method, answer in found.items() if "error" not in answer}
        for name, found in known.items()
    }


class Bench:
    def __init__(self, path: Path, results: dict[str, Any], cap: int, pretend: bool, ends: float) -> None:
        self.path, self.results, self.cap, self.pretend, self.ends = path, results, cap, pretend, ends

    def keep(self, name: str, method: str, answer: dict[str, Any]) -> None:
        self.results.setdefault(name, {})[method] = answer
        self.path.write_text(json.dumps(self.results, indent=1))
        print(f"{name:9} {method:20} {answer}", flush=True)

    def _left(self) -> float:
        return min(SECONDS, self.ends - time.monotonic())

    def alone(self, method: str, name: str) -> None:
        if method not in self.results.get(name, {}) and self._left() > 5:
            self.keep(name, method, searched(method, name, self.cap, self.pretend, self._left())())

    def others(self, names: list[str], methods: list[str]) -> None:
        beside = Beside(self.ends - 5)
        for method in methods:
            for name in names:
                if method not in self.results.get(name, {}):
                    self._add_method(beside, method, name)
        for name in reversed(names):
            self._add_border(beside, name)
        beside.run()

    def _add_method(self, beside: Beside, method: str, name: str) -> None:
        def start() -> Callable[[], dict[str, Any]]:
            return searched(method, name, self.cap, self.pretend, max(5, self._left()))

        beside.waiting.append((start, lambda answer: self.keep(name, method, {**answer, "beside": True})))

    def _add_border(self, beside: Beside, name: str) -> None:
        known = self.results.get(name, {})
        if known.get("true", {}).get("exact"):
            return
        guess = max((found.get("batch", 0) for method, found in known.items() if method != "true"), default=0)
        self._add_looks(beside, name, Border(guess or 8, 64 if self.pretend else 1 << 16))

    def _add_looks(self, beside: Beside, name: str, border: Border) -> None:
        sizes = border.to_try()
        pending = set(sizes)

        def add(size: int) -> None:
            def done(answer: dict[str, Any]) -> None:
                pending.discard(size)
                if "error" in answer:
                    print(f"{name:9} {size}: {answer['error']}", flush=True)
                else:
                    border.known[size] = bool(answer["fits"])
                if pending:
                    return
                self.keep(name, "true", border.as_dict())
                if not border.is_known and border.known:
                    self._add_looks(beside, name, border)

            beside.waiting.insert(0, (lambda: succeeds(name, size, self.cap, self.pretend), done))

        for size in sizes:
            add(size)


def print_table(results: dict[str, Any]) -> None:
    print(f"\n{'':9} {'':20} {'s':>7} {'OOMs':>5} {'batch':>6} {'share':>6}")
    for name, known in results.items():
        true = known.get("true", {}).get("batch", 0)
        for method in METHODS:
            found = known.get(method)
            if found is None:
                continue
            if "error" in found:
                print(f"{name:9} {method:20} {found['error'][:70]}")
                continue
            share = f"{found['batch'] / true:.1%}" if true else "?"
            star = "*" if found.get("beside") else " "
            print(
                f"{name:9} {method:20} {found['seconds']:7.1f}{star}{found['ooms']:5} {found['batch']:6} {share:>6}"
            )
        print(f"{name:9} {'true maximum':20} {'':7} {'':5} {true:6}")


if __name__ == "__main__":
    sys.exit(main())
