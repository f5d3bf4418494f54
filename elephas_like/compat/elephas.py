"""Attributes and older method names of Elephas' classes, and small functions that were importable."""

from __future__ import annotations

import abc
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from elephas_like.compat import spark_worker as partition
from elephas_like.compat.framing import split_address
from elephas_like.compat.parameter_server import BaseParameterServer, ClientServerFactory
from elephas_like.compat.parameters import BaseParameterClient, HttpClient
from elephas_like.compat.weight_lists import Weights
from elephas_like.core.types import Array, Mode
from elephas_like.trainer.serialization import model_to_dict


class ElephasAttributes(abc.ABC):
    """Attributes and methods of Elephas' SparkModel that repeat the Keras model's, or start a server by hand."""

    _model: keras.Model
    _server: BaseParameterServer | None = None
    custom_objects: dict[str, object]
    mode: Mode
    parameter_server_mode: str
    port: int | str

    @property
    def weights(self) -> Weights:
        """The model's current weights, in `get_weights()` order."""
        return self._model.get_weights()

    @property
    def serialized_model(self) -> dict[str, Any]:
        """The model's current architecture and weights, as `model_to_dict` returns them."""
        return model_to_dict(self._model)

    @property
    def master_optimizer(self) -> keras.optimizers.Optimizer:
        """The optimizer that the model was compiled with."""
        return self._model.optimizer

    @property
    def master_loss(self) -> Any:
        """The loss that the model was compiled with."""
        return self._model.loss

    @property
    def master_metrics(self) -> Any:
        """The metrics that the model was compiled with; [] without metrics."""
        settings = self._model.get_compile_config() or {}
        with keras.saving.custom_object_scope(self.custom_objects):
            return keras.saving.deserialize_keras_object(settings.get("metrics") or [])

    @property
    def parameter_server(self) -> BaseParameterServer:
        """A server of the model's weights, for code that starts one by hand. `fit` starts and stops its own."""
        if self._server is None:
            factory = ClientServerFactory.get_factory(self.parameter_server_mode)
            self._server = factory.create_server(
                self.serialized_model, self.port, self.mode, custom_objects=self.custom_objects
            )
        return self._server

    @property
    def client(self) -> BaseParameterClient:
        """A client of `parameter_server`."""
        factory = ClientServerFactory.get_factory(self.parameter_server_mode)
        return factory.create_client(self.parameter_server.port)

    def start_server(self) -> None:
        """Start `parameter_server`."""
        self.parameter_server.start()

    def stop_server(self) -> None:
        """Stop `parameter_server`. The next one starts with the model's weights of that time."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    @contextmanager
    def run_parameter_server(self) -> Iterator[BaseParameterServer]:
        """Run `parameter_server` until the end of the block, also after an error."""
        self.start_server()
        try:
            yield self.parameter_server
        finally:
            self.stop_server()

    def train(
        self,
        rdd: Any,
        nb_epoch: int = 10,
        batch_size: int = 32,
        verbose: int = 0,
        validation_split: float = 0.1,
        **options: Any,
    ) -> keras.callbacks.History:
        """Call `fit`, under the name and with the defaults of Elephas 0.x."""
        options.setdefault("epochs", nb_epoch)
        return self.fit(rdd, batch_size=batch_size, verbose=verbose, validation_split=validation_split, **options)

    def predict_classes(self, data: Any) -> Array:
        """Return the class of each row: the largest output, or whether a single output is above 0.5."""
        found = np.asarray(self.predict(data))
        return np.argmax(found, axis=-1) if found.shape[-1] > 1 else (found > 0.5).astype("int32")

    @abc.abstractmethod
    def fit(self, data: Any = None, /, **options: Any) -> keras.callbacks.History:
        """Train the model."""

    @abc.abstractmethod
    def predict(self, data: Any, /) -> Any:
        """Return predictions in the order of the rows."""


class AsynchronousSparkWorker(partition.AsynchronousSparkWorker):
    """`compat.spark_worker.AsynchronousSparkWorker`, whose client may also be "http" or "socket"."""

    def __init__(
        self,
        json: str,
        parameters: Any,
        client: partition.ParameterClient | str,
        train_config: Mapping[str, Any],
        frequency: str,
        master_optimizer: Any,
        master_loss: Any,
        master_metrics: Any,
        custom_objects: Mapping[str, object] | None,
    ) -> None:
        line = BaseParameterClient.get_client(client) if isinstance(client, str) else client
        super().__init__(
            json,
            parameters,
            line,
            train_config,
            frequency,
            master_optimizer,
            master_loss,
            master_metrics,
            custom_objects,
        )


class SparkHFModel:
    """Hugging Face models of Elephas 6, which were TensorFlow 2 models of `transformers`.

    Raises:
        NotImplementedError: always, with what to use instead.
    """

    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError(
            "SparkHFModel trained the TensorFlow models of the package transformers, which has dropped them. Use a Keras 3 "
            "model of the package keras-hub (keras_hub.models.BertTextClassifier, for example) with SparkModel; "
            "tokenize in its preprocessor or in a Spark column."
        )


class HyperasWorker:
    """The worker of Elephas 2's hyper-parameter search, which ran in every partition.

    Raises:
        NotImplementedError: always, with what to use instead.
    """

    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError(
            "HyperasWorker searched on its own in each partition. Trials share one sampler now and run on Spark's slots: use "
            "HyperParamModel(sc, num_workers), or search(build, space, data)."
        )


def get_server_weights(master_url: str = "localhost:5000") -> Weights:
    """Return the weights of the HttpServer at "host:port"; the name is Elephas 0.3's.

    Raises:
        RefusedError: the server's token is not in the environment (401).
        ConnectionLostError: no server answers.
    """
    return _client(master_url).get_parameters()


def put_deltas_to_server(delta: Sequence[Array], master_url: str = "localhost:5000") -> bytes:
    """Subtract `delta` from the weights of the HttpServer at "host:port"; the name is Elephas 0.3's.

    Raises:
        RefusedError: the server's token is not in the environment (401), or the delta does not fit (400, 413).
    """
    return _client(master_url).update_parameters(delta)


def _client(master_url: str) -> HttpClient:
    host, port = split_address(master_url)
    return HttpClient(port, host=host)


def save_and_zip_model(model: Any, temp_dir: str) -> str:
    """Return the path of a zip of the files that `model.save_pretrained(temp_dir)` writes."""
    model.save_pretrained(temp_dir)
    return shutil.make_archive(str(temp_dir), "zip", temp_dir)


def is_running_in_notebook() -> bool:
    """Return whether this process is the kernel of a Jupyter notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and "IPKernelApp" in shell.config


def get_minor_version(version_string: str) -> int:
    """Return the second number of a version: 15 for "2.15.1"."""
    return int(version_string.split(".")[1])
