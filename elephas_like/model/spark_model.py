"""SparkModel: a compiled Keras model, trained, evaluated and applied on Spark."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, overload

import keras
import numpy as np
from pyspark import RDD

from elephas_like.compat.elephas import ElephasAttributes
from elephas_like.core import checks
from elephas_like.core.html import history_table
from elephas_like.core.schedules import Schedule
from elephas_like.core.strategies import Codec, Strategy
from elephas_like.core.types import EngineName, Frequency, Mode, OnNaN, OptimizerState, RateScale, Resources
from elephas_like.model import saving
from elephas_like.model.fit import train
from elephas_like.model.inference import Inference
from elephas_like.model.one_at_a_time import one_at_a_time
from elephas_like.model.options import NAMES, Options
from elephas_like.model.preflight import PreflightCheck
from elephas_like.model.prepared import given_for, prepared, reader
from elephas_like.model.sources import source_of, validation_source
from elephas_like.rows.frame_plan import Choice
from elephas_like.trainer.compile_arguments import check_model, check_rows_are_kept, repair_compile
from elephas_like.trainer.request import FitRequest, FitSeeds, check_one_weight, refuse_unknown


class SparkModel(Inference, PreflightCheck, ElephasAttributes):
    """A compiled Keras model that trains on Spark by data-parallel parameter averaging.

    Each worker trains on its share of the rows. Training goes in rounds: after each, a strategy combines the workers'
    updates into the next state. After `fit`, the model that was passed in holds the trained state, optimizer included.

    Args:
        model: compiled Keras model. It is changed in place, as by `model.fit`.
        num_workers: workers that train at the same time. None: one per partition of the data, at most Spark's slots
            for the server engine.
        custom_objects: names of custom classes and functions, as for `keras.models.load_model`. What the model refers
            to is found without.
        batch_size: rows a batch on each worker, for calls that do not say otherwise.
        mode: "synchronous" (workers wait for each other at the end of a round), "asynchronous" (each goes on alone)
            or "hogwild" (asynchronous without a lock).
        frequency: when rounds end: "auto" (about five an epoch, asynchronous workers up to 25; up to four times as many while
            the workers' updates drift apart, and from the first round on where workers keep weights or slots of their own),
            "epoch", "batch", "fit" (one for the whole fit), a number of steps of the largest shard, or a Schedule such as `PostLocal(16)`.
        strategy: how updates are averaged, a name or an object. None: for several synchronous workers "nesterov", but "average"
            where the model's optimizer gathers speed by itself (SGD with momentum, Lion, Muon, ScheduleFreeAdamW); "average" for
            one worker; "mla" for several asynchronous workers, "downpour" for one and in mode "hogwild". docs/strategies.md has the table.
        codec: compression applied to updates before they are sent, a name or an object: "fp16", "int8", "int4", "one_bit"
            or "top_k". None sends them uncompressed.
        state_codec: in synchronous mode, compression of what workers receive: the steps from one round's weights to the next, a codec as
            above. Workers then begin rounds near the driver's weights; what a step loses is part of the next. None sends weights whole.
        parameter_server_mode: "http" or "socket".
        host: the driver's address: the server listens on it, and workers come to it. A wildcard ("0.0.0.0", "::") is
            for listening only. None does as Spark's driver: it listens on spark.driver.bindAddress, else on
            spark.driver.host, and workers come to spark.driver.host. Behind NAT or in a container set these two, and
            forward a `port`.
        port: the server's port; 0 lets the system choose. Of a range, "40000:40100" with both ends included, the first free port is
            taken, so that several fits run at the same time on a machine whose firewall lets the range through.
        tls: whether workers and the server speak TLS. True makes a certificate for the run; `(certificate, key)` are paths of
            your own where the server runs, both PEM. Workers accept that one alone. None: where Spark encrypts its own network.
        allow_plain_text: whether to leave in plain text what Spark's settings encrypt: rows on the executors' disks, and with
            tls=False what travels to the server. Without, that raises PlainTextError (docs/security.md).
        engine: "server" (long tasks and a parameter server), "jobs" (a Spark job per round), "gang" (barrier stages, the server in
            one of their tasks: over Spark Connect, or where executors cannot reach the driver), "in_process" (no Spark) or "auto".
        optimizer_state: what becomes of optimizer slots (momenta) at an exchange: "average", "per_worker" (each worker
            keeps its own), or "reset" (to what they were when the fit began).
        optimizer_state_every: rounds from one average of the slots to the next, in synchronous mode. In between each worker keeps its
            own, and exchanges move fewer bytes. The fit ends with the mean of them. 1, the default: slots travel with every exchange.
        control_variates: whether workers add to each of their steps what their own mean step of the last round lacked to that of all
            workers (SCAFFOLD, option II, in the space of steps; docs/strategies.md): for few exchanges over rows that differ from worker
            to worker, in synchronous mode. An order brings one vector more.
        on_nan: "raise", or "drop" an update with NaN and go on.
        fused_optimizer: whether workers step Adam, AdamW, SGD with momentum and RMSprop with momentum by TensorFlow's fused
            kernels. They follow the same rules, faster, and round Adam's sums in another order. False, the default: Keras' own steps.
        scale_learning_rate: in synchronous mode, how the learning rate grows with the number of workers, whose batches make one
            large batch together: "linear" (times the workers; SGD), "sqrt" (times their square root; Adam and the like), or None.
            Only workers train with the scaled rate, or schedule. The model keeps its own: callbacks see, set and save that, and what
            they set is scaled for the workers. `worker_callbacks` see and save what workers train with. For a fixed batch a worker:
            with `global_batch_size`, whose batch stays what it was, it is refused.
        max_staleness: for asynchronous modes, the largest staleness of an update that is applied: the number of other
            updates applied since the state that it was trained from. Staler updates are dropped and counted in the history;
            the worker goes on from the current state. K workers of equal speed are K - 1 updates stale. Strategies that step
            once for several updates count steps. None: no limit.
        quorum: a number or a share of workers, in synchronous mode: a round ends when so many of those with rows
            have answered, or all of them. A straggler's update counts in the round in which it comes; `history.rounds` tells
            how many rows were trained. None waits for all.
        quorum_grace: how long the others are waited for then, as a share of the time that the quorum took.
        seed: of shuffling, validation rows, dropout and the virtual clock. Later fits of this object derive theirs from it.
            None draws one from NumPy's global generator, which `keras.utils.set_random_seed` seeds.
        resources: "gpu" asks Spark for one GPU for each worker's task, of fit, evaluate and collected predictions, which then computes on that card
            alone; None takes what Spark gives to every task (`spark.task.resource.gpu.amount`). Without either, workers on one machine
            spread over the cards that they see (docs/deploy.md).
        epochs_per_job: of the gang engine: epochs in one job. None: one with callbacks or checkpoints, which take no other number;
            else twice as many as before while a job takes less than ten seconds.
        join_timeout: seconds to wait for the last worker's first message, once the first worker has sent one; for the next
            message of a worker that is still writing its rows to disk; for slots that other fits hold; and for executors.
            Workers of the jobs engine do not join: they need not run at the same time.
        round_timeout: seconds without progress after which a worker fails the fit: progress is a step trained or
            evaluated. Also the seconds that writing its rows may take. A new attempt of the worker starts the clock again.
            A round may outlast this as long as its workers make progress. The driver's callbacks never count. In the jobs
            engine, whose workers may take turns, seconds in which none answers; in the gang engine, while rows are written and
            the model is compiled, and of `predict` and `evaluate` on executors, seconds in which none of their tasks starts or ends.

    A string as second positional argument means Elephas' old order: `(model, mode, frequency, parameter_server_mode,
    num_workers, custom_objects, batch_size, port)`; a SparkContext as the first one the order of Elephas 0.x:
    `(sc, model, optimizer, mode, frequency, num_workers)`.

    Raises:
        ValueError: a model that is not compiled, an unknown name, or a combination that makes no sense: the message
            lists the valid ones. TypeError: an unknown argument, with the nearest name.
    """

    num_workers: int | None
    batch_size: int
    mode: Mode
    frequency: Frequency | int | Schedule
    strategy: Strategy | str | None
    codec: Codec | None
    state_codec: Codec | None
    max_staleness: int | None
    quorum: int | float | None
    quorum_grace: float
    parameter_server_mode: Literal["http", "socket"]
    host: str | None
    port: int | str
    tls: bool | tuple[str, str] | None
    allow_plain_text: bool
    engine: EngineName
    optimizer_state: OptimizerState
    optimizer_state_every: int
    control_variates: bool
    on_nan: OnNaN
    fused_optimizer: bool
    scale_learning_rate: RateScale | None
    seed: int | None
    resources: Resources | None
    epochs_per_job: int | None
    join_timeout: float
    round_timeout: float
    custom_objects: dict[str, object]

    _saved_as = "SparkModel"  # what `load_spark_model` makes of a saved one, of subclasses of users too

    @overload
    def __init__(
        self,
        model: keras.Model,
        num_workers: int | None = None,
        custom_objects: Mapping[str, object] | None = None,
        batch_size: int = 32,
        *,
        mode: str = "synchronous",
        frequency: str | int | Schedule = "auto",
        strategy: Strategy | str | None = None,
        codec: Codec | str | None = None,
        state_codec: Codec | str | None = None,
        parameter_server_mode: str = "http",
        host: str | None = None,
        port: int | str = 0,
        tls: bool | tuple[str, str] | None = None,
        allow_plain_text: bool = False,
        engine: str = "auto",
        optimizer_state: str = "average",
        optimizer_state_every: int = 1,
        control_variates: bool = False,
        on_nan: str = "raise",
        fused_optimizer: bool = False,
        scale_learning_rate: str | None = None,
        max_staleness: int | None = None,
        quorum: int | float | None = None,
        quorum_grace: float = 0.1,
        seed: int | None = None,
        resources: str | None = None,
        epochs_per_job: int | None = None,
        join_timeout: float = 60,
        round_timeout: float = 600,
    ) -> None: ...

    @overload
    def __init__(
        self,
        model: keras.Model,
        mode: str,
        frequency: str | int | Schedule = "auto",
        parameter_server_mode: str = "http",
        num_workers: int | None = None,
        custom_objects: Mapping[str, object] | None = None,
        batch_size: int = 32,
        port: int | str = 0,
        **options: Any,
    ) -> None: ...

    def __init__(self, model: keras.Model, *args: Any, **options: Any) -> None:
        model, checked = Options.from_arguments(model, args, options)
        check_model(model)
        repair_compile(model)
        checked.resolved(model, checked.num_workers or 2)  # raises here, not in the first fit
        for name in NAMES:
            setattr(self, name, getattr(checked, name))
        self._model = model
        self.training_histories: list[dict[str, list[float]]] = []
        self._fits = 0
        self._split_seed: int | None = None
        self._bootstrap: int | None = None

    @property
    def master_network(self) -> keras.Model:
        """The Keras model."""
        return self._model

    @master_network.setter
    def master_network(self, model: keras.Model) -> None:
        check_model(model)
        self._model = model

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor but for the model."""
        return self._options.config()

    def __repr__(self) -> str:
        """The model's name, and the options that are not as they are by default."""
        changed = "".join(f", {name}={value!r}" for name, value in self._options.changed().items())
        return f"{type(self).__name__}({self._model.name!r}{changed})"

    def _repr_html_(self) -> str:
        """The same for a notebook, with loss and metrics of the last fit."""
        return history_table(repr(self), self.training_histories[-1] if self.training_histories else {})

    @property
    def _options(self) -> Options:
        """The options as the attributes say them now: what a user has set since counts for the next fit."""
        return Options.checked(**{name: getattr(self, name) for name in NAMES})

    def fit(
        self,
        data: Any = None,
        y: Any = None,
        *,
        epochs: int = 1,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        verbose: int | str = "auto",
        validation_split: float = 0.0,
        validation_data: Any = None,
        validation_freq: int | Sequence[int] = 1,
        callbacks: Sequence[keras.callbacks.Callback] | keras.callbacks.Callback | None = None,
        worker_callbacks: Sequence[keras.callbacks.Callback] | None = None,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        shuffle: bool = True,
        initial_epoch: int = 0,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        checkpoint_freq: str | float = "epoch",
        resume: bool | str = "auto",
        monitor: bool | int | str = False,
        features_col: Choice | None = None,
        label_col: Choice | None = None,
        sample_weight_col: str | None = None,
        column_shapes: Mapping[str, Sequence[int]] | None = None,
        column_dtypes: Mapping[str, str] | None = None,
        handle_invalid: str | None = None,
        rdd: RDD | None = None,
        x: Any = None,
        **others: Any,
    ) -> keras.callbacks.History:
        """Trains the model and returns its History: loss and metrics per epoch, `val_*`, and `rounds` in detail.

        Args:
            data: an RDD of `(x, y)`, `(x, y, sample_weight)` or, for models that need no target, `x` rows (docs/models.md); or arrays
                (NumPy, pandas, or tuples and dicts of them) with `y`; or a ShardedDataset; or a DataFrame; or the path or URL of
                Parquet files, which workers read by themselves (`ParquetFiles`). `rdd=` and `x=` mean the same. A model of KerasHub with
                a preprocessor takes rows as its own fit does, such as text, and executors prepare them (docs/models.md).
            epochs: the epoch to end with, as in Keras.
            batch_size: rows a batch on each worker; None takes the constructor's.
            global_batch_size: rows a batch over all workers together, split among them as evenly as it can be; excludes
                `batch_size`.
            verbose: 0 silent, 1 or "auto" a progress bar and a line per epoch, 2 the line alone.
            validation_split: share of each worker's rows, drawn at random by seed, that is held out and scored.
            validation_data: `(x, y)` or `(x, y, sample_weight)` arrays, an RDD of such rows, or a DataFrame or Parquet files
                with the columns of `data`.
            validation_freq: epochs between validations, or a list of epochs counted from 1, as in Keras.
            callbacks: Keras callbacks, called on the driver with the averaged model and global metrics.
            worker_callbacks: Keras callbacks, copied to each worker and called around its own batches and epochs, with the
                metrics of its own rows. Those that end the training, which all workers share, or set the learning rate are refused:
                pass them as `callbacks`. Engines server and in_process only. Their `on_train_end` may take
                `round_timeout` seconds.
            class_weight: weight of a row by its class, as in Keras.
            sample_weight: weights of array rows; rows of an RDD carry theirs.
            shuffle: whether each worker sees its rows in a new order each epoch.
            initial_epoch: the epoch to begin with.
            checkpoint_dir: a directory, or a URL of any Hadoop filesystem, in which the fit keeps all that it needs to go on
                if its driver dies. Run the same program again. Deleted when the fit is over. One directory a fit.
            checkpoint_freq: "epoch", or the least seconds between two checkpoints, which then are written amid epochs too.
            resume: "auto" goes on from what is in `checkpoint_dir`, or begins; True insists on a checkpoint; False begins anew.
            monitor: True serves a page on the driver that shows the fit while it runs, and prints its URL (docs/monitoring.md). A port,
                or a range such as "40000:40100", in place of any free port.
            features_col: of a DataFrame or of files, "features" by default: a column of vectors, numbers, text, arrays, bytes or images,
                or several, put together for a model with one input, or one for each of several inputs, in their order or
                as a dict by their names. "a.b" is the field b of the struct a (docs/spark_ml.md).
            label_col: of a DataFrame, "label" by default, likewise for the outputs. A model without a loss gets labels only if they are
                named here, and only if it has a `train_step` or `test_step` of its own, or metrics.
            sample_weight_col: of a DataFrame, a column of numbers.
            column_shapes: shapes of a value, by column: for what does not follow from the model's inputs.
            column_dtypes: dtypes of the bytes in binary columns, by column.
            handle_invalid: of rows with null, NaN or a wrong length: "error", "skip" (they are left out), or "keep" (trains on
                NaN). None, the default: NaN is trained on, all else is an error.

        Raises:
            ValueError, TypeError: arguments that make no sense, before anything starts.
            DataError: rows that cannot be trained on, with their place.
            PlainTextError: Spark's settings encrypt what the fit would leave in plain text.
            WorkerError: an exception on a worker, with its own type, message and traceback.
        """
        self._check(others, SparkModel.fit)
        check_rows_are_kept(self._model, prepared=True)
        data = checks.one_of(data=data, rdd=rdd, x=x)
        request = FitRequest.checked(
            self._model,
            epochs=epochs,
            initial_epoch=initial_epoch,
            batch_size=batch_size,
            global_batch_size=global_batch_size,
            verbose=verbose,
            validation_split=validation_split,
            validation_freq=validation_freq,
            callbacks=callbacks,
            worker_callbacks=worker_callbacks,
            class_weight=class_weight,
            shuffle=shuffle,
            checkpoint_dir=checkpoint_dir,
            checkpoint_freq=checkpoint_freq,
            resume=resume,
            monitor=monitor,
            has_validation_data=validation_data is not None,
        )
        given = given_for(
            self._model,
            data,
            y,
            sample_weight,
            features_col=features_col,
            label_col=label_col,
            sample_weight_col=sample_weight_col,
            column_shapes=column_shapes,
            column_dtypes=column_dtypes,
            handle_invalid=handle_invalid,
        )
        weighted = given.sample_weight is not None or sample_weight_col is not None
        check_one_weight(request.class_weight, has_sample_weight=weighted)
        read_as = reader(self._model)
        source = source_of(given.x, given.y, given.sample_weight, given.columns, read_as)
        source = prepared(source, self._model, self.seed, self._fits)
        held = None
        if validation_data is not None:
            held = validation_source(given.validation(validation_data, read_as), given.columns, read_as)
            held = prepared(held, self._model, self.seed, self._fits)
        with one_at_a_time(self._model, request.checkpoint_dir):
            history = train(self._model, self._options, request, source, held, self._draw_seeds)
        self.training_histories.append(history.history)
        return history

    def save(self, file_name: str | os.PathLike[str], overwrite: bool = False, to_hadoop: bool = False) -> None:
        """Saves the model, optimizer included, with this object's configuration, for `load_spark_model`.

        Plain `keras.models.load_model` loads the file too. It is put in place whole.

        Args:
            file_name: ends with `.keras` or `.h5`; a path, or a URL of any Hadoop filesystem (hdfs://, s3a://, ...).
            overwrite: replaces what is there.
            to_hadoop: a path without a scheme is one of Spark's default filesystem.

        Raises:
            FileExistsError: something is there, and `overwrite` is False. OSError: with the filesystem's reason.
        """
        saving.save(self._model, file_name, self._saved_as, self.get_config(), overwrite=overwrite, hadoop=to_hadoop)

    def export(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Exports the model as a TensorFlow SavedModel, for TensorFlow Serving and others that know no Keras.

        Args:
            path: of a directory; a path, or a URL of any Hadoop filesystem.
            overwrite: replaces what is there.

        Raises:
            FileExistsError: something is there, and `overwrite` is False. OSError: with the filesystem's reason.
        """
        saving.export(self._model, path, overwrite=overwrite)

    def _check(self, others: Mapping[str, Any], method: Callable[..., Any]) -> None:
        refuse_unknown(others, inspect.signature(method).parameters)
        check_model(self._model)

    def _draw_seeds(self) -> FitSeeds:
        return FitSeeds(self._next_seed(), self._split_seed, self._bootstrap)

    def _next_seed(self) -> int:
        """The seed of a fit: the given one, and for later fits of this object others that follow from it."""
        self._fits += 1
        if self._fits == 1:
            self._split_seed = int(np.random.randint(2**31 - 1)) if self.seed is None else self.seed
        if self.seed is None:
            return int(np.random.randint(2**31 - 1))  # the generator that keras.utils.set_random_seed seeds
        if self._fits == 1:
            return self.seed
        return int(np.random.SeedSequence([self.seed, self._fits]).generate_state(1)[0])
