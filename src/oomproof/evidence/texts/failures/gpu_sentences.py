"""What PyTorch, CUDA, ROCm, XPU, Metal and the libraries on them print: out of memory, faults of kernels, cuBLAS and cuDNN."""

from __future__ import annotations

import re

from oomproof.evidence.texts.cuda_sentence import gpu_numbers
from oomproof.evidence.texts.failures.rules import FailureText, Hit, Match, Row, Rule, is_message
from oomproof.evidence.texts.finding import GpuNumbers
from oomproof.evidence.texts.quantities import SIZE, amount
from oomproof.records import replace

_GIB = 1 << 30
GPU_FAULTS = (
    Rule("device-assert", "a GPU kernel's check failed: {what}", 0.9,
        Row("thread: [", "x/Loss.cu:242: nll_loss_forward: block: [0,0,0], thread: [3,0,0] Assertion `t < n_classes` failed.",
            r"block: \[[\d,]+\],? thread: \[[\d,]+\]\W+Assertion [`'](?P<what>.{0,200}?)(?:[`'] failed|$)")),
    Rule("device-assert", "an assertion failed inside a GPU kernel", 0.95,
        Row("device-side assert", pattern="(?<!to enable )device-side assert", other="Compile with x to enable device-side assertions"),
        Row("cudaErrorAssert"), Row("_ERROR_ASSERT", "F tensorflow: CUDA_ERROR_ASSERT: exception"),
        printed=0.7),
    # without the driver's Xid, nothing says why the card is gone
    Rule("other-error", "the GPU does not answer any more, or its memory is faulty", 0.7,
        Row("GPU is lost"), Row("fallen off the bus"), Row("ncorrectable ECC error"),
        loud=True, unless="Xid"),
    Rule("other-error", "a GPU kernel needs more of the chip's own memory than there is", 0.8,  # Triton
        Row("out of resource: ", "OutOfResources: out of resource: shared memory, Required: 196608",
            r"out of resource: [a-z ]{6,20}, Required")),
    Rule("other-error", "a call to the GPU failed; what it was stands above it", 0.4,
        Row("Exception raised from c10_cuda_check_implementation"), only="printed"),
    Rule("other-error", "a call to the GPU failed", 0.5,
        Row("rror: ", "CUDA error: invalid device ordinal",
            r"^(?:CUDA|HIP) [Ee]rror: (?!.{0,80}(?:out of mem|illegal|misaligned|assert))\w+ \w"),
        only="printed", loud=True),
    Rule("illegal-access", "a GPU kernel touched an address that is not its own", 0.95,
        Row("illegal memory access"), Row("an illegal instruction was encountered"), Row("misaligned address"),
        Row("_ILLEGAL_ADDRESS"), Row("ErrorIllegalAddress"), Row("_ERROR_LAUNCH_FAILED"), Row("unspecified launch failure"),
        Row("Memory access fault by GPU"), Row("HSA_STATUS_ERROR_MEMORY_"), Row("HSA_STATUS_ERROR_EXCEPTION"),  # ROCm
        printed=0.75),
)  # fmt: skip

_HOST = re.compile(
    r"cv::OutOfMemoryError|in function 'OutOfMemoryError'|java\.lang\.|Container killed|heap|ray\.exceptions|Insufficient memory"
)
_XLA = re.compile(r"RESOURCE_EXHAUSTED|external/|tensorflow/|Xla")


def _of_a_gpu(said: FailureText, match: Match) -> bool:
    # the recognisers of XLA and TensorFlow weigh the driver's code in their lines
    theirs = "CUDA_ERROR_OUT_OF_MEMORY" in said.text and (said.library or _XLA.search(said.text))
    return not theirs and not _HOST.search(said.text)


def _sentence(said: FailureText, match: Match, hit: Hit) -> Hit:
    """Tells a message from a warning and from a mention."""
    if not said.raised and not is_message(match, said):
        return replace(hit, says="the text speaks of a GPU out of memory", strength=0.2, kind="talk")
    if said.quiet:
        return replace(hit, says="a warning says that the GPU ran out of memory", strength=0.3, kind="talk")
    backend = "HIP" if "HIP" in said.text[: said.text.find("out of memory") + 1] else "CUDA"
    return replace(hit, says=f"{backend} could not allocate GPU memory")


_STARTUP = r"Free memory on device[^\n]{0,24} \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than desired"
_TOO_LONG = rf"\({SIZE} KV cache is needed, which is larger than the available KV cache memory \({SIZE}\)"


def _startup(text: str) -> GpuNumbers | None:
    match = re.search(_STARTUP, text)
    return (
        GpuNumbers(total=amount(match["total"], "GiB"), free=amount(match["free"], "GiB")) if match else None
    )


def _cache(text: str) -> GpuNumbers | None:
    match = re.search(_TOO_LONG, text)
    return (
        GpuNumbers(requested=amount(match[1], match[2]), free=amount(match[3], match[4])) if match else None
    )


def _metal(text: str) -> GpuNumbers | None:
    numbers = gpu_numbers(text)
    if numbers is None and (asked := re.search(rf"Invalid buffer size: {SIZE}", text)):
        return GpuNumbers(requested=amount(asked[1], asked[2]))
    return numbers and GpuNumbers(requested=numbers.requested, allocated=numbers.allocated)


_BEHIND_A_COLON = (
    r"(?:(?<![\w./-])[\w./-]{0,120})?\[?(?:CUDA|Cuda|cudaMalloc|cuMem|cuda (?:runtime|driver)|HIP|hip |thrust::|Gpu API|\.cuh?[(:])"
    r"[^\n]{0,120}(?:(?<!Status)[:'\])(]|\berror) ?out of memory"
)
_OOM = "CUDA could not allocate GPU memory"
GPU_MEMORY = (
    Rule("cuda-oom", "the GPU has less free memory than the engine is told to take", 0.7,  # vLLM
        Row("Free memory on device",
            "ValueError: Free memory on device cuda:0 (31.44/47.38 GiB) on startup is less than desired utilization",
            _STARTUP, {"total": round(47.38 * _GIB), "free": round(31.44 * _GIB)}),
        gpu=_startup, fits=_of_a_gpu),
    Rule("cuda-oom", _OOM, 0.97,
        Row("out of memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total",
            r"(?:CUDA|HIP|XPU|NPU|MUSA|Tensor) out of memory[.:]? ?(?:Tried to allocate|$)", {"requested": 2 * _GIB}),
        Row("out of memory", "ncclUnhandledCudaError: Cuda failure 2 'out of memory'", _BEHIND_A_COLON),
        Row("out of memory. Try to lower your", "Decode out of memory. Try to lower your batch size.",
            r"\w+ out of memory\. Try to lower"),  # SGLang
        Row("cudaErrorMemoryAllocation", pattern=r"(?:CUDA error at \S{1,300} code=\d+)?\(?cudaErrorMemoryAllocation"),
        Row("hipErrorOutOfMemory"), Row("ErrorOutOfDeviceMemory"),
        Row("_ERROR_OUT_OF_", "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY", r"(?:CUDA|UR_RESULT|PI|HSA_STATUS)_ERROR_OUT_OF_"),
        Row("cudaSuccess", "F0501 10:00:00.123456 4242 x.cu:20] Check failed: error == cudaSuccess (2 vs. 0)",
            r"== ?cudaSuccess[^\n]{0,80}\(2 vs\.? 0\)"),
        Row("Failed to CUDA"),  # NCCL
        Row("ailed to cudaMalloc ", "details: Failed to cudaMalloc 4096 bytes", "[Ff]ailed to cudaMalloc ", {"requested": 4096}),  # Faiss
        Row("Out of memory error on GPU"),  # Paddle
        Row("Error Code 2: OutOfMemory"), Row("Requested amount of GPU memory"),  # TensorRT
        Row("rmm::out_of_memory"),
        Row("bad_alloc: ", "MemoryError: std::bad_alloc: out_of_memory: RMM failure", "bad_alloc: (?:out_of_memory|CUDA error)"),
        Row("Out of memory. Requested"),  # CatBoost
        Row("Allocation on device", "Allocation on device 0 would exceed allowed memory. (out of memory)",  # ComfyUI
            r"Allocation on device(?: \d+)?(?: would exceed|$)"),
        Row("Got an OOM, unloading all loaded models"),
        Row("BFCArena::AllocateRawInternal"),  # ONNX Runtime
        Row("Not enough memory", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",  # SGLang, YOLO
            r"Not enough memory(?:\. Please try|, use lower resolution)"),
        Row("PT_DEVMEM Allocation failed for size", "PT_DEVMEM Allocation failed for size::4096 (0)MB", gives={"requested": 4096}),  # Gaudi
        Row("Error out of memory at line"),  # bitsandbytes
        Row("Device memory allocation of size"), Row("failed to allocate buffer for kv cache"),
        Row("failed to allocate compute buffers"),  # llama.cpp
        Row("unable to allocate ", "error loading model: unable to allocate CUDA0 buffer", r"unable to allocate (?!CPU)[A-Z]\w+ buffer"),
        Row("(allocated so far: ", "Out of memory allocating 25,600,000 bytes (allocated so far: 3,635,267,072 bytes).",  # CuPy
            r"Out of memory allocating [\d,]{1,30} bytes \(allocated", {"requested": 25_600_000}),
        gpu=gpu_numbers, fits=_of_a_gpu, refine=_sentence),
    # a title cut off its first words
    Rule("cuda-oom", _OOM, 0.8,
        Row("Tried to allocate ", "Tried to allocate 20.00 MiB (GPU 0; 1.96 GiB total capacity; 1.24 GiB already allocated; 2.88 MiB free)",
            r"^\W{0,4}Tried to allocate [\d.]+ [KMGT]i?B(?: \(GPU \d+; |\. GPU \d+ has)", {"requested": 20 << 20}),
        gpu=gpu_numbers, fits=_of_a_gpu),
    Rule("cuda-oom", _OOM, 0.97,
        Row("OutOfMemoryError", 'Traceback (most recent call last):\n  File "train.py", line 3, in f\n    g()\ntorch.cuda.OutOfMemoryError',
            r"^(?:torch\.|torch\.cuda\.|cupy\.cuda\.memory\.|cupy_backends\S*\.)?OutOfMemoryError\b"),
        Row(" out of memory", "RuntimeError: XPU out of memory, please reduce the batch", r"^\w*Error: (?:CUDA|HIP|XPU) out of memory"),
        only="raised", gpu=gpu_numbers, fits=_of_a_gpu, refine=_sentence),
    Rule("cuda-oom", "the model leaves no GPU memory for the KV cache", 0.6,
        Row("No available memory for the cache blocks"),  # vLLM
        Row("KV cache is needed",
            "ValueError: max seq len (131072), (24.00 GiB KV cache is needed, which is larger than the available KV cache "
            "memory (13.69 GiB).", _TOO_LONG, {"requested": 24 * _GIB, "free": round(13.69 * _GIB)}),
        Row("No executable batch size found"),  # accelerate
        Row("Not enough memory to handle"),  # TGI
        Row("_slots runs out of memory"),  # SGLang
        only="raised", fits=_of_a_gpu, gpu=_cache),
    Rule("mps-oom", "Apple's GPU allocator reached its limit", 0.95,
        Row("MPS backend out of memory",
            "MPS backend out of memory (MPS allocated: 8.00 GB, max allowed: 9.07 GB). Tried to allocate 1.00 GB",
            gives={"requested": _GIB}),
        Row("Invalid buffer size: ", "RuntimeError: Invalid buffer size: 20.00 GB", gives={"requested": 20 * _GIB}),
        Row("kIOGPUCommandBufferCallbackErrorOutOfMemory"),
        Row("[metal::malloc]", "RuntimeError: [metal::malloc] Attempting to allocate 9000 bytes"),  # MLX
        gpu=_metal),
)  # fmt: skip

_CARD = r"\bMemory usage: (?P<free>\d{1,16}) bytes free, (?P<total>\d{1,16}) bytes total"


def _card(text: str) -> GpuNumbers | None:
    card = re.search(_CARD, text)
    return GpuNumbers(total=int(card["total"]), free=int(card["free"])) if card else None


# Often a full GPU in disguise: the text alone does not settle it
GPU_LIBRARIES = (
    # StreamExecutor prints it below a handle that it could not have
    Rule("cudnn", "how full the GPU was when cuDNN failed", 0.1,
        Row("Memory usage: ", "E cuda_dnn.cc:336] Error: Memory usage: 512 bytes free, 8192 bytes total.", _CARD, {"free": 512,
            "total": 8192}),
        kind="talk", gpu=_card),
    Rule("cublas-alloc", "cuBLAS could not be set up; whether memory was missing the text does not say", 0.85,
        Row("_STATUS_", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            r"(?:BLAS|CUSOLVER|CUSPARSE)_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED|INSUFFICIENT_RESOURCES|SUCCESS \([13] vs)"),
        Row("rocblas_status_memory_error"),
        Row("cublas runtime error : ", "cublas runtime error : resource allocation failed",
            "cublas runtime error : (?:resource|library not init)"),
        Row("GEMM", "InternalError: Blas GEMM launch failed : a.shape=(64, 100)", r"Blas (?:x)?GEMM\w* launch failed"),
        Row("BLAS operation using StreamExecutor without BLAS support"),
        printed=0.6, loud=True),
    Rule("other-error", "a routine of cuBLAS failed on the GPU", 0.6,
        Row("BLAS_STATUS_", "[TRT] [E] CUBLAS_STATUS_EXECUTION_FAILED", r"BLAS_STATUS_(?!SUCCESS)\w+"), only="printed", loud=True),
    Rule("cudnn", "cuDNN failed: no memory for its workspace, or versions that do not fit", 0.85,
        Row("CUDNN_", "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", r"CUDNN_(?:STATUS_(?!SUCCESS(?! \([1-9]))|BACKEND_API_FAILED)"),
        Row("cuDNN ", "cuDNN error: unknown", "cuDNN (?:Frontend )?error|cuDNN launch failure|valid cuDNN algorithm to run"),
        Row("cudnn_frontend"), Row("ould not create cudnn handle"),
        Row("iopenStatus", "RuntimeError: miopenStatusUnknownError", r"iopenStatus(?!Success)\w+"),
        Row("Failed to get convolution algorithm"), Row("unable to find an engine to execute"),
        printed=0.5, loud=True,  # PyTorch tries another plan
        fits=lambda said, match: bool(said.raised) or not re.search(r"(?i)Plan failed with|autotun|benchmark", said.text)),
)  # fmt: skip
