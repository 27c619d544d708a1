"""A model as MLflow saves it, in FOLDER/mlflow, of what `tests/servers/train.py` has trained: `mlflow_model.py FOLDER`."""

import pathlib
import sys

import joblib
import mlflow.sklearn

folder = pathlib.Path(sys.argv[1])
model = joblib.load(folder / "model.joblib")
mlflow.sklearn.save_model(model, str(folder / "mlflow"), serialization_format="cloudpickle")
