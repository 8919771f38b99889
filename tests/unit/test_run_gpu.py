"""The flags of `run` that reach into the job."""

from __future__ import annotations

from typing import Any

import pytest

from oomproof.cli.run_gpu import agent_settings, gpu_limits
from oomproof.errors import OomproofError

GIB = 1 << 30
NOTHING: dict[str, Any] = {"release": None, "gpu_limit": None, "trace_alloc": None}


def test_without_flags() -> None:
    assert agent_settings(NOTHING, with_agent=True) == {
        "release": "warn",
        "gpu_limit": [],
        "trace_alloc": False,
    }


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("14G", [[14 * GIB, None]]),
        ("14G:0,20G:1", [[14 * GIB, 0], [20 * GIB, 1]]),
        (["14G:0", "1.5G"], [[14 * GIB, 0], [3 * GIB // 2, None]]),  # from a settings file
    ],
)
def test_limits(text: Any, limits: list[list[int | None]]) -> None:
    assert gpu_limits(text) == limits


@pytest.mark.parametrize("text", ["14X", "14G:first", "14G:", "512M", ""])
def test_limits_that_are_none(text: str) -> None:
    with pytest.raises(OomproofError) as error:
        gpu_limits(text)
    assert error.value.status == 2


def test_a_limit_that_nobody_would_keep_is_refused() -> None:
    with pytest.raises(OomproofError, match="--no-agent"):
        agent_settings({**NOTHING, "gpu_limit": "14G"}, with_agent=False)
    assert agent_settings(NOTHING, with_agent=False)["gpu_limit"] == []


def test_an_unknown_release_is_refused() -> None:
    with pytest.raises(OomproofError, match="often"):
        agent_settings({**NOTHING, "release": "often"}, with_agent=True)
