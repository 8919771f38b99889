"""GPUs: out of memory as PyTorch and the drivers say it, faults that are no lack of memory, cuBLAS and cuDNN."""

from __future__ import annotations

import re

from oomproof.evidence.texts.cuda_sentence import gpu_numbers
from oomproof.evidence.texts.failures.recogniser import FailureText, Hit, is_message
from oomproof.evidence.texts.failures.rules import Row, Rule
from oomproof.evidence.texts.finding import GpuNumbers
from oomproof.evidence.texts.quantities import SIZE, amount
from oomproof.records import replace

_GIB = 1 << 30
# glog prints only CUDA's number: "Check failed: error == cudaSuccess (77 vs. 0)"; numbers changed with CUDA 10.1
GPU_FAULTS = (
    Rule("device-assert", "a GPU kernel's check failed: {what}", 0.9,
         Row("thread: [", "../aten/src/ATen/native/cuda/Loss.cu:242: nll_loss_forward: block: [0,0,0], thread: [3,0,0] Assertion `t >= 0 && t < n_classes` failed.",
             r"block: \[[\d,]+\],? thread: \[[\d,]+\]\W+Assertion [`'](?P<what>.{0,200}?)(?:[`'] failed|$)")),
    Rule("device-assert", "an assertion failed inside a GPU kernel", 0.95,
         Row("device-side assert", "RuntimeError: CUDA error: device-side assert triggered", r"(?<!to enable )device-side assert",
             other="RuntimeError: CUDA error: invalid argument. Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."),
         Row("cudaErrorAssert", "RuntimeError: cudaErrorAssert"),
         Row("CUDA_ERROR_ASSERT", "F tensorflow: CUDA_ERROR_ASSERT: exception"),
         Row("Device-side assertion", "RuntimeError: Device-side assertion failed"),
         Row("cudaSuccess", "F0501 10:00:00.123456 4242 x.cu:20] Check failed: error == cudaSuccess (59 vs. 0)", r"== ?cudaSuccess[^\n]{0,80}\((?:59|710) vs\.? 0\)"),
         printed=0.7),
    # the card itself is gone; without the driver's Xid nothing says why
    Rule("other-error", "the GPU does not answer any more, or its memory is faulty", 0.7,
         Row("GPU is lost", "GPU is lost. Reboot the system to recover this GPU"),
         Row("fallen off the bus", "GPU at 0000:3b:00 has fallen off the bus"),
         Row("ncorrectable ECC error", "RuntimeError: CUDA error: uncorrectable ECC error encountered", r"[Uu]ncorrectable ECC error"),
         Row("Unable to determine the device handle for", "Unable to determine the device handle for GPU0: 0000:3B:00.0: Unknown Error"),
         loud=True, unless="Xid"),
    Rule("other-error", "a GPU kernel needs more of the chip's own memory than there is", 0.8,
         Row("out of resource: ", "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 196608, Hardware limit: 101376", r"out of resource: (?:shared memory|threads|registers|tensor memory), Required: \d")),
    Rule("other-error", "a call to the GPU failed; what it was stands above it", 0.4,
         Row("c10_cuda_check_implementation", "Exception raised from c10_cuda_check_implementation at CUDAException.cpp:43 (most recent call first):", r"^Exception raised from c10_cuda_check_implementation"),
         only="printed"),
    Rule("other-error", "a call to the GPU failed", 0.5,
         Row("rror: ", "CUDA error: invalid device ordinal", r"^(?:CUDA|HIP) [Ee]rror: (?!.{0,80}(?:out of memory|illegal|misaligned|assert))\w+ \w+"),
         only="printed", loud=True),
    Rule("illegal-access", "a GPU kernel touched an address that is not its own", 0.95,
         Row("illegal memory access", "RuntimeError: CUDA error: an illegal memory access was encountered"),
         Row("CUDA_ERROR_ILLEGAL_ADDRESS", "RuntimeError: CUDA_ERROR_ILLEGAL_ADDRESS"),
         Row("ErrorIllegalAddress", "RuntimeError: cudaErrorIllegalAddress", r"(?:cuda|hip)ErrorIllegalAddress"),
         Row("HSA_STATUS_ERROR_MEMORY_", "Queue 0x7f aborting with error : HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: The agent attempted to access memory", r"HSA_STATUS_ERROR_MEMORY_(?:APERTURE_VIOLATION|FAULT)"),
         Row("HSA_STATUS_ERROR_EXCEPTION", "Queue 0x7f aborting with error : HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception. code: 0x1016"),
         Row("CudaAPIError: [", "numba.cuda.cudadrv.driver.CudaAPIError: [700] Call to cuMemcpyDtoH results in UNKNOWN_CUDA_ERROR", r"CudaAPIError: \[(?:700|716|719)\]"),
         Row("misaligned address", "RuntimeError: CUDA error: misaligned address"),
         Row("an illegal instruction was encountered", "RuntimeError: CUDA error: an illegal instruction was encountered"),
         Row("Memory access fault by GPU", "Memory access fault by GPU node-1 (Agent handle: 0x1) on address 0x7f. Reason: Page not present"),
         Row("unspecified launch failure", "RuntimeError: CUDA error: unspecified launch failure"),
         Row("CUDA_ERROR_LAUNCH_FAILED", "pycuda._driver.LogicError: CUDA_ERROR_LAUNCH_FAILED"),
         Row("cudaSuccess", "F0501 10:00:00.123456 4242 x.cu:20] Check failed: error == cudaSuccess (77 vs. 0)",
             r"== ?cudaSuccess[^\n]{0,80}\((?:4|74|77|700|716|719) vs\.? 0\)"),
         printed=0.75),
)  # fmt: skip


_HOST = re.compile(
    r"cv::OutOfMemoryError|in function 'OutOfMemoryError'|java\.lang\.|Container killed|heap|ray\.exceptions|Insufficient memory"
)
_XLA = re.compile(r"RESOURCE_EXHAUSTED|external/|tensorflow/|Xla")


def _of_a_gpu(said: FailureText, match: re.Match[str]) -> bool:
    # XLA's and TensorFlow's own recognisers know what the driver's word is worth in their lines
    theirs = "CUDA_ERROR_OUT_OF_MEMORY" in said.text and (said.library or _XLA.search(said.text))
    return not theirs and not _HOST.search(said.text)


def _sentence(said: FailureText, match: re.Match[str], hit: Hit) -> Hit:
    """The sentence as a message, in a warning, or in somebody's words."""
    if not said.raised and not is_message(match, said):
        return replace(hit, says="the text speaks of a GPU out of memory", strength=0.2, kind="talk")
    if said.quiet:
        return replace(hit, says="a warning says that the GPU ran out of memory", strength=0.3, kind="talk")
    backend = "HIP" if "HIP" in said.text[: said.text.find("out of memory") + 1] else "CUDA"
    return replace(hit, says=f"{backend} could not allocate GPU memory")


_USAGE = rf"^Effective GPU memory usage: [\d.]+% \([^/]{{1,20}}/{SIZE}\)"
_TOO_LITTLE = r"Free memory on device[^\n]{0,24} \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than desired"


def _usage(text: str) -> GpuNumbers | None:
    match = re.search(_USAGE, text)
    return GpuNumbers(total=amount(match[1], match[2])) if match else None


def _startup(text: str) -> GpuNumbers | None:
    match = re.search(_TOO_LITTLE, text)
    return (
        GpuNumbers(total=amount(match["total"], "GiB"), free=amount(match["free"], "GiB")) if match else None
    )


_TOO_LONG = rf"\({SIZE} KV cache is needed, which is larger than the available KV cache memory \({SIZE}\)"


def _cache(text: str) -> GpuNumbers | None:
    match = re.search(_TOO_LONG, text)
    return (
        GpuNumbers(requested=amount(match[1], match[2]), free=amount(match[3], match[4])) if match else None
    )


GPU_MEMORY = (
    Rule("cuda-oom", "PyTorch's allocator warns that the GPU is full", 0.6,
         Row("memory allocation failed with OOM on device ", "[W CUDAAllocator.cpp:30] memory allocation failed with OOM on device 0 while trying to allocate 4096 bytes (free: 512, total: 8192)",
             r"memory allocation failed with OOM on device \d+", {"requested": 4096, "total": 8192}),
         kind="talk", gpu=gpu_numbers, fits=_of_a_gpu),
    # CUDA.jl, below its exception
    Rule("cuda-oom", "how full the GPU was", 0.1,
         Row("Effective GPU memory usage: ", "Effective GPU memory usage: 99.69% (15.649 GiB/15.699 GiB)", _USAGE, {"total": round(15.699 * _GIB)}),
         kind="talk", gpu=_usage, fits=_of_a_gpu),
    # vLLM looks before it leaps
    Rule("cuda-oom", "the GPU has less free memory than the engine is told to take", 0.7,
         Row("Free memory on device", "ValueError: Free memory on device cuda:0 (31.44/47.38 GiB) on startup is less than desired GPU memory utilization",
             _TOO_LITTLE, {"total": round(47.38 * _GIB), "free": round(31.44 * _GIB)}),
         gpu=_startup, fits=_of_a_gpu),
    Rule("cuda-oom", "CUDA could not allocate GPU memory", 0.97,
         Row("out of memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB of which 1.05 GiB is free.",
             r"(?:CUDA|HIP|XPU|NPU|MUSA|Tensor) out of memory(?:\.|:)? ?(?:Tried to allocate|$)", {"requested": 2 * _GIB, "total": round(23.69 * _GIB)}),
         gpu=gpu_numbers, fits=_of_a_gpu, refine=_sentence),
    # a title took its first words away
    Rule("cuda-oom", "CUDA could not allocate GPU memory", 0.8,
         Row("Tried to allocate ", "Tried to allocate 20.00 MiB (GPU 0; 1.96 GiB total capacity; 1.24 GiB already allocated; 2.88 MiB free)",
             r"^\W{0,4}Tried to allocate [\d.]+ [KMGT]i?B(?: \(GPU \d+; [\d.]+ [KMG]i?B total capacity|\. GPU \d+ has a total capac)", {"requested": 20 << 20, "total": round(1.96 * _GIB)}),
         gpu=gpu_numbers, fits=_of_a_gpu),
    Rule("cuda-oom", "CUDA could not allocate GPU memory", 0.97,
         Row("out of memory", "RuntimeError: CUDA error: out of memory",
             r"(?:CUDA|HIP|cuda|hip)(?: runtime| driver)? [Ee]rror:? ?(?:\(2\)|2\b)?[^\n]{0,120}?:? ?out of memory"),
         Row("(cudaErrorMemoryAllocation)", 'CUDA error at main.cu:12 code=2(cudaErrorMemoryAllocation) "cudaMalloc(&p, n)"', r"^CUDA error at \S{1,300} code=\d+\(cudaErrorMemoryAllocation\)"),
         Row("cudaErrorMemoryAllocation", "RuntimeError: cudaErrorMemoryAllocation"),
         Row("hipErrorOutOfMemory", "RuntimeError: hipErrorOutOfMemory"),
         Row("CUDA_ERROR_OUT_OF_MEMORY", "numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY"),
         Row("failed: out of memory", "ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory", r"cudaMalloc[^\n]{0,40} failed: out of memory|cuMemAlloc failed: out of memory"),
         Row("out of memory", "ncclUnhandledCudaError: Cuda failure 2 'out of memory'", r"(?:Cuda|CUDA) failure[ :]*(?:2[: ]+)?'?out of memory"),
         Row("Failed to cudaMalloc ", "Faiss assertion 'cudaMalloc(p, size) == cudaSuccess' failed in allocMemorySpace; details: Failed to cudaMalloc 4096 bytes", gives={"requested": 4096}),
         Row("failed to cudaMalloc ", "Faiss assertion 'err == cudaSuccess' failed; details: failed to cudaMalloc 4096 bytes (error 2 out of memory)", gives={"requested": 4096}),
         Row("out of memory", "F0501 10:00:00.123456 4242 x.cu:20] Check failed: error == cudaSuccess (2 vs. 0)  out of memory", r"(?:cudaSuccess|CUDA_SUCCESS)[^\n]{0,60}out of memory"),
         Row("Memory allocation failed", "[19:03:47] src/storage/./pooled_storage_manager.h:62: Memory allocation failed.", r"(?:\[[\d:]{8}\] )?\S{0,80}pooled_storage_manager\.h:\d+: Memory allocation failed"),
         Row("Out of memory error on GPU ", "ResourceExhaustedError: Out of memory error on GPU 0. Cannot allocate 1.5GB memory on GPU 0", r"Out of memory error on GPU \d"),
         Row("enforce allocating <= available failed", "paddle.fluid.core.EnforceNotMet: enforce allocating <= available failed, 4096 > 512", r"enforce allocating <= available failed, \d+ > \d+", {"requested": 4096}),
         Row("after cudaMalloc: out of memory", "RuntimeError: CUDA error after cudaMalloc: out of memory"),
         Row("Error Code 2: OutOfMemory", "[TRT] [E] 2: Error Code 2: OutOfMemory (no further information)"),
         Row("Requested amount of GPU memory", "[TRT] [E] Requested amount of GPU memory (4096 bytes) could not be allocated.",
             r"Requested amount of GPU memory \(\d+ bytes\) could not be allocated", {"requested": 4096}),
         Row("UR_RESULT_ERROR_OUT_OF_", "RuntimeError: level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", r"UR_RESULT_ERROR_OUT_OF_(?:DEVICE_MEMORY|RESOURCES)"),
         Row("out_of_memory: CUDA error", "MemoryError: std::bad_alloc: out_of_memory: CUDA error at: device_memory_resource.hpp"),
         Row("rmm::out_of_memory", "RuntimeError: rmm::out_of_memory: RMM failure at: pool_memory_resource.hpp: Maximum pool size exceeded"),
         Row("MEM_OBJECT_ALLOCATION_FAILURE", "pyopencl._cl.MemoryError: clEnqueueNDRangeKernel failed: MEM_OBJECT_ALLOCATION_FAILURE"),
         Row("System is out of GPU", "System is out of GPU and shared host memory", r"System is out of GPU (?:and shared host )?memory"),
         Row("Failed to CUDA ", "[ft] Failed to CUDA calloc 4096 bytes", r"Failed to CUDA (?:host )?[cm]?alloc"),
         Row("cudaSuccess", "F0501 10:00:00.123456 4242 x.cu:20] Check failed: error == cudaSuccess (2 vs. 0)", r"== ?cudaSuccess[^\n]{0,80}\(2 vs\.? 0\)"),
         Row(": out of memory", "/src/dmlc/src/engine.cu:56: out of memory", r"(?<![\w./-])[\w./-]{0,200}\.cuh?(?:\(\d+\)|:\d+): out of memory"),
         Row("thrust::", "RuntimeError: thrust::system::system_error: after dispatch: out of memory", r"thrust::[^\n]{0,120}out of memory"),
         Row("TOutOfMemoryError", "catboost.CatBoostError: (NCudaLib::TOutOfMemoryError) memory.h:9: Error: Out of memory. Requested 9 MB", r"TOutOfMemoryError[^\n]{0,200}Out of memory\. Requested"),
         Row("error=2 : out of memory", "THCudaCheck FAIL file=/pytorch/aten/src/THC/THCGeneral.cpp line=50 error=2 : out of memory", r"(?:THCudaCheck FAIL[^\n]{0,200})?error=2 : out of memory"),
         Row("Allocation on device", "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)", r"Allocation on device(?: \d+)?(?: would exceed allowed memory|$)"),
         Row("BFCArena::AllocateRawInternal", "onnxruntime::RuntimeException: bfc_arena.cc:376 void* onnxruntime::BFCArena::AllocateRawInternal(size_t) Failed to allocate memory for requested buffer of size 4096",
             r"BFCArena::AllocateRawInternal[^\n]{0,300}Failed to allocate memory", {"requested": 4096}),
         Row("ErrorOutOfDeviceMemory", "vk::Device::allocateMemory: ErrorOutOfDeviceMemory"),
         Row("Device memory allocation of size ", "ggml_vulkan: Device memory allocation of size 4096 failed.", r"Device memory allocation of size \d+ failed", {"requested": 4096}),
         Row("Not enough memory. Please try to increase --mem-fraction-static", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."),
         Row("Not enough memory, use lower resolution", "RuntimeError: Not enough memory, use lower resolution (max approx. 640x640)"),
         Row("PT_DEVMEM Allocation failed for size", "RuntimeError: [Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::4096 (0)MB", gives={"requested": 4096}),
         Row("PI_ERROR_OUT_OF_", "RuntimeError: Native API failed. Native API returns: -5 (PI_ERROR_OUT_OF_RESOURCES)", r"PI_ERROR_OUT_OF_(?:RESOURCES|DEVICE_MEMORY)"),
         Row("(out of memory)", "Cuda error in file 'src/cuda.cpp' at line 20 (out of memory)", r"[Cc]uda (?:[Ee]rror|Runtime)[^\n]{0,120}\(out of memory\)"),
         Row("[CUDA] out of memory", "[LightGBM] [Fatal] [CUDA] out of memory /src/cuda_utils.cu 25"),
         Row("Out of memory. Requested ", "_catboost.CatBoostError: Error: Out of memory. Requested 2048.5; Free 512", r"Out of memory\. Requested [\d.]+; Free "),
         Row("RMM failure at", "MemoryError: std::bad_alloc: out_of_memory: RMM failure at:pool_memory_resource.hpp:257: Maximum pool size exceeded (failed to allocate 8.000000 GiB)",
             r"out_of_memory: RMM failure at", {"requested": 8 * _GIB}),
         Row("CUDA error at: ", "MemoryError: std::bad_alloc: CUDA error at: rmm/mr/device/cuda_memory_resource.hpp", r"bad_alloc: CUDA error at: "),
         Row("(-217:Gpu API call) out of memory", "cv2.error: OpenCV(4.8.0) gpu_mat.cu:121: error: (-217:Gpu API call) out of memory in function 'allocate'"),
         Row("HSA_STATUS_ERROR_OUT_OF_RESOURCES", "Callback: Queue 0x7f Aborting with error : HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate the necessary resources."),
         Row("Error out of memory at line ", "Error out of memory at line 380 in file /src/csrc/pythonInterface.c", r"^Error out of memory at line \d+ in file "),  # bitsandbytes
         Row("unable to allocate ", "llama_model_load: error loading model: unable to allocate CUDA0 buffer", r"unable to allocate (?:CUDA|ROCm|Vulkan|SYCL|Metal|CANN|MUSA)\w* buffer"),
         Row("failed to allocate buffer for kv cache", "llama_kv_cache_init: failed to allocate buffer for kv cache"),
         Row("failed to allocate compute buffers", "llama_init_from_model: failed to allocate compute buffers"),
         Row("out of memory. Try to lower your batch size", "Decode out of memory. Try to lower your batch size.", r"(?:Prefill|Decode) out of memory\. Try to lower your batch size"),  # SGLang
         Row("_slots runs out of memory", "RuntimeError: alloc_req_slots runs out of memory. Please set a smaller number for `--max-running-requests`."),
         Row("Out of memory on device. ", "Out of memory on device. To view more detail about available memory on the GPU, use 'gpuDevice()'."),  # MATLAB
         Row("failed out of memory", "cudaMalloc GpuBuffer::Allocate failed out of memory", r"\bcudaMalloc \S{1,80} failed out of memory"),  # AMBER
         Row("Out of memory in ", "Out of memory in CUDA queue enqueue (integrator_shade_surface)", r"Out of memory in (?:CUDA|HIP|OptiX|Metal|OneAPI) "),  # Blender
         Row("Got an OOM, unloading all loaded models", "Got an OOM, unloading all loaded models."),  # ComfyUI
         Row("Cuda malloc failed", "Cuda malloc failed"),  # Darknet
         Row("(cudaMalloc error out of memory", "alloc fail type FlatData dev 2 space Device stream 0 size 4096 bytes (cudaMalloc error out of memory [2])", r"(?:^ ?|\balloc )fail type .{0,160}\(cudaMalloc error out of memory", {"requested": 4096}),
         Row("(allocated so far: ", "Out of memory allocating 25,600,000 bytes (allocated so far: 3,635,267,072 bytes).", r"Out of memory allocating [\d,]{1,30} bytes \(allocated so far: ", {"requested": 25_600_000}),  # CuPy
         Row("cudaMalloc retry failed", "terminate: cudaMalloc retry failed: memory"),
         Row("ut of memory", "GPU 0: Out of memory, failed to allocate 9 MB", r"(?:GPU|VRAM|CUDA|[Dd]evice)[^\n]{0,60}\b[Oo]ut of memory\b[^\n]{0,40}(?:[Rr]equested|[Ff]ailed to allocate|[Cc]annot allocate)"),
         gpu=gpu_numbers, fits=_of_a_gpu, refine=_sentence),
    Rule("cuda-oom", "CUDA could not allocate GPU memory", 0.97,
         Row("OutOfMemoryError", 'Traceback (most recent call last):\n  File "train.py", line 3, in f\n    g()\ntorch.cuda.OutOfMemoryError', r"^(?:torch\.|torch\.cuda\.|cupy\.cuda\.memory\.|cupy_backends\S*\.)?OutOfMemoryError\b"),
         Row(" out of memory", "RuntimeError: XPU out of memory, please reduce the batch", r"^\w*Error: (?:CUDA|HIP|XPU) out of memory"),
         only="raised", gpu=gpu_numbers, fits=_of_a_gpu, refine=_sentence),
    # vLLM: the weights leave no memory for it
    Rule("cuda-oom", "the model leaves no GPU memory for the KV cache", 0.6,
         Row("No available memory for the cache blocks", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"),
         Row("No executable batch size found", "RuntimeError: No executable batch size found, reached zero."),  # accelerate
         Row("KV cache is needed", "ValueError: To serve at least one request with the models's max seq len (131072), (24.00 GiB KV cache is needed, which is larger than the available KV cache memory (13.69 GiB).",
             _TOO_LONG, {"requested": 24 * _GIB, "free": round(13.69 * _GIB)}),
         Row("Not enough memory to handle ", "RuntimeError: Not enough memory to handle 4096 prefill tokens. You need to decrease `--max-batch-prefill-tokens`", r"Not enough memory to handle \d+ (?:prefill|total) tokens"),
         only="raised", fits=_of_a_gpu, gpu=_cache),
)  # fmt: skip

_CARD = r"\bMemory usage: (?P<free>\d{1,16}) bytes free, (?P<total>\d{1,16}) bytes total"


def _card(text: str) -> GpuNumbers | None:
    card = re.search(_CARD, text)
    return GpuNumbers(total=int(card["total"]), free=int(card["free"])) if card else None


# Often a full GPU in disguise, often not: the text alone does not settle it
GPU_LIBRARIES = (
    # StreamExecutor prints it below a handle that it could not have
    Rule("cudnn", "how full the GPU was when cuDNN failed", 0.1,
         Row("Memory usage: ", "E tensorflow/stream_executor/cuda/cuda_dnn.cc:336] Error: Memory usage: 512 bytes free, 8192 bytes total.", _CARD, {"free": 512, "total": 8192}),
         kind="talk", gpu=_card),
    Rule("cublas-alloc", "cuBLAS could not be set up; whether memory was missing the text does not say", 0.85,
         Row("BLAS_STATUS_", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", r"(?:CU|HIP|ROC)BLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)"),
         Row("rocblas_status_memory_error", "RuntimeError: rocblas_status_memory_error"),
         Row("CUSOLVER_STATUS_", "RuntimeError: cusolver error: CUSOLVER_STATUS_ALLOC_FAILED", r"CUSOLVER_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)"),
         Row("CUSPARSE_STATUS_", "RuntimeError: CUSPARSE_STATUS_INSUFFICIENT_RESOURCES", r"CUSPARSE_STATUS_(?:ALLOC_FAILED|INSUFFICIENT_RESOURCES)"),
         Row("cublas runtime error : ", "RuntimeError: cublas runtime error : resource allocation failed at THCGeneral.cpp:250",
             r"cublas runtime error : (?:resource allocation failed|library not initialized)"),
         Row("CUBLAS_STATUS_SUCCESS (", "F0501 10:00:00.123456 4242 common.cpp:114] Check failed: status == CUBLAS_STATUS_SUCCESS (3 vs. 0)", r"CUBLAS_STATUS_SUCCESS \([13] vs\. 0\)"),
         Row("GEMM", "tensorflow.python.framework.errors_impl.InternalError: Blas GEMM launch failed : a.shape=(64, 100)", r"Blas (?:x)?GEMM\w* launch failed"),
         Row("BLAS operation using StreamExecutor without BLAS support", "InternalError: Attempting to perform BLAS operation using StreamExecutor without BLAS support"),
         printed=0.6, loud=True),
    Rule("other-error", "a routine of cuBLAS failed on the GPU", 0.6,
         Row("BLAS_STATUS_", "[TRT] [E] CUBLAS_STATUS_EXECUTION_FAILED", r"(?:CU|HIP|ROC)BLAS_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|ARCH_MISMATCH|INVALID_VALUE|MAPPING_ERROR)"),
         only="printed", loud=True),
    Rule("cudnn", "cuDNN failed: no memory for its workspace, or versions that do not fit", 0.85,
         Row("CUDNN_STATUS_", "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", r"CUDNN_STATUS_(?!SUCCESS)\w+|CUDNN_STATUS_SUCCESS \([1-9]\d* vs\. 0\)"),
         Row("cuDNN ", "RuntimeError: cuDNN error: unknown", r"cuDNN error|cuDNN launch failure|valid cuDNN algorithm to run|cuDNN Frontend error"),
         Row("CUDNN_BACKEND_API_FAILED", "RuntimeError: CUDNN_BACKEND_API_FAILED"),
         Row("iopenStatus", "RuntimeError: miopenStatusUnknownError", r"[Mm]iopenStatus(?!Success)\w+"),
         Row("Failed to get convolution algorithm", "UnknownError: Failed to get convolution algorithm. This is probably because cuDNN failed to initialize"),
         Row("unable to find an engine to execute", "RuntimeError: GET was unable to find an engine to execute this computation"),
         Row("cudnn_frontend", "RuntimeError: cudnn_frontend error: no execution plans"),
         Row("ould not create cudnn handle", "E tensorflow/stream_executor/cuda/cuda_dnn.cc:329] Could not create cudnn handle: failed", r"[Cc]ould not create cudnn handle"),
         printed=0.5, loud=True,  # PyTorch tries another plan
         fits=lambda said, match: bool(said.raised) or not re.search(r"(?i)Plan failed with|autotun|benchmark", said.text)),
)  # fmt: skip
