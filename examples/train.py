"""A small training in plain Python: it learns a line, keeps its history, and shows a progress bar.

Nothing here knows about oomproof; that is the point:  oomproof run -- python examples/train.py
"""

import random
import sys
import time

EPOCHS, BATCHES = 3, 20


def batch(size: int) -> list[tuple[float, float]]:
    """Points near y = 3x + 1."""
    points = []
    for _ in range(size):
        x = random.uniform(-1, 1)
        points.append((x, 3 * x + 1 + random.gauss(0, 0.1)))
    return points


def main() -> None:
    random.seed(7)
    slope = offset = 0.0
    history = []
    for epoch in range(EPOCHS):
        total = 0.0
        for step in range(BATCHES):
            points = batch(2000)
            history.append(points)  # what people do, and what fills their memory
            errors = [(slope * x + offset - y, x) for x, y in points]
            slope -= 0.5 * sum(error * x for error, x in errors) / len(points)
            offset -= 0.5 * sum(error for error, _ in errors) / len(points)
            total += sum(error * error for error, _ in errors) / len(points)
            done = (step + 1) * 30 // BATCHES
            bar = "#" * done + "-" * (30 - done)
            sys.stderr.write(f"\repoch {epoch + 1}/{EPOCHS} [{bar}] loss {total / (step + 1):.4f}")
            sys.stderr.flush()
            time.sleep(0.05)
        sys.stderr.write("\n")
    print(f"learnt y = {slope:.2f} x + {offset:.2f} from {len(history)} batches")


if __name__ == "__main__":
    main()
