"""Who makes a script's batches, as its own source and that of the modules beside it say."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomproof.evidence.program_source import (
    argument_names_a_batch,
    names_a_batch,
    names_a_loader,
    script_sources,
)


def written(folder: Path, **files: str) -> str:
    for name, text in files.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder / "train.py")


@pytest.mark.parametrize(
    "text",
    [
        "from torch.utils.data import DataLoader\n",
        "loader = torch.utils.data.DataLoader(rows)\n",
        "from trl import SFTTrainer\n",
        "from transformers import Trainer, TrainingArguments\n",
        "class Net(lightning.LightningModule): pass\n",
        "from fastai.vision.all import DataLoaders\n",
    ],
)
def test_a_loader_or_a_trainer(tmp_path: Path, text: str) -> None:
    assert names_a_loader(script_sources(written(tmp_path, train=f"import torch\n{text}")))


@pytest.mark.parametrize(
    "text",
    [
        "x = torch.stack([data[i:i + n] for i in places])\n",
        "class DataLoaderLite:\n    pass\n",
        "config = yaml.load(text, Loader=yaml.SafeLoader)\n",
        "from torch.utils.tensorboard import SummaryWriter\n",
    ],
)
def test_batches_that_the_loop_cuts_itself(tmp_path: Path, text: str) -> None:
    assert not names_a_loader(script_sources(written(tmp_path, train=f"import torch, yaml\n{text}")))


@pytest.mark.parametrize(
    ("line", "module"),
    [
        ("from data import batches", "data"),
        ("import numpy as np, data", "data"),
        ("from src.pieces import data", "src/pieces/data"),
        ("from src import (pieces, other)", "src/pieces/__init__"),
        ("import src.pieces.data as d", "src/pieces/data"),
    ],
)
def test_in_a_module_beside_it(tmp_path: Path, line: str, module: str) -> None:
    loader = "from torch.utils.data import DataLoader\n"
    assert names_a_loader(
        script_sources(written(tmp_path, train=f"if True:\n    pass\n{line}\n", **{module: loader}))
    )
    (tmp_path / f"{module}.py").unlink()
    assert not names_a_loader(script_sources(str(tmp_path / "train.py")))


def test_through_several_modules_and_once_around(tmp_path: Path) -> None:
    script = written(
        tmp_path, train="import one\n", one="from two import *\nimport train\n", two="from .three import x\n",
        three="import one\nx = DataLoader\n",
    )  # fmt: skip
    assert names_a_loader(script_sources(script))


def test_a_module_of_the_folder_it_was_started_in(tmp_path: Path) -> None:
    script = written(tmp_path / "scripts", train="import data\n")
    (tmp_path / "data.py").write_text("DataLoader\n")
    assert not names_a_loader(script_sources(script)) and names_a_loader(
        script_sources(script, (str(tmp_path),))
    )
    assert not names_a_loader(script_sources(str(tmp_path / "gone.py")))


@pytest.mark.parametrize(
    "code, is_there",
    [
        ("import torch\nbatch_size = 32\n", True),
        ("import torch\nfor xb in batches(data):\n    pass\n", True),
        ("import torch\nx = torch.randn(32, 8)  # one batch\nprint('batch done')\n", False),
        ("import numpy as np\nbatch_size = 32\n", False),
        ("import pyarrow as pa\nfor part in table.to_batches():\n    pass\n", False),
        (
            "from datasets import load_dataset\nload_dataset('x').map(f, batched=True, batch_size=1000)\n",
            False,
        ),
    ],
)
def test_a_batch_is_one_of_a_framework_named_in_code(code: str, is_there: bool) -> None:
    """Any word "batch" brought the advice to halve it, to jobs that have none."""
    assert names_a_batch([code]) is is_there


def test_rows_that_a_map_works_on_at_once_are_no_batch() -> None:
    mapped = "import torch\nrows = rows.map(tokenize, batched=True, writer_batch_size=100)\n"
    assert not names_a_batch([mapped]) and names_a_batch([mapped + "batches = cut(rows)\n"])


@pytest.mark.parametrize(
    ("argv", "is_there"),
    [
        (["python", "train.py", "--batch-size", "64"], True),
        (["python", "train.py", "--per_device_train_batch_size=8"], True),
        (["python", "train.py", "data.batch=64"], True),
        (["sh", "-c", "cd /x && python train.py --batch 8 | tee log"], True),
        (["sh", "-c", "python a.py; python b.py --batch 8"], True),
        (["python", "load.py", "nightly_batch_7"], False),
        (["python", "load.py", "--name", "batch-7", "/data/batches"], False),
        (["python", "load.py", "--folder=/data/batches"], False),
        (["python", "-c", "# a batch job\nx = f(batch=3)"], False),
        (["sh", "-c", "python -c '# a batch job'"], False),
        (["ffmpeg", "-i", "batch.mp4"], False),
    ],
)
def test_an_option_names_a_batch_and_what_is_given_to_it_does_not(argv: list[str], is_there: bool) -> None:
    assert argument_names_a_batch(argv) is is_there


def test_a_layer_is_no_batch() -> None:
    code = "import torch\nnet = torch.nn.BatchNorm1d(4)\nbatch_norm(net)\n"
    assert not names_a_batch([code]) and names_a_batch([code + "for batch in data: net(batch)\n"])
