"""What JAX, XLA and TensorFlow print when they are out of memory. The same sentence may be of either, so code decides whose it is."""

from __future__ import annotations

import re
from math import prod

from oomproof.evidence.texts.failures.rules import CodeRule, FailureText, Hit, Row, Rule
from oomproof.evidence.texts.finding import GpuNumbers
from oomproof.evidence.texts.quantities import SIZE, amount

_ANCHORS = ("RESOURCE_EXHAUSTED", "ResourceExhausted", "Resource exhausted", "OOM when allocating", "ran out of memory trying",
            "CUDA_ERROR_OUT_OF_MEMORY", "HIP_ERROR_OutOfMemory", "Dst tensor is not initialized", "memory space hbm", "out of memory",
            "Failed to allocate", "not a failure")  # fmt: skip
_MEMORY = re.compile(
    r"[Oo]ut of memory|OOM|[Aa]llocat|OUT_OF_MEMORY|memory space|ran out of|Attempting to reserve|hbm"
)
_TF = re.compile(r"tensorflow|ResourceExhaustedError|OOM when allocating tensor|local_tsl|local_xla")
_JAX = re.compile(
    r"XlaRuntimeError|JaxRuntimeError|jaxlib|external/(?:xla|tsl|org_tensorflow)|Failed to allocate request for|XLA:TPU|memory space hbm"
    r"|jax\.errors|That was not possible\. There are|_HBM\d"
)
_JAX_WORDS = re.compile(
    r"(?i)\bresource.exhausted: out of memory (?:while trying to allocate|allocating) [\d*]"
)
_NOT_A_FAILURE = re.compile(r"not a failure|performance gains if more memory|^Stats|will be retried|retrying")
_RUNTIME = re.compile(r"XlaRuntimeError|JaxRuntimeError|InternalError")

_BYTES = re.compile(
    r"allocat(?:e|ing)(?: request for)? (\d+) ?bytes|trying to allocate (\d+) bytes|\((\d+)B\) on device|\((\d+) bytes\) from device"
    r"|failed to alloc (\d+) bytes on host"
)
_SIZED = re.compile(rf"(?:allocate|allocating|request for|reserve) {SIZE}")
_SHORT = re.compile(  # of a TPU
    r"[Aa]ttempting to (?:allocate|reserve) (\d[\d.]*)([KMGT])\b(?:[^\n]{0,80}There are (?P<free>\d[\d.]*)(?P<unit>[KMGT]) free)?"
)
_HBM = re.compile(r"Used \d[\d.]*[KMGT]? of (?P<total>\d[\d.]*)(?P<unit>[KMGT]) hbm")
_WIDTHS = {
    "float": 4,
    "double": 8,
    "half": 2,
    "bfloat16": 2,
    "int32": 4,
    "int64": 8,
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "complex64": 8,
}
_TENSOR = re.compile(
    rf"tensor (?:with|of) shape ?\[(?P<shape>\d{{1,12}}(?:,\d{{1,12}}){{0,9}})\] and type (?P<type>{'|'.join(_WIDTHS)})\b"
)


def _recognise(said: FailureText) -> Hit | None:
    text = said.text
    if _NOT_A_FAILURE.search(text):
        return Hit("tf-oom", "an allocation failed that the caller can do without", 0.1, "talk")
    if "No space left" in text:
        return None
    exhausted = re.search(r"RESOURCE_EXHAUSTED|ResourceExhaustedError|Resource exhausted", text)
    driver = any(
        code in text for code in ("CUDA_ERROR_OUT_OF_MEMORY", "HIP_ERROR_OutOfMemory", "memory space hbm")
    )
    xla = _is_xla(said)
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


def _is_xla(said: FailureText) -> bool:
    if (
        said.library == "tensorflow"
        and "external/" not in said.text
        and not said.raised.endswith("XlaRuntimeError")
    ):
        return False
    # TensorFlow says "OOM when allocating tensor with shape"
    return bool(_JAX.search(said.text)) or (
        not _TF.search(said.text) and (said.library == "jax" or bool(_JAX_WORDS.search(said.text)))
    )


def _memory(said: FailureText, xla: bool, exhausted: bool) -> Hit | None:
    text = said.text
    cause, name = ("jax-oom", "XLA") if xla else ("tf-oom", "TensorFlow")
    told = "RESOURCE_EXHAUSTED" in text or "Resource exhausted" in text or "Dst tensor" in text
    if not said.library and not xla and not _TF.search(text) and not told:
        return None  # a driver's code in another library's message: the GPU's rules read it
    if not said.raised and not exhausted:
        # "failed to allocate 9.2G from device: CUDA_ERROR_OUT_OF_MEMORY": tried again with less, often in vain
        return Hit(
            cause, "the driver refused an allocation; the library may try with less", 0.35, gpu=_asked(text)
        )
    if said.quiet:
        return Hit(cause, "a warning says that GPU memory ran out", 0.5, gpu=_asked(text))
    return Hit(cause, f"{name} could not allocate GPU memory", 0.95, gpu=_asked(text))


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


XLA = (
    CodeRule(_ANCHORS, _recognise),
    # the allocator lists its chunks only when it could not serve a request
    Rule("tf-oom", "the allocator lists what it holds, as it does when a request fails", 0.45,
        Row("Chunks of size ", "I tensorflow/core/common_runtime/bfc_allocator.cc:696] 31 Chunks of size 256 totalling 7.8KiB",
            r"\] \d+ Chunks of size \d")),
    Rule("jax-oom", "XLA lists its largest buffers, as it does when a program does not fit", 0.45,
        Row("XLA Label: ", "                XLA Label: fusion", r"^\s*XLA Label: \w")),
)  # fmt: skip
