"""As much of wandb's server as `wandb agent` asks of it, on the loopback: gives out one trial after the other, then says exit.

python wandb_server.py PORT_FILE PROGRAM '{"batch": 8}' '{"batch": 64}' ...
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PROGRAM, TRIALS = sys.argv[2], [json.loads(text) for text in sys.argv[3:]]
SWEEP = {"id": "U3dlZXA=", "name": "abcd1234", "state": "RUNNING", "method": "grid", "runs": {"edges": []},
         "config": f"method: grid\nprogram: {PROGRAM}\ncommand: ['{sys.executable}', '${{program}}', '${{args}}']\n"}  # fmt: skip
given = iter(enumerate(TRIALS, 1))
lock = threading.Lock()


def heartbeat(variables: dict[str, Any]) -> dict[str, Any]:
    commands = []
    if not any(json.loads(variables.get("runState") or "{}").values()):  # nothing runs: the next one
        with lock:
            number, values = next(given, (0, {}))
        commands = [{"type": "exit"}]
        if number:
            args = {name: {"value": value} for name, value in values.items()}
            commands = [{"type": "run", "run_id": f"run{number}", "program": PROGRAM, "args": args}]
    return {"agentHeartbeat": {"agent": {"id": "agent1"}, "commands": json.dumps(commands)}}


def answer(query: str, variables: dict[str, Any]) -> dict[str, Any]:
    if "agentHeartbeat" in query:
        return heartbeat(variables)
    if "createAgent" in query:
        return {"createAgent": {"agent": {"id": "agent1"}}}
    if "sweep(" in query:
        return {"project": {"sweep": SWEEP}}
    viewer = {"id": "VXNlcg==", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}
    return {"viewer": viewer, "serverInfo": {"cliVersionInfo": {}, "latestLocalVersionInfo": None}}


class Server(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        asked = json.loads(body) if self.path == "/graphql" else {}  # the rest is telemetry
        told = json.dumps({"data": answer(asked.get("query", ""), asked.get("variables") or {})}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    def log_message(self, text: str, *values: Any) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
Path(sys.argv[1]).write_text(str(server.server_port))
server.serve_forever()
