"""Operations for which the card's libraries take workspaces, as the script calls them: what calibrating measures on a real card."""

from __future__ import annotations

from typing import Any

import torch

from .nested_tensors import fakes

aten = torch.ops.aten
MOST = 5000  # signatures of one script; the others keep their estimate
_CONVOLUTIONS = ("convolution", "convolution_backward")
_MATRICES = ("mm", "addmm", "bmm", "baddbmm")
_OTHERS = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_cudnn_attention_backward",
    "embedding_dense_backward",
    "native_layer_norm_backward",
    "native_group_norm_backward",
)


def _default(name: str) -> Any:
    packet = getattr(aten, name, None)
    return getattr(packet, "default", None)


_NAMES = {
    op: f"aten.{name}.default"
    for name in (*_CONVOLUTIONS, *_MATRICES, *_OTHERS)
    if (op := _default(name)) is not None
}
_KINDS = {f"aten.{name}.default": "convolution" for name in _CONVOLUTIONS}
_KINDS.update({f"aten.{name}.default": "matrix" for name in _MATRICES})


class Signatures:
    """Each distinct one once; their numbers start at 0."""

    def __init__(self) -> None:
        self.known: dict[Any, int] = {}
        self._flags: dict[str, Any] = {}

    def number(self, func: Any, args: Any, kwargs: Any, unfamiliar: str | None = None) -> int | None:
        """``unfamiliar``: the name of an operation that is asked for though it is none of ours."""
        name = _NAMES.get(func, unfamiliar)
        if name is None:
            return None
        try:
            key = (name, _plain(args), _plain(kwargs), self._settings(name, args))
            found = self.known.get(key)
        except (TypeError, ValueError):  # a size that is not known
            return None
        if found is None and len(self.known) < MOST:
            found = self.known[key] = len(self.known)
        return found

    def _settings(self, name: str, args: Any) -> Any:
        """Those by which the libraries choose their kernels, where they are not torch's defaults."""
        kind = _KINDS.get(name)
        given: tuple[tuple[str, bool, bool], ...] = ()
        if kind == "convolution":
            cudnn = torch.backends.cudnn
            given = (
                ("benchmark", _flag(cudnn, "benchmark", False), False),
                ("cudnn", _flag(cudnn, "enabled", True), True),
                ("deterministic", _flag(cudnn, "deterministic", False), False),
                ("tf32", _flag(cudnn, "allow_tf32", True), True),
            )
        elif kind == "matrix" and args[0].dtype is torch.float32:
            given = (("tf32", _flag(torch.backends.cuda.matmul, "allow_tf32", False), False),)
        return tuple((flag, value) for flag, value, usual in given if value != usual)

    def as_json(self) -> list[dict[str, Any]]:
        """In the order of their numbers; ``card_measuring`` makes the operation again from it."""
        return [
            {"op": name, "args": _json(args), "kwargs": dict(_json(kwargs)), "flags": dict(flags)}
            for name, args, kwargs, flags in self.known
        ]


def _flag(module: Any, name: str, usual: bool) -> bool:
    try:
        return bool(getattr(module, name))
    except (AttributeError, RuntimeError):  # set by torch's newer names only
        return usual


class _Tensor(tuple):  # type: ignore[type-arg]
    """dtype, shape, strides."""

    __slots__ = ()


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        shape = tuple(int(size) for size in value.shape)
        return _Tensor((str(value.dtype)[6:], shape, tuple(int(step) for step in value.stride())))
    if isinstance(value, (list, tuple)):
        return tuple([_plain(item) for item in value])
    if isinstance(value, dict):
        return tuple([(name, _plain(item)) for name, item in sorted(value.items())])
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.dtype):
        return _Tensor((str(value)[6:],))
    raise TypeError(type(value))


def _json(value: Any) -> Any:
    if isinstance(value, _Tensor):
        if len(value) == 1:
            return {"dtype": value[0]}
        dtype, shape, strides = value
        return {"tensor": dtype, "shape": list(shape), "strides": list(strides)}
    return [_json(item) for item in value] if isinstance(value, tuple) else value


# Operations of which neither a rule nor a measurement says what the card takes for them: they may take as much again as they read and make.
#
# Of those that were missed on first sight of 142 jobs on an H200, the gradient of `amax`, `topk`, rows added up by their numbers and the
# absolute of a complex number took between once and twice what they read. What only computes element by element, shows the same
# memory otherwise or fills new memory takes nothing (torch's TensorIterator), and nor do those below, by the same jobs' traces or by
# their kernels' source.

LEAST_POSSIBLE = 1 << 20  # bytes: what is smaller does not matter
_ELEMENTWISE = getattr(torch.Tag, "pointwise", None)
_MADE = getattr(torch.Tag, "nondeterministic_seeded", None)  # random numbers
_WITHOUT_WORKSPACE = """
    _to_copy copy_ clone contiguous empty zeros ones full arange linspace eye scalar_tensor empty_strided empty_like zeros_like ones_like full_like
    new_empty new_zeros new_ones new_full new_empty_strided rand_like randn_like randint_like rand randn randint randperm normal_ uniform_ bernoulli_ bernoulli random_ exponential_
    fill_ zero_ detach alias lift lift_fresh_copy lift_fresh view _unsafe_view reshape permute transpose t expand slice select split split_with_sizes unbind squeeze
    unsqueeze as_strided diagonal unfold view_as_real view_as_complex real imag _reshape_alias chunk narrow movedim flatten unflatten
    cat stack constant_pad_nd pixel_shuffle pixel_unshuffle slice_backward select_backward diagonal_backward _reshape_copy repeat roll flip tril triu tril_ triu_ one_hot resolve_conj resolve_neg _conj set_
    gather scatter scatter_ scatter_add scatter_add_ index_select index_select_backward index_add index_add_ masked_fill masked_fill_ where embedding masked_scatter index index_put
    mm addmm bmm baddbmm convolution convolution_backward _euclidean_dist linear matmul addmm_ addmv mv dot
    sum mean amax amin max min argmax argmin any all prod cumsum cumprod linalg_vector_norm norm var var_mean std std_mean logsumexp topk
    _softmax _log_softmax _softmax_backward_data _log_softmax_backward_data _safe_softmax nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward
    native_layer_norm native_layer_norm_backward native_batch_norm native_batch_norm_backward _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm cudnn_batch_norm_backward
    native_group_norm native_group_norm_backward native_dropout native_dropout_backward _fused_rms_norm _fused_rms_norm_backward
    max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward
    max_pool3d_with_indices max_pool3d_with_indices_backward avg_pool3d avg_pool3d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward
    upsample_nearest2d upsample_nearest2d_backward upsample_bilinear2d upsample_bilinear2d_backward upsample_nearest1d upsample_nearest1d_backward
    upsample_bicubic2d upsample_bicubic2d_backward _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward
    upsample_trilinear3d upsample_trilinear3d_backward upsample_nearest3d upsample_nearest3d_backward upsample_linear1d upsample_linear1d_backward
    grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward _weight_norm_interface _weight_norm_interface_backward scatter_reduce
    reflection_pad1d reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward replication_pad1d replication_pad1d_backward replication_pad2d replication_pad2d_backward
    embedding_dense_backward _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention
    _scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward
    _amp_foreach_non_finite_check_and_unscale_ _amp_update_scale_ mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward binary_cross_entropy
    binary_cross_entropy_backward binary_cross_entropy_with_logits l1_loss huber_loss huber_loss_backward
    gelu_backward glu glu_backward silu_backward hardtanh_backward leaky_relu_backward threshold_backward sigmoid_backward tanh_backward elu_backward
    leaky_relu hardswish hardtanh hardsigmoid hardswish_backward hardsigmoid_backward softplus_backward _prelu_kernel _prelu_kernel_backward log_sigmoid_forward log_sigmoid_backward
    _local_scalar_dense item device roi_align _roi_align_backward nonzero masked_select equal is_nonzero is_same_size histc bincount _ctc_loss _pack_padded_sequence
    _thnn_fused_lstm_cell _cudnn_rnn _cudnn_rnn_backward unsafe_split unsafe_chunk unsafe_split_with_sizes isnan isfinite isinf
    """
_FAMILIAR = frozenset(_WITHOUT_WORKSPACE.split())


def is_familiar(func: Any) -> bool:
    known = _familiar.get(func)
    if known is None:
        known = _familiar[func] = _looked_up(func)
    return known


_familiar: dict[Any, bool] = {}


def _looked_up(func: Any) -> bool:
    packet = getattr(func, "overloadpacket", None)
    name = getattr(packet, "__name__", str(func))
    if name in _FAMILIAR or name.removesuffix("_copy") in _FAMILIAR or name.removesuffix("_") in _FAMILIAR:
        return True
    if name.startswith(("_foreach_", "_fused_")):  # optimizers' own, over lists of tensors
        return True
    return bool({_ELEMENTWISE, _MADE} & set(getattr(func, "tags", ())))


def possible(func: Any, args: Any, kwargs: Any, out: Any) -> int:
    """Bytes that it may take beside its results; 0 for what is familiar."""
    if is_familiar(func):
        return 0
    storages = {
        tensor.untyped_storage()._cdata: int(tensor.nbytes)
        for tensor in fakes((args, list(kwargs.values()), out))
    }
    size = sum(storages.values())
    return size if size >= LEAST_POSSIBLE else 0
