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
         Row("evice-side assert", "RuntimeError: CUDA error: device-side assert triggered", r"(?<!to enable d)evice-side assert",
             other="RuntimeError: CUDA error: invalid argument. Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."),
         Row("cudaErrorAssert", "RuntimeError: cudaErrorAssert"),
         Row("_ERROR_ASSERT", "F tensorflow: CUDA_ERROR_ASSERT: exception"),
         # glog prints only CUDA's number, and the numbers changed with CUDA 10.1
         Row("cudaSuccess", "F0501 10:00:00.123456 4242 x.cu:20] Check failed: error == cudaSuccess (59 vs. 0)", r"== ?cudaSuccess[^\n]{0,80}\((?:59|710) vs\.? 0\)"),
         printed=0.7),
    # without the driver's Xid, nothing says why the card is gone
    Rule("other-error", "the GPU does not answer any more, or its memory is faulty", 0.7,
         Row("GPU is lost"),
         Row("fallen off the bus", "GPU at 0000:3b:00 has fallen off the bus"),
         Row("ncorrectable ECC error", "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
         Row("Unable to determine the device handle for"),
         loud=True, unless="Xid"),
    Rule("other-error", "a GPU kernel needs more of the chip's own memory than there is", 0.8,  # Triton
         Row("out of resource: ", "OutOfResources: out of resource: shared memory, Required: 196608, Hardware limit: 101376", r"out of resource: [a-z ]{6,20}, Required: \d")),
    Rule("other-error", "a call to the GPU failed; what it was stands above it", 0.4,
         Row("Exception raised from c10_cuda_check_implementation"), only="printed"),
    Rule("other-error", "a call to the GPU failed", 0.5,
         Row("rror: ", "CUDA error: invalid device ordinal", r"^(?:CUDA|HIP) [Ee]rror: (?!.{0,80}(?:out of memory|illegal|misaligned|assert))\w+ \w+"),
         only="printed", loud=True),
    Rule("illegal-access", "a GPU kernel touched an address that is not its own", 0.95,
         Row("illegal ", "RuntimeError: CUDA error: an illegal memory access was encountered", r"illegal memory access|an illegal instruction was enc"),
         Row("_ILLEGAL_ADDRESS", "RuntimeError: CUDA_ERROR_ILLEGAL_ADDRESS"),
         Row("ErrorIllegalAddress", "RuntimeError: cudaErrorIllegalAddress"),
         Row("HSA_STATUS_ERROR_", "Queue 0x7f aborting with error : HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: The agent attempted to access memory",
             r"HSA_STATUS_ERROR_(?:MEMORY_|EXCEPTION)"),
         Row("misaligned address", "RuntimeError: CUDA error: misaligned address"),
         Row("Memory access fault by GPU", "Memory access fault by GPU node-1 (Agent handle: 0x1) on address 0x7f."),
         Row("unspecified launch failure", "RuntimeError: CUDA error: unspecified launch failure"),
         Row("_ERROR_LAUNCH_FAILED", "pycuda._driver.LogicError: CUDA_ERROR_LAUNCH_FAILED"),
         Row("cudaSuccess", "F0501 10:00:00.123456 4242 x.cu:20] Check failed: error == cudaSuccess (77 vs. 0)",
             r"== ?cudaSuccess[^\n]{0,80}\((?:4|74|77|700|716|719) vs\.? 0\)"),
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
    Rule("cuda-oom", "PyTorch's allocator warns that the GPU is full", 0.6,
         Row("memory allocation failed with OOM on device ", "[W CUDAAllocator.cpp:30] memory allocation failed with OOM on device 0 while "
             "trying to allocate 4096 bytes (free: 512, total: 8192)", gives={"requested": 4096, "total": 8192}),
         kind="talk", gpu=gpu_numbers, fits=_of_a_gpu),
    Rule("cuda-oom", "the GPU has less free memory than the engine is told to take", 0.7,  # vLLM
         Row("Free memory on device", "ValueError: Free memory on device cuda:0 (31.44/47.38 GiB) on startup is less than desired GPU memory utilization",
             _STARTUP, {"total": round(47.38 * _GIB), "free": round(31.44 * _GIB)}),
         gpu=_startup, fits=_of_a_gpu),
    Rule("cuda-oom", _OOM, 0.97,
         Row("out of memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB of which 1.05 GiB is free.",
             r"(?:CUDA|HIP|XPU|NPU|MUSA|Tensor) out of memory[.:]? ?(?:Tried to allocate|$)", {"requested": 2 * _GIB, "total": round(23.69 * _GIB)}),
         Row("out of memory", "ncclUnhandledCudaError: Cuda failure 2 'out of memory'",
             _BEHIND_A_COLON),
         Row("cudaErrorMemoryAllocation", "RuntimeError: cudaErrorMemoryAllocation", r"(?:CUDA error at \S{1,300} code=\d+)?\(?cudaErrorMemoryAllocation"),
         Row("Failed to CUDA ", "[ft] Failed to CUDA calloc 4096 bytes"),  # NCCL
         Row("hipErrorOutOfMemory", "RuntimeError: hipErrorOutOfMemory"),
         Row("_ERROR_OUT_OF_", "numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY",
             r"(?:CUDA|UR_RESULT|PI|HSA_STATUS)_ERROR_OUT_OF_"),
         Row("ErrorOutOfDeviceMemory", "vk::Device::allocateMemory: ErrorOutOfDeviceMemory"),
         Row("ailed to cudaMalloc ", "Faiss assertion 'err == cudaSuccess' failed; details: Failed to cudaMalloc 4096 bytes",
             r"[Ff]ailed to cudaMalloc ", {"requested": 4096}),
         Row("cudaSuccess", "F0501 10:00:00.123456 4242 x.cu:20] Check failed: error == cudaSuccess (2 vs. 0)", r"== ?cudaSuccess[^\n]{0,80}\(2 vs\.? 0\)"),
         Row("error=2 : out of memory", "THCudaCheck FAIL file=/pytorch/aten/src/THC/THCGeneral.cpp line=50 error=2 : out of memory",
             r"(?:THCudaCheck FAIL[^\n]{0,200})?error=2 : out of memory"),
         Row("Out of memory error on GPU ", "ResourceExhaustedError: Out of memory error on GPU 0. Cannot allocate 1.5GB memory on GPU 0"),  # Paddle
         Row("Error Code 2: OutOfMemory", "[TRT] [E] 2: Error Code 2: OutOfMemory (no further information)"),
         Row("Requested amount of GPU memory", "[TRT] [E] Requested amount of GPU memory (4096 bytes) could not be allocated.", gives={"requested": 4096}),
         Row("bad_alloc: ", "MemoryError: std::bad_alloc: out_of_memory: RMM failure at:pool.hpp:257: Maximum pool size exceeded",
             r"bad_alloc: (?:out_of_memory|CUDA error)"),
         Row("rmm::out_of_memory", "RuntimeError: rmm::out_of_memory: RMM failure at: pool.hpp: Maximum pool size exceeded"),
         Row("Out of memory. Requested ", "catboost.CatBoostError: (NCudaLib::TOutOfMemoryError) memory.h:9: Error: Out of memory. Requested 9 MB"),
         Row("Allocation on device", "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)",
             r"Allocation on device(?: \d+)?(?: would exceed allowed memory|$)"),
         Row("BFCArena::AllocateRawInternal", "onnxruntime::RuntimeException: bfc_arena.cc:376 void* onnxruntime::BFCArena::AllocateRawInternal(size_t) "
             "Failed to allocate memory for requested buffer of size 4096", gives={"requested": 4096}),
         Row("Device memory allocation of size ", "ggml_vulkan: Device memory allocation of size 4096 failed.", gives={"requested": 4096}),
         Row("Not enough memory", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", r"Not enough memory(?:\. Please try|, use lower resolution)"),
         Row("PT_DEVMEM Allocation failed for size", "RuntimeError: [Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::4096 (0)MB",
             gives={"requested": 4096}),
         Row("Error out of memory at line ", "Error out of memory at line 380 in file /src/csrc/pythonInterface.c"),  # bitsandbytes
         Row("unable to allocate ", "llama_model_load: error loading model: unable to allocate CUDA0 buffer", r"unable to allocate (?!CPU)[A-Z]\w+ buffer"),
         Row("failed to allocate buffer for kv cache", "llama_kv_cache_init: failed to allocate buffer for kv cache"),
         Row("failed to allocate compute buffers", "llama_init_from_model: failed to allocate compute buffers"),
         Row("out of memory. Try to lower your batch size", "Decode out of memory. Try to lower your batch size.", r"\w+ out of memory\. Try to lower your"),  # SGLang
         Row("Got an OOM, unloading all loaded models"),  # ComfyUI
         Row("(allocated so far: ", "Out of memory allocating 25,600,000 bytes (allocated so far: 3,635,267,072 bytes).",  # CuPy
             r"Out of memory allocating [\d,]{1,30} bytes \(allocated so far: ", {"requested": 25_600_000}),
         gpu=gpu_numbers, fits=_of_a_gpu, refine=_sentence),
    # a title cut off its first words
    Rule("cuda-oom", _OOM, 0.8,
         Row("Tried to allocate ", "Tried to allocate 20.00 MiB (GPU 0; 1.96 GiB total capacity; 1.24 GiB already allocated; 2.88 MiB free)",
             r"^\W{0,4}Tried to allocate [\d.]+ [KMGT]i?B(?: \(GPU \d+; |\. GPU \d+ has)", {"requested": 20 << 20, "total": round(1.96 * _GIB)}),
         gpu=gpu_numbers, fits=_of_a_gpu),
    Rule("cuda-oom", _OOM, 0.97,
         Row("OutOfMemoryError", 'Traceback (most recent call last):\n  File "train.py", line 3, in f\n    g()\ntorch.cuda.OutOfMemoryError',
             r"^(?:torch\.|torch\.cuda\.|cupy\.cuda\.memory\.|cupy_backends\S*\.)?OutOfMemoryError\b"),
         Row(" out of memory", "RuntimeError: XPU out of memory, please reduce the batch", r"^\w*Error: (?:CUDA|HIP|XPU) out of memory"),
         only="raised", gpu=gpu_numbers, fits=_of_a_gpu, refine=_sentence),
    Rule("cuda-oom", "the model leaves no GPU memory for the KV cache", 0.6,  # vLLM, SGLang, TGI
         Row("No available memory for the cache blocks", "ValueError: No available memory for the cache blocks."),
         Row("No executable batch size found", "RuntimeError: No executable batch size found, reached zero."),  # accelerate
         Row("KV cache is needed", "ValueError: To serve at least one request with the models's max seq len (131072), (24.00 GiB KV cache is needed, "
             "which is larger than the available KV cache memory (13.69 GiB).", _TOO_LONG, {"requested": 24 * _GIB, "free": round(13.69 * _GIB)}),
         Row("Not enough memory to handle ", "RuntimeError: Not enough memory to handle 4096 prefill tokens."),
         Row("_slots runs out of memory", "RuntimeError: alloc_req_slots runs out of memory."),
         only="raised", fits=_of_a_gpu, gpu=_cache),
    Rule("mps-oom", "Apple's GPU allocator reached its limit", 0.95,
         Row("MPS backend out of memory", "RuntimeError: MPS backend out of memory (MPS allocated: 8.00 GB, max allowed: 9.07 GB). Tried to allocate 1.00 GB",
             gives={"requested": _GIB}),
         Row("Invalid buffer size: ", "RuntimeError: Invalid buffer size: 20.00 GB", gives={"requested": 20 * _GIB}),
         Row("kIOGPUCommandBufferCallbackErrorOutOfMemory"),
         Row("malloc", "RuntimeError: [metal::malloc] Attempting to allocate 9000 bytes which is greater than the maximum", r"\[(?:metal::malloc|malloc_or_wait)\]"),  # MLX
         Row("Insufficient Memory (0000", "RuntimeError: Insufficient Memory (00000008:kIOGPU)"),
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
         Row("Memory usage: ", "E cuda_dnn.cc:336] Error: Memory usage: 512 bytes free, 8192 bytes total.", _CARD, {"free": 512, "total": 8192}),
         kind="talk", gpu=_card),
    Rule("cublas-alloc", "cuBLAS could not be set up; whether memory was missing the text does not say", 0.85,
         Row("_STATUS_", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
             r"(?:BLAS|CUSOLVER|CUSPARSE)_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED|INSUFFICIENT_RESOURCES|SUCCESS \([13] vs\. 0\))"),
         Row("rocblas_status_memory_error", "RuntimeError: rocblas_status_memory_error"),
         Row("cublas runtime error : ", "RuntimeError: cublas runtime error : resource allocation failed at THCGeneral.cpp:250",
             r"cublas runtime error : (?:resource allocation failed|library not initialized)"),
         Row("GEMM", "tensorflow.python.framework.errors_impl.InternalError: Blas GEMM launch failed : a.shape=(64, 100)", r"Blas (?:x)?GEMM\w* launch failed"),
         Row("BLAS operation using StreamExecutor without BLAS support"),
         printed=0.6, loud=True),
    Rule("other-error", "a routine of cuBLAS failed on the GPU", 0.6,
         Row("BLAS_STATUS_", "[TRT] [E] CUBLAS_STATUS_EXECUTION_FAILED", r"BLAS_STATUS_(?!SUCCESS)\w+"), only="printed", loud=True),
    Rule("cudnn", "cuDNN failed: no memory for its workspace, or versions that do not fit", 0.85,
         Row("CUDNN_", "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", r"CUDNN_(?:STATUS_(?!SUCCESS(?! \([1-9]))|BACKEND_API_FAILED)"),
         Row("cuDNN ", "RuntimeError: cuDNN error: unknown", r"cuDNN (?:Frontend )?error|cuDNN launch failure|valid cuDNN algorithm to run"),
         Row("cudnn_frontend", "RuntimeError: cudnn_frontend error: no execution plans"),
         Row("iopenStatus", "RuntimeError: miopenStatusUnknownError", r"[Mm]iopenStatus(?!Success)\w+"),
         Row("Failed to get convolution algorithm", "UnknownError: Failed to get convolution algorithm."),
         Row("unable to find an engine to execute", "RuntimeError: GET was unable to find an engine to execute this computation"),
         Row("ould not create cudnn handle", "E tensorflow/stream_executor/cuda/cuda_dnn.cc:329] Could not create cudnn handle: failed"),
         printed=0.5, loud=True,  # PyTorch tries another plan
         fits=lambda said, match: bool(said.raised) or not re.search(r"(?i)Plan failed with|autotun|benchmark", said.text)),
)  # fmt: skip
