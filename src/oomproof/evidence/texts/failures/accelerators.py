"""Out of memory as JAX/XLA, TensorFlow and Apple's Metal say it."""

from __future__ import annotations

import re
from math import prod

from oomproof.evidence.texts.cuda_sentence import gpu_numbers
from oomproof.evidence.texts.failures.recogniser import FailureText, Hit
from oomproof.evidence.texts.failures.rules import CodeRule, Row, Rule
from oomproof.evidence.texts.finding import GpuNumbers
from oomproof.evidence.texts.quantities import SIZE, amount
from oomproof.records import replace

_ANCHORS = ("RESOURCE_EXHAUSTED", "ResourceExhausted", "Resource exhausted", "OOM when allocating",
            "ran out of memory trying", "CUDA_ERROR_OUT_OF_MEMORY", "HIP_ERROR_OutOfMemory", "Dst tensor is not initialized", "memory space hbm", "out of memory",
            "Failed to allocate", "not a failure", "BadAlloc")  # fmt: skip
_MPS_INVALID = re.compile(rf"Invalid buffer size: {SIZE}")
_MEMORY = re.compile(
    r"[Oo]ut of memory|OOM|[Aa]llocat|OUT_OF_MEMORY|memory space|ran out of|Attempting to reserve|hbm"
)
_TF = re.compile(
    r"tensorflow|ResourceExhaustedError|OOM when allocating tensor|local_tsl|local_xla|Resource exhausted"
)
_JAX = re.compile(
    r"XlaRuntimeError|JaxRuntimeError|jaxlib|external/xla|Failed to allocate request for|external/org_tensorflow|external/tsl|XLA:TPU|memory space hbm|jax\.errors|That was not possible\. There are|_HBM\d"
)
_BYTES = re.compile(
    r"allocat(?:e|ing)(?: request for)? (\d+) ?bytes|trying to allocate (\d+) bytes|\((\d+)B\) on device|\((\d+) bytes\) from device|failed to alloc (\d+) bytes on host"
)
_SIZED = re.compile(rf"(?:allocate|allocating|request for|reserve) {SIZE}")
_SHORT = re.compile(  # of a TPU
    r"[Aa]ttempting to (?:allocate|reserve) (\d[\d.]*)([KMGT])\b(?:[^\n]{0,80}There are (?P<free>\d[\d.]*)(?P<unit>[KMGT]) free)?"
)
_WIDTHS = {"float": 4, "double": 8, "half": 2, "bfloat16": 2, "int32": 4, "int64": 8, "bool": 1, "uint8": 1, "int8": 1, "complex64": 8}  # fmt: skip
_TENSOR = re.compile(
    rf"tensor (?:with|of) shape ?\[(?P<shape>\d{{1,12}}(?:,\d{{1,12}}){{0,9}})\] and type (?P<type>{'|'.join(_WIDTHS)})\b"
)
_HBM = re.compile(r"Used \d[\d.]*[KMGT]? of (?P<total>\d[\d.]*)(?P<unit>[KMGT]) hbm")
_XLA_WORDS = re.compile(r"RESOURCE_EXHAUSTED: Out of memory (?:while trying to allocate|allocating) [\d*]")
_NOT_A_FAILURE = re.compile(r"not a failure|performance gains if more memory|^Stats|will be retried|retrying")
_PADDLE = re.compile(r"paddle::memory::\S{0,60}BadAlloc")  # it has the same name for its error as TensorFlow
_RUNTIME = re.compile(r"XlaRuntimeError|JaxRuntimeError|InternalError")
_STATUS = re.compile(
    r"OP_REQUIRES failed|Executor (?:failed|start aborting)|Non-OK-status|Execution of replica"
)


def _metal(text: str) -> GpuNumbers | None:
    numbers = gpu_numbers(text)
    if numbers is None and (asked := _MPS_INVALID.search(text)):
        return GpuNumbers(requested=amount(asked[1], asked[2]))
    return (
        GpuNumbers(requested=numbers.requested, allocated=numbers.allocated) if numbers is not None else None
    )


def _recognise(said: FailureText) -> Hit | None:
    text = said.text
    if _NOT_A_FAILURE.search(text):
        return Hit("tf-oom", "an allocation failed that the caller can do without", 0.1, "talk")
    if "No space left" in text:
        return None
    if _PADDLE.search(text):
        return Hit(
            "cuda-oom", "Paddle could not allocate memory, most often the GPU's", 0.5, gpu=_asked(text)
        )
    exhausted = re.search(r"RESOURCE_EXHAUSTED|ResourceExhaustedError|Resource exhausted", text)
    driver = any(
        code in text for code in ("CUDA_ERROR_OUT_OF_MEMORY", "HIP_ERROR_OutOfMemory", "memory space hbm")
    )
    xla = bool(_JAX.search(text)) or (said.library == "jax" and not _TF.search(text))
    plain = said.raised.rpartition(".")[2] == "RuntimeError" or "RuntimeError: Resource exhausted" in text
    if plain and "Resource exhausted: Out of memory" in text:
        xla = True  # jaxlib before its own class of errors; TensorFlow raises one
    if _XLA_WORDS.search(text) and not _TF.search(text):
        xla = True  # TensorFlow says "OOM when allocating tensor with shape"
    if (
        said.library == "tensorflow"
        and "external/" not in text
        and not said.raised.endswith("XlaRuntimeError")
    ):
        xla = False
    if (exhausted and _MEMORY.search(text)) or driver or (said.raised and "Dst tensor is not init" in text):
        return _memory(said, xla, bool(exhausted))
    bare = text == said.raised and said.library != "tensorflow"  # a name that other libraries have too
    if exhausted and said.raised.endswith("ResourceExhaustedError") and not bare:
        return Hit("tf-oom", "TensorFlow ran out of a resource, most often GPU memory", 0.8, gpu=_asked(text))
    if "OOM when allocating tensor" in text:
        return Hit("tf-oom", "TensorFlow could not allocate a tensor", 0.95, gpu=_asked(text))
    if "ran out of memory trying to allocate" in text and not said.raised:
        return Hit(
            "jax-oom" if xla else "tf-oom", "the allocator ran out of GPU memory", 0.5, gpu=_asked(text)
        )
    # jax.errors may wrap the class that says so
    named = _RUNTIME.search(text[:200]) if said.raised else None
    if named and re.search(r"[Ff]ailed to allocate|out of memory", text):
        return _memory(said, xla or named[0] != "InternalError", True)
    return None


def _memory(said: FailureText, xla: bool, exhausted: bool) -> Hit | None:
    text = said.text
    cause = "jax-oom" if xla else "tf-oom"
    told = "RESOURCE_EXHAUSTED" in text or "Dst tensor" in text
    if not said.library and not xla and not _TF.search(text) and not told:
        return None  # a driver's code in some other library's message: gpu_memory's business
    if not said.raised and not exhausted and not _STATUS.search(text):
        # "failed to allocate 9.2G from device: CUDA_ERROR_OUT_OF_MEMORY": tried again with less, often in vain
        return Hit(
            cause, "the driver refused an allocation; the library may try with less", 0.35, gpu=_asked(text)
        )
    if said.quiet and not _STATUS.search(text):
        return Hit(cause, "a warning says that GPU memory ran out", 0.5, gpu=_asked(text))
    name = "XLA" if xla else "TensorFlow"
    return Hit(cause, f"{name} could not allocate GPU memory", 0.95, gpu=_asked(text))


def _whose(said: FailureText, match: re.Match[str], hit: Hit) -> Hit:
    xla = said.library == "jax" or "external/" in said.text
    return replace(hit, cause="jax-oom") if xla else hit


def _asked(text: str) -> GpuNumbers | None:
    if match := _BYTES.search(text):
        return GpuNumbers(requested=int(next(group for group in match.groups() if group)))
    if match := _SIZED.search(text):
        return GpuNumbers(requested=amount(match[1], match[2]))
    if match := _SHORT.search(text):
        free = amount(match["free"], f"{match['unit']}B") if match["free"] else None
        return GpuNumbers(requested=amount(match[1], f"{match[2]}B"), free=free)
    if match := _TENSOR.search(text):
        return GpuNumbers(requested=prod(map(int, match["shape"].split(","))) * _WIDTHS[match["type"]])
    if match := _HBM.search(text):
        return GpuNumbers(total=amount(match["total"], f"{match['unit']}B"))
    return None


ACCELERATORS = (
    Rule("mps-oom", "Apple's GPU could not give the memory", 0.85,
         Row("[malloc_or_wait] ", "RuntimeError: [malloc_or_wait] Unable to allocate 4096 bytes.", r"\[malloc_or_wait\] Unable to allocate"),  # MLX
         Row("Buffer Validation Insufficient Memory", "-[MTLDebugDevice newBufferWithBytes:length:options:]:1182: failed assertion `Buffer Validation Insufficient Memory'")),
    Rule("mps-oom", "Apple's GPU allocator reached its limit", 0.95,
         Row("MPS backend out of memory", "RuntimeError: MPS backend out of memory (MPS allocated: 8.00 GB, other allocations: 1.00 GB, max allowed: 9.07 GB). Tried to allocate 1.00 GB on private pool.",
             gives={"requested": 1 << 30}),
         Row("Invalid buffer size: ", "RuntimeError: Invalid buffer size: 20.00 GB", r"Invalid buffer size: \d", {"requested": 20 << 30}),
         Row("kIOGPUCommandBufferCallbackErrorOutOfMemory", "Error: command buffer exited with error status. (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"),
         Row("[metal::malloc]", "RuntimeError: [metal::malloc] Attempting to allocate 9000 bytes which is greater than the maximum allowed buffer size"),
         Row("Insufficient Memory (0000", "RuntimeError: Insufficient Memory (00000008:kIOGPU)"),
         gpu=_metal),
    CodeRule(_ANCHORS, _recognise),
    # the allocator lists its chunks when it could not serve a request, and at no other time
    Rule("tf-oom", "the allocator lists what it holds, as it does when a request fails", 0.45,
         Row("Chunks of size ", "2017-05-09 13:13:15.97: I tensorflow/core/common_runtime/bfc_allocator.cc:696] 31 Chunks of size 256 totalling 7.8KiB",
             r"\] \d+ Chunks of size \d"),
         refine=_whose),
    Rule("jax-oom", "XLA lists its largest buffers, as it does when a program does not fit", 0.45,
         Row("XLA Label: ", "                XLA Label: fusion", r"^\s*XLA Label: \w"),
         Row("XLA label: %", "     XLA label: %fusion.13507 = (f32[524288]{0:T(1024)}) fusion(f32[256]{0:T(256)} %fusion.9281)")),
)  # fmt: skip
