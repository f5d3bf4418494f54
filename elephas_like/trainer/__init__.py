"""Keras on one machine: compiled models are made, trained, evaluated and saved. No pyspark, no sockets.

A worker
    worker      trains a shard from a state
    programs    compiled models that are kept between fits; kept: how much a process keeps of them
    steps       the loop of train steps
    batches     a shard's rows, step by step
    state       a model's variables and metrics, read and written; metric_results: what metrics make of their sums
    building    builds models, optimizers and metrics, so that all variables are known
A model in transit
    spec        a compiled model as plain data
    live_pickle a model by value; code, bytecode: user code by value; graph: what a model refers to
    keras_settings  the driver's global settings of Keras
A model in files
    archive, recipe     `.keras` archives
    model_files         files with a configuration beside the model
    legacy_files        files and architectures of Keras 2
    serialization       Elephas' dicts of architecture and weights, and weights written back
    copies              copies with a new optimizer or new weights
The driver's side
    request     the arguments of a fit, checked
    callbacks   Keras callbacks around rounds and epochs; callback_checks: which can work where; callback_states: what a checkpoint keeps of them; bars: progress bars
Questions about a model
    task        inputs, outputs, and how to read them; model_facts: how many, what its class overrides, what a row is to it
    label_rules which labels a loss takes
    compile_arguments, learning_rate, metric_names, metric_sums
    momentum    whether its optimizer gathers speed by itself; own_optimizers: the optimizers inside Keras' wrappers
    constraints what its constraints make of averaged weights
Others
    factories   makers of workers, which the driver sends
    inference   predictions on executors; preparing: rows as KerasHub's preprocessors make them
    outer       a Keras optimizer as a strategy
    seeds       seeded random generators
    backends    Keras' backends, one module each; tensors: the one of this process, as the other files use it
"""

from elephas_like.core.extras import keras_backend, require
from elephas_like.core.garbage import collection_paused

require(keras_backend())
with collection_paused(all_stay=True):
    import keras  # noqa: F401  on JAX and PyTorch, which do not import it themselves
