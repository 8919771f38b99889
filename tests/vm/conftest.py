"""The one machine that the tests of this folder share: `make test` has room for four boots in all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lab import LabUnavailable, Machine, ensure_image

# The first test pays for the boot, and for the image when it is stale; emulation is slow.
TEST_SECONDS = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("vm") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@pytest.fixture(scope="session")
def lab_image() -> None:
    """The image, built when stale; for tests that boot machines of their own."""
    try:
        ensure_image()
    except LabUnavailable as e:
        pytest.skip(f"no lab on this machine: {e}")


@pytest.fixture(scope="session")
def machine(lab_image: None) -> Iterator[Machine]:
    """1 GiB, src/ in /opt/oomproof, a swap disk of 512 MiB that is off until `machine.swapon()`.

    Leave it as you found it: swap off, nobody logged in, no linger, memory daemons stopped.
    """
    with Machine(memory_mib=1024, swap_mib=512, swap_on=False) as shared:
        yield shared
