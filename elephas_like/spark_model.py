"""Elephas' import path for SparkModel, with the names that its module had."""

from elephas_like.compat.elephas import (
    AsynchronousSparkWorker,
    SparkHFModel,
    get_server_weights,
    put_deltas_to_server,
    save_and_zip_model,
)
from elephas_like.compat.labeled import lp_to_simple_rdd, to_simple_rdd
from elephas_like.compat.parameter_server import ClientServerFactory
from elephas_like.compat.spark_worker import SparkWorker
from elephas_like.core.types import Frequency, Mode
from elephas_like.model.asynchronous_model import AsynchronousSparkModel
from elephas_like.model.loading import load_spark_model
from elephas_like.model.mllib import SparkMLlibModel
from elephas_like.model.sharding import shard
from elephas_like.model.spark_model import SparkModel
from elephas_like.trainer.compile_arguments import check_model
from elephas_like.trainer.model_facts import is_multiple_input_model, is_multiple_output_model
from elephas_like.trainer.serialization import model_to_dict

__all__ = [
    "AsynchronousSparkModel",
    "AsynchronousSparkWorker",
    "ClientServerFactory",
    "Frequency",
    "Mode",
    "SparkHFModel",
    "SparkMLlibModel",
    "SparkModel",
    "SparkWorker",
    "check_model",
    "get_server_weights",
    "is_multiple_input_model",
    "is_multiple_output_model",
    "load_spark_model",
    "lp_to_simple_rdd",
    "model_to_dict",
    "put_deltas_to_server",
    "save_and_zip_model",
    "shard",
    "to_simple_rdd",
]
