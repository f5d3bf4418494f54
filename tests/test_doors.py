"""Every import path and name of Elephas, from a list of its own, leads somewhere."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import elephas_like

ELEPHAS = {
    "spark_model": "SparkModel AsynchronousSparkModel SparkMLlibModel load_spark_model save_and_zip_model SparkHFModel "
    "AsynchronousSparkWorker SparkWorker Mode Frequency ClientServerFactory to_simple_rdd lp_to_simple_rdd model_to_dict "
    "is_multiple_input_model is_multiple_output_model get_server_weights put_deltas_to_server",
    "worker": "SparkWorker AsynchronousSparkWorker",
    "ml_model": "ElephasEstimator ElephasTransformer load_ml_estimator load_ml_transformer HasKerasModelConfig "
    "HasKerasOptimizerConfig HasMode HasFrequency HasNumberOfClasses HasCategoricalLabels HasEpochs HasBatchSize HasVerbosity "
    "HasValidationSplit HasNumberOfWorkers HasMetrics HasLoss HasCustomObjects HasInferenceBatchSize HasPredictClasses",
    "hyperparam": "HyperParamModel HyperasWorker",
    "ml": "to_data_frame from_data_frame df_to_simple_rdd HasMode HasLoss",
    "ml.adapter": "to_data_frame from_data_frame df_to_simple_rdd",
    "ml.params": "HasKerasModelConfig HasKerasOptimizerConfig HasMode HasFrequency HasNumberOfClasses HasCategoricalLabels "
    "HasEpochs HasBatchSize HasVerbosity HasValidationSplit HasNumberOfWorkers HasMetrics HasLoss HasCustomObjects "
    "HasInferenceBatchSize HasPredictClasses",
    "mllib": "from_matrix to_matrix from_vector to_vector",
    "mllib.adapter": "from_matrix to_matrix from_vector to_vector",
    "parameter": "BaseParameterServer HttpServer SocketServer BaseParameterClient HttpClient SocketClient",
    "parameter.client": "BaseParameterClient HttpClient SocketClient",
    "parameter.server": "BaseParameterServer HttpServer SocketServer",
    "parameter.factory": "ClientServerFactory HttpFactory SocketFactory",
    "enums.modes": "Mode",
    "enums.frequency": "Frequency",
    "utils": "add_params subtract_params get_neutral divide_by average_and_subtract to_simple_rdd to_labeled_point "
    "from_labeled_point encode_label lp_to_simple_rdd model_to_dict dict_to_model weights_to_bytes bytes_to_weights "
    "determine_master send_bytes recv_bytes wait_until_listening send receive RWLock",
    "utils.functional_utils": "add_params subtract_params get_neutral divide_by average_and_subtract",
    "utils.rdd_utils": "to_simple_rdd to_labeled_point from_labeled_point encode_label lp_to_simple_rdd",
    "utils.serialization": "model_to_dict dict_to_model weights_to_bytes bytes_to_weights",
    "utils.sockets": "determine_master send_bytes recv_bytes wait_until_listening send receive",
    "utils.rwlock": "RWLock",
    "utils.model_utils": "ModelType LossModelTypeMapper ModelTypeEncoder as_enum is_multiple_input_model "
    "is_multiple_output_model argmax",
    "utils.notebook_utils": "is_running_in_notebook",
    "utils.versioning_utils": "get_minor_version",
    "utils.huggingface_utils": "pad_labels",
    "utils.warnings": "ElephasWarning",
    "optimizers": "SGD RMSprop Adagrad Adadelta Adam get",
}
DOORS = ("worker", "optimizers", "enums", "utils", "parameter", "mllib", "ml")
DOORS += ("spark_model", "ml_model", "ml_ensemble", "hyperparam", "strategies", "testing")

ARGUMENTS = {
    "utils.rdd_utils.to_labeled_point": ["sc", "features", "labels", "categorical"],
    "utils.rdd_utils.from_labeled_point": ["rdd", "categorical", "nb_classes"],
    "utils.rdd_utils.lp_to_simple_rdd": ["lp_rdd", "categorical", "nb_classes"],
    "utils.rdd_utils.encode_label": ["label", "nb_classes"],
    "utils.sockets.determine_master": ["port"],
    "utils.sockets.send": ["socket", "data", "num_bytes"],
    "utils.serialization.dict_to_model": ["_dict", "custom_objects"],
    "ml.adapter.df_to_simple_rdd": ["df", "categorical", "nb_classes", "features_col", "label_col"],
    "worker.SparkWorker": [
        *("json", "parameters", "train_config", "master_optimizer", "master_loss", "master_metrics", "custom_objects")
    ],
    "worker.AsynchronousSparkWorker": [
        *("json", "parameters", "client", "train_config", "frequency", "master_optimizer", "master_loss"),
        *("master_metrics", "custom_objects"),
    ],
    "spark_model.AsynchronousSparkModel": [
        *("model", "num_workers", "custom_objects", "batch_size", "mode", "frequency", "parameter_server_mode", "port"),
        "options",
    ],
    "spark_model.SparkModel.save": ["self", "file_name", "overwrite", "to_hadoop"],
    "spark_model.SparkMLlibModel.fit": [
        *("self", "labeled_points", "epochs", "batch_size", "verbose", "validation_split", "categorical", "nb_classes"),
        "options",
    ],
}


@pytest.mark.parametrize("path", ELEPHAS)
def test_an_import_path_of_elephas_has_its_names(path: str) -> None:
    module = importlib.import_module(f"elephas_like.{path}")
    missing = [name for name in ELEPHAS[path].split() if not hasattr(module, name)]
    assert not missing
    assert set(ELEPHAS[path].split()) <= set(module.__all__)


@pytest.mark.parametrize("path", ARGUMENTS)
def test_arguments_have_elephas_names_and_order(path: str) -> None:
    parts = path.split(".")
    module = next(i for i in range(len(parts), 0, -1) if _is_module(".".join(parts[:i])))
    thing = importlib.import_module(f"elephas_like.{'.'.join(parts[:module])}")
    for name in parts[module:]:
        thing = getattr(thing, name)
    assert list(inspect.signature(thing).parameters) == ARGUMENTS[path]


def _is_module(path: str) -> bool:
    folder = Path(elephas_like.__file__).parent / path.replace(".", "/")
    return folder.is_dir() or folder.with_suffix(".py").exists()


def test_doors_are_imports_and_names_alone() -> None:
    root = Path(elephas_like.__file__).parent
    files = [file for door in DOORS for file in [*(root / door).rglob("*.py"), root / f"{door}.py"] if file.exists()]
    assert len(files) > 20
    for file in files:
        for line in ast.parse(file.read_text()).body:
            doc = isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)
            names = isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "__all__"
            asks = ast.unparse(line).startswith("require(")  # for an extra, before what it brings is imported
            assert doc or names or asks or isinstance(line, ast.ImportFrom), f"{file}: {ast.unparse(line)}"


def test_no_file_but_doors_lies_at_the_root() -> None:
    """And two programs, which Spark and `python -m elephas_like` start by their names."""
    root = Path(elephas_like.__file__).parent
    assert {file.stem for file in root.glob("*.py")} - {"__init__", "__main__", "daemon"} <= set(DOORS)


def test_enums_are_equal_to_elephas_strings() -> None:
    from elephas_like.enums.frequency import Frequency
    from elephas_like.enums.modes import Mode

    assert (Mode.SYNCHRONOUS, Mode.ASYNCHRONOUS, Mode.HOGWILD) == ("synchronous", "asynchronous", "hogwild")
    assert (Frequency.EPOCH, Frequency.BATCH) == ("epoch", "batch")
    assert {Mode.HOGWILD: 1}["hogwild"] == 1
