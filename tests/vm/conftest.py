"""The one machine that the tests of this folder share: `make test` has room for three boots in all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lab import ROOT, LabUnavailable, Machine, ensure_image

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
def guest(lab_image: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """1 GiB, a swap disk of 512 MiB that is off until `guest.swapon()`, and a disk at /state that outlives its boots.

    Leave it as you found it: swap off, nobody logged in, no linger, memory daemons stopped.
    """
    state = tmp_path_factory.mktemp("state") / "state.img"
    share = {"src": ROOT / "src", "jobs": ROOT / "tests" / "incidents" / "jobs"}
    with Machine(memory_mib=1024, state_drive=state, swap_mib=512, swap_on=False, share=share) as shared:
        yield shared
