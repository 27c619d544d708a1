"""Converts the model of `tests/servers/train.py` to the MLflow format, in FOLDER/mlflow: `mlflow_model.py FOLDER`."""

import pathlib
import sys

import joblib
import mlflow.sklearn

folder = pathlib.Path(sys.argv[1])
model = joblib.load(folder / "model.joblib")
mlflow.sklearn.save_model(model, str(folder / "mlflow"), serialization_format="cloudpickle", pyfunc_predict_fn="predict_proba")
