"""What a card takes that no tensor shows: one table, each figure with where it was measured."""

from __future__ import annotations

from oomproof.records import dataclass
from oomproof.units import MIB


@dataclass(frozen=True, slots=True)
class Constant:
    """Bytes: the usual figure, and the range it was seen in."""

    low: int
    usual: int
    high: int


@dataclass(frozen=True, slots=True)
class Card:
    """Context: CUDA's own, kernels of torch's libraries, cuBLAS and cuDNN handles: device memory used less max_memory_reserved."""

    context: Constant
    # of it only where matrices are multiplied (cuBLAS): six networks of convolutions alone took 638 to 642 MiB, H200
    matrices: int = 128 * MIB


# H200, PyTorch 2.11: 751 to 771 MiB in 14 runs of GPT-2; RTX 6000 Ada, PyTorch 2.10: 426 MiB
ANY_CARD = Card(Constant(430 * MIB, 766 * MIB, 800 * MIB))

# beside it, where linear algebra is used (cuSOLVER): determinants took 34 MiB, eigenvalues 98, in one job each, H200
SOLVER, SOLVER_OF_EIGENVALUES = 34 * MIB, 98 * MIB

# a model that only runs, sized from its files, of no one card: 287 MiB for a bare context are reported of small cards; 750 to 770
# with cuBLAS were measured on an H200
RUNNING = Constant(300 * MIB, 766 * MIB, 900 * MIB)

# the process on the host, libraries that only a real card loads: 0.44 GB by PyTorch issue 113326, 2.06 GB where the cards are
# counted first
HOST_CUDA = Constant(300 * MIB, 450 * MIB, 2100 * MIB)

# the process that loads a data file, beside its data, by its anonymous memory after the imports alone: numpy 12 MiB, pandas 50,
# torch 2.13 145, transformers 5.22 (with its Trainer) 297
LOADING_PROCESS = Constant(12 * MIB, 145 * MIB, 300 * MIB)

# Shares of what is reserved, by which the measured figure may differ.
# Simulated against measured max_memory_reserved: 14 runs of GPT-2 on an H200 lie between 1.0 % under and 6.6 % over.
ALLOCATOR_SPREAD = 0.04
# cuDNN workspaces beyond those simulated: the tuning half of bench/sizing, with cudnn.benchmark; median, and 95th percentile.
BENCHMARK_SHARE = 0.025  # 5 % until the convolutions of the step were counted each with its own (45 models)
BENCHMARK_SPREAD = 0.25  # 15 % on the A100; on an H200 ResNet-50 took 22 % more
# bytes of the upper end: dcgan, whose tensors take 0.6 GiB, took 1 GiB for a search on an H200
BENCHMARK_LEAST = 1 << 30
CONVOLUTION_SPREAD = 0.08  # without cudnn.benchmark: the prototype was 7 to 12 % low on five networks, H200
RECURRENT_SPREAD = 0.12  # by a fit to two jobs on an H200: an LSTM is 0.3 % and a GRU 8 % over
UNKNOWN_VALUES = 0.02  # a script that reads values of the card may take another way there
# On a card that was calibrated, to both sides: 59 of sixty jobs on an H200 took 750 to 770 MiB, by the libraries they use.
MEASURED_CONTEXT = 24 * MIB
