"""Draws top.svg and top.txt from real jobs:  python docs/assets/draw_top.py  (two minutes, 700 MiB)

Four jobs: a training that grows, one that is paused, one that waits in the queue, and one that oomproof did not start.
Jobs of whoever runs this are left out by the screen's own filter.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
SECONDS = 100
TRAIN = """
import sys, time, oomproof
held = [bytearray(b"x") * (int(sys.argv[1]) << 20)]
step = 0
while True:
    with oomproof.phase("train"):
        for _ in range(20):
            step += 1
            held.append(bytearray(b"x") * (int(sys.argv[2]) << 18))
            print(f"step {step}: loss {1 / (1 + step / 50):.4f}", flush=True)
            time.sleep(0.6)
    with oomproof.phase("eval"):
        batch = bytearray(b"x") * (60 << 20) if int(sys.argv[2]) else b""
        time.sleep(3)
        del batch
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("demo_train.py").write_text(TRAIN)
        Path("demo_load.py").write_text(TRAIN)
        Path("runtime").mkdir(mode=0o700)
        for name in ("state", "runtime", "config"):
            os.environ[f"XDG_{name.upper()}_{'DIR' if name == 'runtime' else 'HOME'}"] = f"{folder}/{name}"
        os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

        def oomproof(*words: str) -> None:
            subprocess.run(["oomproof", *words], check=True, capture_output=True)

        def run(name: str, *words: str) -> None:
            oomproof("run", "--detach", "--allow-twin", "--name", name, *words)

        # by a shell that has gone: what this process started would be its own job
        by_hand = "setsid python demo_load.py 180 1 >/dev/null 2>&1 & echo $!"
        unmanaged = int(subprocess.run(by_hand, shell=True, check=True, capture_output=True).stdout)
        try:
            run("training", "--limit", "600M", "--", "python", "demo_train.py", "150", "4")
            run("second", "--need", "400M", "--", "python", "demo_train.py", "90", "0")
            time.sleep(2)
            oomproof("pause", "second")
            total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
            run("next", "--need", f"{total - 5 * 1024 - 300}M", "--", "python", "demo_train.py", "10", "0")
            time.sleep(SECONDS)
            asyncio.run(draw())
        finally:
            os.kill(unmanaged, signal.SIGKILL)
            for name in ("next", "second", "training"):
                subprocess.run(["oomproof", "stop", "--kill", name], capture_output=True)
            os.chdir("/")


async def draw() -> None:
    from oomproof.live.top_screen import TopApp

    app = TopApp(1.0)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("slash", *"demo_", "enter")
        await asyncio.sleep(12)  # two looks at the unmanaged jobs: then their growth is known
        strips = app.screen._compositor.render_strips()
        text = "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)
        svg = app.export_screenshot(title="oomproof top")
    (HERE / "top.txt").write_text(text + "\n")
    # Nothing may load from the network: no web font, only what the reader's machine has.
    svg = re.sub(r"@font-face\s*\{.*?\}", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code", "DejaVu Sans Mono, Menlo, Consolas")
    (HERE / "top.svg").write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")


if __name__ == "__main__":
    main()
