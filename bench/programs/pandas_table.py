"""pandas: a table grows from chunks, is joined, grouped and written; no training, and no agent that could tell."""

from __future__ import annotations

import numpy as np
import pandas as pd

if __name__ == "__main__":
    chance = np.random.default_rng(0)
    chunks = []
    for day in range(60):
        users = chance.integers(0, 50_000, 60_000)
        chunks.append(pd.DataFrame({"user": users, "day": day, "spent": chance.random(60_000)}))
    table = pd.concat(chunks, ignore_index=True)
    names = pd.DataFrame({"user": np.arange(50_000), "group": chance.integers(0, 500, 50_000)})
    for _ in range(4):
        joined = table.merge(names, on="user")
        print(joined.groupby(["group", "day"])["spent"].agg(["sum", "mean", "max"]).shape)
    table.to_parquet("table.parquet")
