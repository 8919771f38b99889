"""How the job ended, in one value: its signal, also when a shell only handed its number on."""

from __future__ import annotations

import signal

from oomproof.evidence.case_evidence import signal_name
from oomproof.evidence.case_file import CaseFile
from oomproof.records import dataclass

# Only these are taken from 128+N: other codes above 128 are more often a program's own.
_SHELL_SIGNALS = frozenset(
    (
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGKILL,
        signal.SIGSEGV,
        signal.SIGTERM,
    )
)


@dataclass(frozen=True, slots=True)
class Death:
    signal: int | None
    code: int | None
    direct: bool  # False: read off an exit code of 128+N

    @property
    def failed(self) -> bool:
        return self.signal is not None or self.code != 0

    @property
    def phrase(self) -> str:
        if self.signal is None:
            return f"exited with code {self.code}"
        name = signal_name(self.signal)
        return (
            f"was ended by {name}"
            if self.direct
            else f"exited with code {self.code}, which a shell gives for {name}"
        )


def death_of(case: CaseFile) -> Death | None:
    """None when nobody saw the end."""
    status = case.status
    if status is None:
        return None
    if status.signal is not None:
        return Death(status.signal, None, True)
    code = status.code
    if code is not None and code - 128 in _SHELL_SIGNALS:
        return Death(code - 128, code, False)
    return Death(None, code, True)
