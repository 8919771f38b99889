"""What a few steps take: the card's log in our form, what a card has left, and the host's memory for real."""

from __future__ import annotations

import subprocess
import sys

import pytest

from oomproof.sizing.caching_allocator import CachingAllocator, smallest_capacity
from oomproof.sizing.fitting.memory_meter import HostMeter, card_capacity, measured_need, trace_events

MIB, GIB = 1 << 20, 1 << 30


def test_the_allocators_log() -> None:
    """As torch.cuda.memory._snapshot() has it: entries of other kinds, and frees of what was there before."""
    trace = [
        {"action": "segment_alloc", "addr": 5000, "size": 20 * MIB},
        {"action": "alloc", "addr": 5000, "size": 3 * MIB},
        {"action": "free_requested", "addr": 100, "size": 7},
        {"action": "free_completed", "addr": 100, "size": 7},
        {"action": "oom", "size": 1, "device_free": 0},
        {"action": "free_requested", "addr": 5000, "size": 3 * MIB},
        {"action": "alloc", "addr": 6000, "size": 5 * MIB},
        {"action": "free_completed", "addr": 5000, "size": 3 * MIB},
        {"action": "alloc", "addr": 5000, "size": 4 * MIB},
        {"action": "free_completed", "addr": 99999, "size": 1},
    ]
    events = trace_events(trace, [(100, 7), (200, 9)])
    assert events == [(1, 7), (2, 9), (3, 3 * MIB), (-1, 0), (4, 5 * MIB), (-3, 0), (5, 4 * MIB)]


def test_what_the_replay_does_not_show_cannot_be_given_back() -> None:
    events = [(1, 60 * MIB), (-1, 0), (2, 80 * MIB)]
    ample = CachingAllocator()
    ample.replay(events)
    assert measured_need(events, ample.peak_reserved, False) == smallest_capacity(events) == 80 * MIB
    assert measured_need(events, ample.peak_reserved + 30 * MIB, False) == 110 * MIB
    assert measured_need(events, 100 * MIB, False) == 80 * MIB, "it had to give back already"


def test_others_on_the_card_are_not_ours() -> None:
    assert card_capacity(20 * GIB, 24 * GIB, 0, None) == 20 * GIB - int(20 * GIB * 0.005)
    assert card_capacity(4 * GIB, 24 * GIB, 16 * GIB, None) == card_capacity(20 * GIB, 24 * GIB, 0, None)
    assert card_capacity(GIB, 24 * GIB, 0, None) == GIB - 64 * MIB
    assert card_capacity(0, 24 * GIB, 0, None) == 0


def test_a_share_of_the_card_is_the_most() -> None:
    assert card_capacity(140 * GIB, 140 * GIB, 0, 0.1) == 14 * GIB
    assert card_capacity(10 * GIB, 140 * GIB, 0, 0.5) == 10 * GIB - max(64 * MIB, int(10 * GIB * 0.005))


def test_the_peak_of_a_moment_is_seen_and_begins_anew() -> None:
    if sys.platform != "linux":
        pytest.skip("only Linux sets the peak back")
    meter = HostMeter()
    meter.start()
    large = bytearray(b"\1") * (256 * MIB)
    del large
    first = meter.stop()
    meter.start()
    small = bytearray(b"\1") * (32 * MIB)
    del small
    second = meter.stop()
    assert 200 * MIB < first.need - first.before < 400 * MIB
    assert second.need < first.need - 150 * MIB
    assert first.on_host and first.capacity > 0


def test_processes_that_it_started_count() -> None:
    if sys.platform != "linux":
        pytest.skip("of /proc")
    code = "import sys; held = bytearray(b'\\1') * (96 << 20); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdout is not None and worker.stdout.readline() == b"ready\n"
        meter = HostMeter()
        meter.start()
        alone = meter.stop().need
        meter.look()
        assert meter.stop().need - alone >= 96 * MIB
        worker.communicate()
