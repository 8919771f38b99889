"""Recurrent layers: what cuDNN 9.19 took on an H200, in bytes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from oomproof.sizing.virtual_gpu.recurrent_layers import Layers, reserve_of, workspace_of

# kind, rows, sequences, inputs, width, count; workspace and reserve as measured
MEASURED = [
    (Layers("lstm", 8192, 64, 256, 512, 2), 126354176, 184549632),
    (Layers("lstm", 25600, 128, 256, 1024, 2), 632292608, 1153433856),
    (Layers("lstm", 25600, 128, 256, 1024, 2, dropout=True), 737150208, 1156710656),
    (Layers("lstm", 32768, 64, 80, 512, 3, both_ways=True), 1069810432, 2281701632),
    (Layers("lstm", 65536, 64, 256, 512, 2), 574358272, 1476395264),
    (Layers("lstm", 8192, 64, 1024, 512, 2, both_ways=True), 426246912, 369099008),
    (Layers("lstm", 8192, 64, 256, 128, 2), 115081984, 46137600),
    (Layers("lstm", 25600, 128, 256, 1024, 2, is_half=True, item=2), 324535552, 576717056),
    (Layers("lstm", 19304, 128, 256, 1024, 2, packed=True), 393871616, 869761280),
    (Layers("lstm", 2048, 32, 128, 256, 4), 54264320, 48234752),
    (Layers("gru", 25600, 128, 256, 1024, 2), 508560640, 1363149056),
    (Layers("gru", 32768, 64, 80, 512, 3, both_ways=True), 927138560, 2684354816),
    (Layers("gru", 8192, 64, 1024, 512, 2), 171180800, 218104064),
    (Layers("lstm", 688128, 4096, 16, 128, 2), 7493976320, 3875537152),
    (Layers("rnn_tanh", 8192, 64, 256, 1024, 2), 156762880, 100663552),
    (Layers("lstm", 600 * 64, 64, 16, 128, 2, both_ways=True), 629179136, 11 * 600 * 64 * 128 * 2 * 4),
    (Layers("lstm", 64 * 64, 64, 200, 128, 2, both_ways=True), 103842560, 11 * 64 * 64 * 128 * 2 * 4),
    (Layers("gru", 64 * 512, 512, 16, 128, 2, both_ways=True), 482922752, 13 * 64 * 512 * 128 * 2 * 4),
]


# narrow layers, whose workspace is exact
NARROW = [
    (Layers("lstm", 688128, 4096, 16, 128, 2), 7493976320),
    (Layers("lstm", 8192, 64, 256, 128, 2), 115081984),
    (Layers("lstm", 400, 20, 1024, 128, 2), 28098976),
    (Layers("lstm", 12800, 64, 1024, 128, 1), 266732288),
]


@pytest.mark.parametrize(("layers", "taken"), NARROW)
def test_narrow_layers_with_few_or_many_inputs(layers: Layers, taken: int) -> None:
    assert workspace_of(layers) == pytest.approx(taken, rel=0.0001)


@pytest.mark.parametrize(("layers", "taken", "kept"), MEASURED)
def test_as_on_the_card(layers: Layers, taken: int, kept: int) -> None:
    assert reserve_of(layers) == pytest.approx(kept, rel=0.0002)
    assert workspace_of(layers) == pytest.approx(taken, abs=0.03 * (taken + kept))
