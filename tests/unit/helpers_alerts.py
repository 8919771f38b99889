"""Real receivers for the tests of alerts: an HTTP server on loopback that answers, fails or hangs, and waiting for what comes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DEADLINE = 60.0  # against a hang only: machines are slow and busy


def until(condition: Callable[[], Any], what: str, seconds: float = DEADLINE) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError(f"waited {seconds:.0f} s for: {what}")


class Listener:
    """``posts`` are what came: (path, headers, JSON). It answers with the next of ``answers``, the last of them for ever;
    ``go`` not set, it takes the request and answers nothing."""

    def __init__(self, *answers: int) -> None:
        self.posts: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.go = threading.Event()
        self.go.set()
        self._answers = list(answers) or [200]
        listener = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                listener.posts.append((self.path, dict(self.headers), json.loads(data)))
                listener.go.wait(DEADLINE)
                answers = listener._answers
                self.send_response(answers.pop(0) if len(answers) > 1 else answers[0])
                self.send_header("Location", "http://127.0.0.1:9/elsewhere")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    @property
    def kinds(self) -> list[str]:
        return [str(body.get("kind")) for _, _, body in self.posts]


@contextmanager
def listening(*answers: int) -> Iterator[Listener]:
    listener = Listener(*answers)
    thread = threading.Thread(
        target=listener.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield listener
    finally:
        listener.go.set()
        listener.server.shutdown()
        listener.server.server_close()
