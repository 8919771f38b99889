"""cuBLAS and cuDNN: often a full GPU in disguise, often not. The text alone does not settle it."""

from __future__ import annotations

import re

from oomproof.evidence.texts.failures.hit import Hit, Said
from oomproof.evidence.texts.finding import GpuNumbers

ANCHORS = ("BLAS_STATUS", "CUDNN", "cuDNN", "SOLVER_STATUS", "SPARSE_STATUS", "BLAS GEMM", "Blas GEMM", "BLAS support",
           "convolution algorithm", "MIOpen", "miopen", "unable to find an engine", "blas_status", "cudnn", "cublas runtime", "bytes free, ")  # fmt: skip

_BLAS = re.compile(
    r"(?:CU|HIP|ROC)BLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)|rocblas_status_memory_error"
    r"|CUSOLVER_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)|CUSPARSE_STATUS_(?:ALLOC_FAILED|INSUFFICIENT_RESOURCES)"
    r"|cublas runtime error : (?:resource allocation failed|library not initialized)"
    r"|CUBLAS_STATUS_SUCCESS \([13] vs\. 0\)|Blas (?:x)?GEMM\w* launch failed|BLAS operation using StreamExecutor without BLAS support"
)
_DNN = re.compile(
    r"CUDNN_STATUS_(?!SUCCESS)\w+|cuDNN error|CUDNN_BACKEND_API_FAILED|cuDNN launch failure|[Mm]iopenStatus(?!Success)\w+"
    r"|Failed to get convolution algorithm|valid cuDNN algorithm to run|unable to find an engine to execute"
    r"|CUDNN_STATUS_SUCCESS \([1-9]\d* vs\. 0\)|cuDNN Frontend error|cudnn_frontend|[Cc]ould not create cudnn handle"
)
_BLAS_OTHER = re.compile(
    r"(?:CU|HIP|ROC)BLAS_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|ARCH_MISMATCH|INVALID_VALUE|MAPPING_ERROR)"
)
_CARD = re.compile(r"\bMemory usage: (?P<free>\d{1,16}) bytes free, (?P<total>\d{1,16}) bytes total")
_MILD = re.compile(r"Plan failed with|autotun|benchmark", re.IGNORECASE)  # PyTorch tries another plan


def recognise(said: Said) -> Hit | None:
    text = said.text
    if card := _CARD.search(text):  # StreamExecutor prints it below a handle that it could not have
        room = GpuNumbers(total=int(card["total"]), free=int(card["free"]))
        return Hit("cudnn", "how full the GPU was when cuDNN failed", 0.1, "talk", room)
    if _BLAS.search(text) and not said.quiet:
        strength = 0.85 if said.raised else 0.6
        return Hit(
            "cublas-alloc",
            "cuBLAS could not be set up; whether memory was missing the text does not say",
            strength,
        )
    if _BLAS_OTHER.search(text) and not said.quiet and not said.raised:
        return Hit("other-error", "a routine of cuBLAS failed on the GPU", 0.6)
    if _DNN.search(text) and not said.quiet and not (not said.raised and _MILD.search(text)):
        return Hit(
            "cudnn",
            "cuDNN failed: no memory for its workspace, or versions that do not fit",
            0.85 if said.raised else 0.5,
        )
    return None
