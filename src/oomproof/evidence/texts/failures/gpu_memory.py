"""Out of GPU memory: PyTorch on CUDA, HIP and XPU, and the libraries that speak to the driver themselves."""

from __future__ import annotations

import re

from oomproof.evidence.texts.cuda_sentence import gpu_numbers
from oomproof.evidence.texts.failures.hit import Hit, Said, is_message
from oomproof.evidence.texts.finding import GpuNumbers
from oomproof.evidence.texts.quantities import SIZE, amount

ANCHORS = ("out of memory", "Out of memory", "OutOfMemory", "out_of_memory", "OUT_OF_MEMORY", "MemoryAllocation",
           "failed with OOM", "Effective GPU memory", "PT_DEVMEM", "use lower resolution", "CUDA calloc", "CUDA host alloc", "cudaSuccess", "No available memory for the cache", "OUT_OF_DEVICE_MEMORY",
           "amount of GPU memory", "Free memory on device", "exceed allowed memory",
           "OutOfDeviceMemory", "BFCArena", "mem-fraction-static", "PI_ERROR_OUT_OF", "UR_RESULT_ERROR_OUT_OF", "Device memory allocation")  # fmt: skip

_TORCH = re.compile(r"(CUDA|HIP|XPU|NPU|MUSA|Tensor) out of memory(?:\.|:)? ?(?:Tried to allocate|$)")
_DRIVER = re.compile(
    r"(?:CUDA|HIP|cuda|hip)(?: runtime| driver)? [Ee]rror:? ?(?:\(2\)|2\b)?[^\n]{0,120}?:? ?out of memory"
    r"|cudaErrorMemoryAllocation|hipErrorOutOfMemory|CUDA_ERROR_OUT_OF_MEMORY|cudaMalloc[^\n]{0,40} failed: out of memory"
    r"|cuMemAlloc failed: out of memory|(?:Cuda|CUDA) failure[ :]*(?:2 )?'?out of memory"
    r"|(?:cudaSuccess|CUDA_SUCCESS)[^\n]{0,60}out of memory|Out of memory error on GPU \d|after cudaMalloc: out of memory"
    r"|Error Code 2: OutOfMemory|Requested amount of GPU memory \(\d+ bytes\) could not be allocated"
    r"|UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY|out_of_memory: CUDA error|Failed to CUDA (?:host )?[cm]?alloc"
    r"|== ?cudaSuccess[^\n]{0,80}\(2 vs\.? 0\)"
    r"|(?<![\w./-])[\w./-]{0,200}\.cuh?(?:\(\d+\)|:\d+): out of memory|thrust::[^\n]{0,120}out of memory|TOutOfMemoryError[^\n]{0,200}Out of memory\. Requested"
    r"|(?:THCudaCheck FAIL[^\n]{0,200})?error=2 : out of memory|Allocation on device(?: \d+)?(?: would exceed allowed memory|$)|BFCArena::AllocateRawInternal[^\n]{0,300}Failed to allocate memory"
    r"|ErrorOutOfDeviceMemory|Device memory allocation of size \d+ failed|Not enough memory\. Please try to increase --mem-fraction-static"
    r"|Not enough memory, use lower resolution|PT_DEVMEM Allocation failed for size|PI_ERROR_OUT_OF_(?:RESOURCES|DEVICE_MEMORY)|UR_RESULT_ERROR_OUT_OF_RESOURCES"
    r"|[Cc]uda (?:[Ee]rror|Runtime)[^\n]{0,120}\(out of memory\)|cudaMalloc retry failed|(?:GPU|VRAM|CUDA|[Dd]evice)[^\n]{0,60}\b[Oo]ut of memory\b[^\n]{0,40}(?:[Rr]equested|[Ff]ailed to allocate|[Cc]annot allocate)"
)
_RAISED = re.compile(
    r"^(?:torch\.|torch\.cuda\.|cupy\.cuda\.memory\.|cupy_backends\S*\.)?OutOfMemoryError\b"
    r"|^\w*Error: (?:CUDA|HIP|XPU) out of memory"
)
_WARNING = re.compile(r"memory allocation failed with OOM on device \d+")
_CACHE = re.compile(r"No available memory for the cache blocks")  # vLLM: the weights leave no room for it
# vLLM looks before it leaps: "(31.44/47.38 GiB) on startup is less than desired GPU memory utilization"
_TOO_LITTLE = re.compile(
    r"Free memory on device[^\n]{0,24} \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than desired"
)
# CUDA.jl, below its exception
_USAGE = re.compile(rf"^Effective GPU memory usage: [\d.]+% \([^/]{{1,20}}/{SIZE}\)")
_XLA = re.compile(r"RESOURCE_EXHAUSTED|external/|tensorflow/|Xla")
_HOST = re.compile(
    r"cv::OutOfMemoryError|in function 'OutOfMemoryError'|java\.lang\.|Container killed|heap|ray\.exceptions|Insufficient memory"
)


def recognise(said: Said) -> Hit | None:
    text = said.text
    if _HOST.search(text):
        return None
    if "CUDA_ERROR_OUT_OF_MEMORY" in text and (said.library or _XLA.search(text)):
        return None  # XLA's and TensorFlow's own recognisers know what that line is worth
    if _WARNING.search(text):
        return Hit(
            "cuda-oom", "PyTorch's allocator warns that the GPU has no room", 0.6, "talk", gpu_numbers(text)
        )
    if usage := _USAGE.search(text):
        return Hit(
            "cuda-oom", "how full the GPU was", 0.1, "talk", GpuNumbers(total=amount(usage[1], usage[2]))
        )
    if little := _TOO_LITTLE.search(text):
        room = GpuNumbers(total=amount(little["total"], "GiB"), free=amount(little["free"], "GiB"))
        return Hit("cuda-oom", "the GPU has less free memory than the engine is told to take", 0.7, gpu=room)
    sentence = _TORCH.search(text) or _DRIVER.search(text)
    raised = bool(_RAISED.search(text)) and bool(said.raised)
    if not sentence and not raised:
        if _CACHE.search(text) and said.raised:
            return Hit("cuda-oom", "the model leaves no GPU memory for the KV cache", 0.6)
        return None
    numbers = gpu_numbers(text)
    if not said.raised and not is_message(sentence, said):
        return Hit("cuda-oom", "the text speaks of a GPU out of memory", 0.2, "talk", numbers)
    if said.quiet:
        return Hit("cuda-oom", "a warning says that the GPU ran out of memory", 0.3, "talk", numbers)
    backend = "HIP" if "HIP" in text[: text.find("out of memory") + 1] else "CUDA"
    return Hit(
        "cuda-oom",
        f"{backend} could not allocate GPU memory",
        0.97,
        gpu=numbers,
        details={"backend": backend},
    )
