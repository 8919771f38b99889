"""Measures on a real card, in children of the user's Python: bounded in time, and what hangs or kills a child is left out."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from oomproof.errors import USAGE, OomproofError
from oomproof.records import dataclass, field
from oomproof.sizing.calibrated_card import CalibratedCard, signature_key
from oomproof.sizing.child_start import started

_TYPES = ("float32", "bfloat16", "float16")
# channels in, channels out, height and width, kernel, stride, groups: of ResNet-50, VGG-16, MobileNetV2 and ConvNeXt at 224×224
_LAYERS = (
    (3, 64, 224, 7, 2, 1),
    (64, 64, 56, 1, 1, 1),
    (64, 64, 56, 3, 1, 1),
    (64, 256, 56, 1, 1, 1),
    (128, 128, 56, 3, 2, 1),
    (256, 512, 56, 1, 2, 1),
    (128, 128, 28, 3, 1, 1),
    (256, 256, 14, 3, 1, 1),
    (512, 512, 7, 3, 1, 1),
    (3, 64, 224, 3, 1, 1),
    (64, 64, 224, 3, 1, 1),
    (128, 128, 112, 3, 1, 1),
    (256, 256, 56, 3, 1, 1),
    (96, 96, 56, 3, 1, 96),
    (96, 96, 56, 7, 1, 96),
    (3, 96, 224, 4, 4, 1),
)
_BATCH = 32
# batch, heads, tokens, width of a head
_ATTENTION = ((8, 12, 1024, 64), (4, 32, 2048, 128), (32, 12, 197, 64))


def common_operations() -> list[dict[str, Any]]:
    return [*_convolutions(), *_attention(), *_matrices()]


def tensor(dtype: str, shape: Sequence[int], order: Sequence[int] | None = None) -> dict[str, Any]:
    """``order``: of the dimensions in memory, outermost first."""
    strides, step = [0] * len(shape), 1
    for dimension in reversed(order or range(len(shape))):
        strides[dimension] = step
        step *= shape[dimension]
    return {"tensor": dtype, "shape": list(shape), "strides": strides}


def _signature(name: str, args: list[Any], **kwargs: Any) -> dict[str, Any]:
    return {"op": f"aten.{name}.default", "args": args, "kwargs": kwargs, "flags": {}}


def _convolutions() -> Iterator[dict[str, Any]]:
    for dtype in _TYPES:
        for order in (None, (0, 2, 3, 1)):
            if dtype == "float32" and order is not None:
                continue
            for layer in _LAYERS:
                yield from _convolution(dtype, order, *layer)


def _convolution(
    dtype: str, order: Sequence[int] | None, inner: int, outer: int, side: int, kernel: int, stride: int, groups: int
) -> Iterator[dict[str, Any]]:  # fmt: skip
    pad = 0 if kernel == stride else kernel // 2
    after = (side + 2 * pad - kernel) // stride + 1
    image = tensor(dtype, (_BATCH, inner, side, side), order)
    weight = tensor(dtype, (outer, inner // groups, kernel, kernel), order)
    result = tensor(dtype, (_BATCH, outer, after, after), order)
    how = [[stride] * 2, [pad] * 2, [1, 1], False, [0, 0], groups]
    yield _signature("convolution", [image, weight, None, *how])
    yield _signature("convolution_backward", [result, image, weight, [0], *how, [inner != 3, True, False]])


def _attention() -> Iterator[dict[str, Any]]:
    for batch, heads, tokens, width in _ATTENTION:
        shape, scale = (batch, heads, tokens, width), width**-0.5
        for dtype in ("bfloat16", "float32"):
            rows = tensor(dtype, shape, (0, 2, 1, 3))
            sums = tensor("float32", (batch, heads, tokens))
            seed = tensor("int64", ())
            if dtype == "float32":
                name = "_scaled_dot_product_efficient_attention"
                yield _signature(name, [rows, rows, rows, None, True, 0.0, True], scale=scale)
                saved = [None, rows, sums, seed, seed, 0.0, [True, True, True, False], True]
            else:
                name = "_scaled_dot_product_flash_attention"
                yield _signature(name, [rows, rows, rows, 0.0, True, False], scale=scale)
                saved = [rows, sums, None, None, tokens, tokens, 0.0, True, seed, seed]
            yield _signature(f"{name}_backward", [rows, rows, rows, rows, *saved], scale=scale)


def _matrices() -> Iterator[dict[str, Any]]:
    for dtype in _TYPES:
        for rows, inner, outer in ((8192, 768, 3072), (8192, 4096, 4096), (4096, 2048, 32000)):
            flipped = tensor(dtype, (inner, outer), (1, 0))
            yield _signature("mm", [tensor(dtype, (rows, inner)), flipped])
            yield _signature("addmm", [tensor(dtype, (outer,)), tensor(dtype, (rows, inner)), flipped])


_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "card_measuring", "measure_card.py")
_START = 60.0  # seconds until a child has imported torch and made its context; a cold disk takes most of it
_SILENCE = 20.0  # seconds one signature may take; cuDNN's search takes up to three
_CHILDREN = 4  # after as many that hung or died the rest is given up
_LOOK = 0.05
SHARE = 0.8  # of the card's free memory

_REFUSALS = {
    "no torch": ("{python} has no torch: {why}", "name the Python of your training: oomproof calibrate --python PYTHON"),
    "old torch": ("torch {why} is too old to calibrate", "it needs 2.1 or newer"),
    "no cuda": ("{why}, so there is nothing to calibrate", "calibrate where the card is, then: oomproof calibrate --export FILE"),
    "no card": (
        "no CUDA card can be used here: {why}",
        "calibrate where the card is, then: oomproof calibrate --export FILE",
    ),
    "busy": ("the card is busy: {why}", "wait until the job on it has ended: oomproof check"),
}  # fmt: skip


@dataclass
class Measured:
    """``card``: None where nothing could be measured. ``late``: signatures for which no time was left."""

    card: CalibratedCard | None = None
    others: int | None = None  # bytes that were in use on the card before
    late: int = 0
    refused: tuple[str, str] | None = None  # kind, why
    warnings: list[str] = field(default_factory=list)


def measure(
    python: str,
    signatures: Sequence[Mapping[str, Any]],
    *,
    seconds: float,
    constants: bool,
    tell: Callable[[str], None] = lambda text: None,
    each: Callable[[CalibratedCard], None] = lambda card: None,
    share: float = SHARE,
) -> Measured:
    """``tell``: progress; ``each``: called with what was found so far, now and then, so that a Ctrl-C loses little."""
    ends = time.monotonic() + seconds
    measured = Measured()
    left = list(signatures)
    for _ in range(_CHILDREN):
        before = len(left)
        left = _child(python, left, ends, constants, measured, tell, each, share)
        constants = False
        if measured.refused or measured.card is None or not left or time.monotonic() > ends:
            break
        if len(left) == before:
            break
    measured.late = len(left)
    return measured


def _child(
    python: str, signatures: list[Mapping[str, Any]], ends: float, constants: bool, measured: Measured,
    tell: Callable[[str], None], each: Callable[[CalibratedCard], None], share: float,
) -> list[Mapping[str, Any]]:  # fmt: skip
    """Those that are left: behind the one at which it hung or died."""
    folder = tempfile.mkdtemp(prefix="oomproof-calibrate-")
    job, results, output = (os.path.join(folder, name) for name in ("job", "results", "output"))
    now = time.monotonic()
    try:
        with open(job, "w") as file:
            json.dump({"constants": constants, "signatures": signatures, "seconds": max(1.0, ends - now), "share": share}, file)  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": _user_path(), "PYTHONWARNINGS": "ignore"}
        command = [python, "-B", _PROGRAM, job, results]
        with (
            open(output, "wb") as log,
            started(command, stdout=log, stderr=subprocess.STDOUT, env=environment) as child,
        ):
            return _Reader(signatures, measured, tell, each).read(child, results, output, ends)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _user_path() -> str:
    return os.environ.get("PYTHONPATH", "")


class _Reader:
    """Follows the lines that one child writes."""

    def __init__(
        self, signatures: list[Mapping[str, Any]], measured: Measured,
        tell: Callable[[str], None], each: Callable[[CalibratedCard], None],
    ) -> None:  # fmt: skip
        self.signatures, self.measured, self.tell, self.each = signatures, measured, tell, each
        self.current = -1
        self.next = 0
        self.ended = False
        self._told = time.monotonic()

    def read(
        self, child: subprocess.Popen[bytes], results: str, output: str, ends: float
    ) -> list[Mapping[str, Any]]:
        rest, heard, patience = b"", time.monotonic(), _START
        at = 0
        while not self.ended:
            running = child.poll() is None
            data = _bytes_from(results, at)
            at += len(data)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError):
                    self._line(json.loads(line))
            now = time.monotonic()
            if lines:
                heard, patience = now, _SILENCE if self.measured.card is not None else _START
            if not running and not data:
                self._died(child.returncode, output)
                break
            if now - heard > patience or now > ends + _SILENCE:
                self._give_up("it took too long")
                break
            if not data:
                time.sleep(_LOOK)
        if self.measured.card is not None:
            self.each(self.measured.card)
        return self.signatures[self.next :]

    def _line(self, line: dict[str, Any]) -> None:
        measured = self.measured
        if "failed" in line:
            measured.refused, self.ended = (str(line["failed"]), str(line["why"])), True
        elif "card" in line:
            if measured.card is None:
                measured.card = CalibratedCard(line["card"])
                self.tell(f"{measured.card.name}, torch {line['card']['torch']}")
        elif "constants" in line:
            self._constants(line)
        elif "begin" in line:
            self.current = line["begin"]
        elif "done" in line:
            self._done(line)
        elif "end" in line or "late" in line:
            self.ended = True

    def _constants(self, line: dict[str, Any]) -> None:
        assert self.measured.card is not None
        found = dict(line["constants"] or {})
        self.measured.others = line.get("others")
        if line["constants"] is None:
            self.measured.warnings.append(f"the context could not be measured: {line.get('why')}")
        elif self.measured.others is None:
            self.measured.warnings.append(
                "the context could not be measured: the driver's library (libnvidia-ml) does not answer"
            )
            found = {name: size for name, size in found.items() if name.startswith("matrix")}
        self.measured.card.constants = {name: int(size) for name, size in found.items() if size >= 0}
        self.each(self.measured.card)

    def _done(self, line: dict[str, Any]) -> None:
        card = self.measured.card
        assert card is not None
        key = signature_key(self.signatures[line["done"]])
        self.current, self.next = -1, line["done"] + 1
        if "measured" in line:
            card.signatures[key] = line["measured"]
        else:
            card.skipped[key] = str(line.get("large") or line.get("error"))
        now = time.monotonic()
        if now - self._told > 2.0 and self.next < len(self.signatures):
            self._told = now
            self.tell(f"{self.next} of {len(self.signatures)} operations")
            self.each(card)

    def _give_up(self, why: str) -> None:
        """The signature under way, if one is, is left out."""
        card = self.measured.card
        if card is None:
            self.measured.refused = ("no card", "the driver does not answer")
        elif self.current >= 0:
            card.skipped[signature_key(self.signatures[self.current])] = why
            self.next = self.current + 1

    def _died(self, status: int, output: str) -> None:
        if self.ended:
            return
        if self.measured.card is None and self.measured.refused is None:
            self.measured.refused = ("no card", f"Python ended with status {status}: {_last_line(output)}")
        else:
            self._give_up(f"Python ended with status {status}: {_last_line(output)}")


def refusal(measured: Measured, python: str) -> OomproofError:
    kind, why = measured.refused or ("no card", "nothing was measured")
    message, hint = _REFUSALS[kind]
    return OomproofError(message.format(python=python, why=why), hint, USAGE)


def python_with_torch(asked: str | None) -> str:
    """The one that was asked for; else the first on PATH that has torch, or ours."""
    if asked is not None:
        path = shutil.which(asked)
        if path is None:
            raise OomproofError(
                f"{asked}: command not found", "give the path of a Python that has torch", USAGE
            )
        return path
    for name in ("python", "python3", sys.executable):
        path = shutil.which(name)
        if path is not None and _has_torch(path):
            return path
    raise OomproofError(
        "no Python with torch was found", "name it: oomproof calibrate --python PYTHON", USAGE
    )


def _has_torch(python: str) -> bool:
    question = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    try:
        asked = subprocess.run([python, "-c", question], capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


def _bytes_from(path: str, at: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(at)
            return file.read()
    except OSError:
        return b""


def _last_line(path: str) -> str:
    lines = _bytes_from(path, 0).decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:200] if lines else "it said nothing"
