"""Unit tests neither see nor touch the runs of whoever runs them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine takes its time; how fast something is has tests of its own. The same examples on every machine, so that one commit
# has one outcome; others are tried by hand: OOMPROOF_RANDOM_EXAMPLES=1.
settings.register_profile(
    "any-machine",
    deadline=None,
    derandomize="OOMPROOF_RANDOM_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("any-machine")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

if (
    signal.getsignal(signal.SIGINT) == signal.SIG_IGN
):  # started by a shell's `&`: those we start must hear Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def folders_of_their_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    base = tmp_path_factory.mktemp("home")
    for name in ("state", "config", "runtime"):
        (base / name).mkdir(mode=0o700)
    monkeypatch.setenv("XDG_STATE_HOME", str(base / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(base / "config"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base / "runtime"))
    return base


@pytest.fixture(autouse=True)
def signals_as_they_were() -> Iterator[None]:
    """`run` in this process ends with signals ignored, as it should before it exits; those we start later would inherit that."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], capture_output=True)
    if made.returncode:
        pytest.skip("a file system can be mounted by root only")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
