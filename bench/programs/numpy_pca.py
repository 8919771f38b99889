"""NumPy: principal components of a matrix that is built block by block; large arrays come and go at full speed."""

from __future__ import annotations

import numpy as np

if __name__ == "__main__":
    chance = np.random.default_rng(0)
    for round in range(4):
        table = np.concatenate([chance.normal(size=(2_000, 600)) for _ in range(20)])
        table -= table.mean(axis=0)
        values = np.linalg.eigvalsh(table.T @ table)
        scaled = table / table.std(axis=0)
        print(round, float(values[-1]), float(scaled.sum()))
