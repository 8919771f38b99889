"""Wakes whoever polls as soon as a memory cgroup of version 1 is charged with more than told. Version 2 knows nothing like it."""

from __future__ import annotations

import os


class ChargeAlarm:
    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.fd: int | None = None  # can be read once the charge went above
        self._above = 0

    def stands(self, above: int, slack: int) -> bool:
        """Whether it is set to that, or so near that setting it anew is not worth it."""
        return self.fd is not None and abs(above - self._above) <= slack

    def set(self, above: int) -> bool:
        """False where it cannot be had: no right, no descriptor left, a kernel without it."""
        self.clear()
        usage = control = event = None
        try:
            usage = os.open(f"{self._directory}/memory.usage_in_bytes", os.O_RDONLY | os.O_CLOEXEC)
            control = os.open(f"{self._directory}/cgroup.event_control", os.O_WRONLY | os.O_CLOEXEC)
            event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            os.write(control, f"{event} {usage} {above}".encode())
            self.fd, self._above, event = event, above, None
        except (OSError, AttributeError):  # macOS has no eventfd
            return False
        finally:
            for fd in (usage, control, event):
                if fd is not None:
                    os.close(fd)
        return True

    def clear(self) -> None:
        """The kernel forgets it with its descriptor."""
        fd, self.fd = self.fd, None
        if fd is not None:
            os.close(fd)
