"""Writes the MLServer settings of the model that `tests/servers/train.py` has trained: `mlserver_model.py FOLDER`."""

import json
import pathlib
import sys

settings = {
    "name": "digits",
    "implementation": "mlserver_sklearn.SKLearnModel",
    "parameters": {"uri": "./model.joblib", "version": "v1"},
}
(pathlib.Path(sys.argv[1]) / "model-settings.json").write_text(json.dumps(settings), encoding="utf-8")
