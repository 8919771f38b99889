"""Sparse matrices of the virtual card (a graph's edges): what their numbers take, and what a product with a dense matrix takes beside its result."""

from __future__ import annotations

from typing import Any

import torch

from .cuda_queries import Refused
from .cuda_redirect import Redirect, asked_of_to, is_cuda

Tensor = torch.Tensor
# bytes that the card takes to sort the places of a matrix: numbers of eight bytes, their order, what is sorted and what is left
_SORTED = 5 * 8


class CardMatrix(torch.Tensor):  # type: ignore[misc]
    """Shape and type of a matrix whose places and numbers are two tensors of the card. No kernel ever sees it."""

    places: Any  # 2 x count
    numbers: Any
    in_order: bool

    @staticmethod
    def __new__(cls, places: Any, numbers: Any, shape: Any, in_order: bool = False) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=numbers.dtype, device="cpu")
        made.places, made.numbers, made.in_order = places, numbers, in_order
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return _changed(args[0], numbers=args[0].numbers.detach())
        raise Refused(
            f"{func} of a sparse matrix on the GPU cannot be followed; run it there with: oomproof run"
        )


def _changed(
    matrix: Any, places: Any = None, numbers: Any = None, shape: Any = None, in_order: bool | None = None
) -> Any:
    return CardMatrix(
        matrix.places if places is None else places,
        matrix.numbers if numbers is None else numbers,
        matrix.shape if shape is None else shape,
        matrix.in_order if in_order is None else in_order,
    )


class _Product(torch.autograd.Function):  # type: ignore[misc]
    """Sums of rows of the dense operand: with the matrix in order, in rows of 32-bit numbers, and the result column by column first
    (SparseCUDABlas.cu, SparseCUDATensorMath.cu)."""

    @staticmethod
    def forward(ctx: Any, numbers: Any, dense: Any, matrix: Any, mode: Any) -> Any:
        ctx.save_for_backward(numbers, dense)
        ctx.matrix, ctx.mode = matrix, mode
        return _multiplied(mode, matrix, dense)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        _, dense = ctx.saved_tensors
        matrix = ctx.matrix
        for_dense = for_numbers = None
        if ctx.needs_input_grad[1]:
            turned = _turned(matrix)
            for_dense = _multiplied(ctx.mode, turned, grad)
        if ctx.needs_input_grad[0]:
            whole = grad.mm(dense.t())  # a number for every place there could be; then those that there are
            for_numbers = whole[matrix.places[0], matrix.places[1]]
        return for_numbers, for_dense, None, None


def _multiplied(mode: Any, matrix: Any, dense: Any) -> Any:
    count, rows = matrix.numbers.numel(), matrix.shape[0]
    out = dense.new_empty(rows, dense.shape[1])
    held = [] if matrix.in_order else _in_order(mode, matrix)
    held.append(matrix.places.new_empty(rows + 1 + count, dtype=torch.int32))
    held.append(torch.empty_like(out))
    if not dense.is_contiguous() and not dense.t().is_contiguous():
        held.append(dense.contiguous())
    return out


def _in_order(mode: Any, matrix: Any) -> list[Any]:
    count = matrix.numbers.numel()
    mode.log.passing(_SORTED * count)
    return [torch.empty_like(matrix.places), torch.empty_like(matrix.numbers)]


def _turned(matrix: Any) -> Any:
    return _changed(
        matrix, places=matrix.places.flip(0), shape=(matrix.shape[1], matrix.shape[0]), in_order=False
    )


def install(redirect: Redirect) -> None:
    """Everything that is done with such a matrix passes by here."""
    mode = redirect.mode
    to_card = redirect.to_card
    methods = _methods(redirect)

    def handled(func: Any, args: Any, kwargs: Any) -> Any:
        handler = methods.get(func)
        if handler is None or not any(isinstance(value, CardMatrix) for value in args):
            return NotImplemented
        return handler(*args, **kwargs)

    def moved(tensor: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensor, CardMatrix):
            return tensor if dtype is None else _changed(tensor, numbers=tensor.numbers.to(dtype))
        if (
            type(tensor) is Tensor
            and tensor.layout is torch.sparse_coo
            and tensor.sparse_dim() == 2 == tensor.dim()
        ):
            redirect.of_matrices = handled
            places, numbers = to_card(tensor._indices()), to_card(tensor._values(), dtype)
            return CardMatrix(places, numbers, tensor.shape, tensor.is_coalesced())
        return to_card(tensor, dtype, *args, **kwargs)

    def made(func: Any, args: Any, kwargs: Any) -> Any:
        """``torch.sparse_coo_tensor`` of places and numbers that may be on the card."""
        names = ("indices", "values", "size")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        parts = [given.get(name) for name in names[:2]]
        on_card = any(isinstance(part, Tensor) and mode.is_on_card(part) for part in parts)
        if not on_card and not is_cuda(given.get("device")):
            return func(*args, **kwargs)
        places, numbers = (
            to_card(part if isinstance(part, Tensor) else torch.as_tensor(part)) for part in parts
        )
        size = given.get("size")
        if size is None or len(size) != 2 or numbers.dim() != 1:
            raise Refused("sparse tensors on the GPU that are no plain matrix cannot be followed")
        redirect.of_matrices = handled
        dtype = given.get("dtype")
        return CardMatrix(
            places, numbers if dtype is None else numbers.to(dtype), size, bool(given.get("is_coalesced"))
        )

    redirect.to_card = moved  # type: ignore[method-assign]
    redirect.handlers[torch.sparse_coo_tensor] = made


def _methods(redirect: Redirect) -> dict[Any, Any]:
    mode = redirect.mode

    def product(matrix: Any, dense: Any, **given: Any) -> Any:
        if not isinstance(matrix, CardMatrix) or isinstance(dense, CardMatrix) or dense.dim() > 2:
            raise Refused(
                "a product of a sparse matrix on the GPU that is not with a dense one behind it cannot be followed"
            )
        columns = dense if dense.dim() == 2 else dense.unsqueeze(1)
        out = _Product.apply(matrix.numbers, columns, matrix, mode)
        return out if dense.dim() == 2 else out.squeeze(1)

    def dense(matrix: Any, *given: Any, **named: Any) -> Any:
        whole = matrix.numbers.new_zeros(tuple(matrix.shape))
        return whole.index_put((matrix.places[0], matrix.places[1]), matrix.numbers, accumulate=True)

    def ordered(matrix: Any) -> Any:
        if matrix.in_order:
            return matrix
        kept = _in_order(mode, matrix)
        return CardMatrix(kept[0], kept[1], matrix.shape, True)

    def to(matrix: Any, *given: Any, **named: Any) -> Any:
        device, dtype, _ = asked_of_to(given, named)
        if device is not None and not is_cuda(device):
            return host(matrix)
        return redirect.to_card(matrix, dtype)

    def host(matrix: Any) -> Any:
        places, numbers = redirect.to_host(matrix.places), redirect.to_host(matrix.numbers)
        return torch.sparse_coo_tensor(places, numbers, tuple(matrix.shape))

    def size(matrix: Any, dim: Any = None) -> Any:
        return matrix.shape if dim is None else matrix.shape[dim]

    products = (
        torch.mm,
        torch.spmm,
        torch.matmul,
        torch.sparse.mm,
        Tensor.mm,
        Tensor.matmul,
        Tensor.__matmul__,
    )
    return {
        **dict.fromkeys(products, product),
        Tensor.to_dense: dense,
        Tensor.coalesce: ordered,
        Tensor.is_coalesced: lambda matrix: matrix.in_order,
        **dict.fromkeys(
            (Tensor.t, torch.t, Tensor.transpose, torch.transpose), lambda matrix, *given: _turned(matrix)
        ),
        Tensor.T.__get__: _turned,
        Tensor._indices: lambda matrix: matrix.places,
        Tensor.indices: lambda matrix: matrix.places,
        Tensor._values: lambda matrix: matrix.numbers,
        Tensor.values: lambda matrix: matrix.numbers,
        Tensor._nnz: lambda matrix: matrix.numbers.numel(),
        Tensor.is_sparse.__get__: lambda matrix: True,
        Tensor.layout.__get__: lambda matrix: torch.sparse_coo,
        Tensor.is_cuda.__get__: lambda matrix: True,
        Tensor.device.__get__: lambda matrix: torch.device("cuda", 0),
        Tensor.size: size,
        Tensor.to: to,
        Tensor.cuda: lambda matrix, *given, **named: matrix,
        Tensor.cpu: host,
        Tensor.float: lambda matrix: redirect.to_card(matrix, torch.float32),
        Tensor.half: lambda matrix: redirect.to_card(matrix, torch.float16),
        Tensor.clone: lambda matrix: _changed(matrix, matrix.places.clone(), matrix.numbers.clone()),
        Tensor.detach: lambda matrix: _changed(matrix, numbers=matrix.numbers.detach()),
    }
