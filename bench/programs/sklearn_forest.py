"""scikit-learn: a random forest with two jobs, then gradient boosting, on a table in memory."""

from __future__ import annotations

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.model_selection import cross_val_score

if __name__ == "__main__":
    chance = np.random.default_rng(0)
    table = chance.normal(size=(40_000, 50))
    target = (table[:, 0] + table[:, 1] ** 2 > 0.5).astype(int)
    forest = RandomForestClassifier(n_estimators=30, n_jobs=2, random_state=0).fit(table, target)
    print(forest.score(table, target))
    print(cross_val_score(HistGradientBoostingClassifier(max_iter=60), table, target, cv=3))
