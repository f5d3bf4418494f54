"""Compiled models that a Python process keeps from fit to fit, each with its traced loops."""

from __future__ import annotations

import math
import re
import threading
from collections import OrderedDict
from functools import cached_property

import keras
import numpy as np

from elephas_like.core.checks import shortly
from elephas_like.core.errors import DataError
from elephas_like.trainer.backends.chosen import BACKEND
from elephas_like.trainer.building import build, evaluate_once
from elephas_like.trainer.corrections import Corrections
from elephas_like.trainer.kept import BYTES_KEPT, DROPPED, drop_beyond
from elephas_like.trainer.model_facts import overrides
from elephas_like.trainer.own_optimizers import accumulations, own_optimizers
from elephas_like.trainer.seeds import Draws, seeded
from elephas_like.trainer.spec import ModelSpec
from elephas_like.trainer.state import BesideState, Variables
from elephas_like.trainer.steps import StepLoop
from elephas_like.trainer.tensors import is_text

PROGRAMS_KEPT = 4
"""Maximum number of compiled models that a process keeps for later fits."""
_STEPS = ("train_step", "test_step", "predict_step")


class Program:
    """A compiled, built model of this process with its traced loops.

    fused: whether its optimizer may take fused kernels. draws: from which it draws where no seed is given.
    corrections: what its steps add to the weights; None for nothing.
    """

    def __init__(
        self, spec: ModelSpec, sample: tuple[object, ...], seed: int, *, fused: bool = False, corrected: bool = False
    ) -> None:
        with seeded(seed, 0xE1E), spec.settings.policy_applied():  # a model may make layers when it is built
            self.model = spec.build()
            check_rows_fit(self.model, sample)
            build(self.model, sample)
        if fused:
            BACKEND.fuse(own_optimizers(self.model))
        BACKEND.for_one_process(own_optimizers(self.model))
        self.key = _program_key(spec, sample, fused=fused, corrected=corrected)
        self.variables = Variables(self.model)
        self.draws = Draws()
        self.corrections = Corrections(self.model, self.variables) if corrected else None
        added = self.corrections.variables if self.corrections is not None else ()
        self.training = StepLoop(self.model, self.model.train_step, added)
        self.testing = StepLoop(self.model, self.model.test_step)
        self._beside = None if self.is_eager else BesideState(self.model)

    @property
    def is_eager(self) -> bool:
        """Whether its Python code runs at every step, and may leave something behind in attributes."""
        return BACKEND.is_eager(self.model)

    @property
    def is_as_made(self) -> bool:
        """Whether a state brings all of it that training has changed, as far as variables tell."""
        return self._beside is None or self._beside.is_as_made

    @property
    def nbytes(self) -> int:
        """Bytes of the model's variables, counted as float32."""
        return self.variables.nbytes

    @cached_property
    def accumulation(self) -> int:
        """Keras' `gradient_accumulation_steps`; 1 without. Of several optimizers, the steps after which all of them step at once."""
        return math.lcm(*accumulations(self.model))


def _program_key(spec: ModelSpec, sample: tuple[object, ...], *, fused: bool, corrected: bool) -> str:
    """Return the cache key of a program: the model, the kind of its rows, and what its steps do besides."""
    return f"{spec.key_for(sample)} {'fused' if fused else 'plain'} {'corrected' if corrected else 'free'}"


class Programs:
    """The compiled models of this process by model and kind of rows. Each is used by one borrower at a time.

    Args:
        count: maximum number of models that are kept while nobody uses them.
        nbytes: maximum size of their variables in bytes. The least recently used models are dropped first. The last one
            that was given back stays, so that a second fit traces nothing, until another model is asked for.
    """

    def __init__(self, count: int = PROGRAMS_KEPT, nbytes: int = BYTES_KEPT) -> None:
        self._count, self._nbytes = count, nbytes
        self._free: OrderedDict[str, Program] = OrderedDict()
        self._lock = threading.Lock()

    def borrow(
        self, spec: ModelSpec, sample: tuple[object, ...], seed: int, *, fused: bool = False, corrected: bool = False
    ) -> Program:
        """Return a program for a spec: a kept one, or a new one. The process's Keras settings, less the policy, become the spec's."""
        key = _program_key(spec, sample, fused=fused, corrected=corrected)
        with self._lock:
            kept = self._free.pop(key, None)
        if kept is None:
            self._drop(0)
            DROPPED.free()
            return Program(spec, sample, seed, fused=fused, corrected=corrected)
        spec.settings.apply()  # a loop that it has not run yet is traced under them
        return kept

    def give_back(self, program: Program) -> None:
        """Keep a program for the next borrower, and drop the least recently used ones beyond the limits.

        A model that runs eagerly is not kept: what its code leaves in Python's attributes is no state, and must not reach another fit.
        Nor is one whose training has changed a variable that no state carries.
        """
        if program.is_eager or not program.is_as_made:
            DROPPED.add(program.nbytes)
            return
        with self._lock:
            self._free[program.key] = program
            self._free.move_to_end(program.key)
        self._drop(1)

    def _drop(self, spared: int) -> None:
        with self._lock:
            drop_beyond(self._free, self._count, self._nbytes, spared)


PROGRAMS = Programs()
"""Spark reuses Python processes across tasks; a global of a module survives between them."""


def check_validation(model: keras.Model, sample: tuple[object, ...], difference: str) -> None:
    """Raise DataError if a model cannot evaluate a batch of validation rows. It is left as it was.

    Args:
        difference: how the rows to train on differ from them.
    """
    try:
        evaluate_once(model, sample)
    except Exception as error:
        first = re.sub(r"\x1b\[\d*m", "", str(error)).strip().splitlines() or [type(error).__name__]
        reason = next((line for line in first if not line.endswith("call().") and line), first[0])
        raise DataError(
            f"the validation rows do not fit the model {model.name!r} as the rows to train on do: {difference}. Keras says: {reason}"
        ) from error


def check_rows_fit(model: keras.Model, sample: tuple[object, ...]) -> None:
    """Raise DataError if the rows do not fit a model.

    Raises:
        DataError: they are text, and no input takes text; or numbers for one input of text. Of a model with one input also: they are
            longer or shorter than it expects, along some axis; or a row is a tuple of values where it takes one array.
    """
    inputs = getattr(model, "inputs", None) or []
    # A class of the user's may read them in its own way: ids of two items, for example.
    steps = any(overrides(model, step) for step in _STEPS)
    own = steps or type(model).__module__.partition(".")[0] != "keras"
    if inputs and not own and all(each.dtype != "string" for each in inputs):
        _check_numbers(model, sample[0])
    if len(inputs) != 1:
        return
    if inputs[0].dtype == "string" and not own and _has_numbers(sample[0]):
        raise DataError(
            f"the model {model.name!r} takes text, and the rows have numbers: give strings, as x.astype(str) does."
        )
    expected, features = tuple(inputs[0].shape)[1:], sample[0]
    if isinstance(features, tuple | list) and len(features) > 1:
        if own:
            return
        raise DataError(
            f"the model {model.name!r} takes one array of features, of shape {expected}, and the rows' are a tuple of "
            f"{len(features)} values, as for so many inputs. Make a list of it: rdd.map(lambda row: (list(row[0]), row[1])); or one array of "
            "a list of arrays: np.stack(x)."
        )
    if steps or not isinstance(features, np.ndarray):
        return
    found = features.shape[1:]
    apart = any(wanted not in (None, size) for wanted, size in zip(expected, found, strict=False))
    if len(expected) == len(found) and apart:
        raise DataError(f"the model {model.name!r} takes features of shape {expected}, and the rows' are {found}.")


def _has_numbers(features: object) -> bool:
    return isinstance(features, np.ndarray) and features.size > 0 and features.dtype.kind in "biuf"


def _check_numbers(model: keras.Model, features: object) -> None:
    if isinstance(features, dict):  # it may have more than the model reads
        given = getattr(model, "input", None)
        read = given if isinstance(given, dict) else {each.name for each in model.inputs}
        features = [part for name, part in features.items() if name in read]
    for part in keras.tree.flatten(features):
        if is_text(part) and part.size:
            first = part.flat[0]
            text = first.decode(errors="replace") if isinstance(first, bytes) else str(first)
            raise DataError(
                f"the model {model.name!r} takes numbers, and the rows have text, such as {shortly(text)}: convert it, as "
                "x.astype('float32') does, or begin the model with an input for text, keras.Input(shape, dtype='string')."
            )
