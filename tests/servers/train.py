"""Trains a random forest on the handwritten digits of scikit-learn: `train.py FOLDER`.

Writes `model.joblib`, and `rows.json` with the test rows, each as one line of JSON. A forest sums its trees row by row
in a fixed order, so the probabilities of a row have the same bits in any batch. Matrix products do not guarantee that.
"""

import json
import pathlib
import sys

import loopback

loopback.end_with_the_test()

import joblib
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split

folder = pathlib.Path(sys.argv[1])
digits = load_digits()
train, test, labels, truth = train_test_split(digits.data, digits.target, test_size=0.4, random_state=0)
# Leaves of at least three samples give probabilities with many digits, which differ between similar
# rows.
model = RandomForestClassifier(n_estimators=60, min_samples_leaf=3, random_state=0).fit(train, labels)
joblib.dump(model, folder / "model.joblib")
(folder / "rows.json").write_text("\n".join(json.dumps(row) for row in test.tolist()) + "\n", encoding="utf-8")
print(json.dumps({"rows": len(test), "accuracy": round(float(model.score(test, truth)), 3)}))
