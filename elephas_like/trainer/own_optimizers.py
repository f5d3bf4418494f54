"""The optimizers that step a model's weights, also where Keras' wrappers or a train step of the user's hold them."""

from __future__ import annotations

from typing import Any, TypeGuard

import keras

from elephas_like.trainer.graph import optimizers_of, reachable
from elephas_like.trainer.model_facts import overrides


def own_optimizer(model: keras.Model) -> keras.optimizers.Optimizer | None:
    """Return a model's optimizer: the inner one of a LossScaleOptimizer. None if the model has none."""
    optimizer = getattr(model, "optimizer", None)
    return getattr(optimizer, "inner_optimizer", optimizer)


def own_optimizers(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Return the optimizers that update the weights; none if the model has no optimizer.

    They are those inside a MultiOptimizer. Once it is built, those that step no weight are left out; before, it may not know all of them.

    Of a model with a train step of its own they are all that it holds and that are built, as `build` builds those that the step uses: also
    optimizers for parts of it. Before that, it is the model's.
    """
    return [part for each in step_optimizers(model) for part in inside(each)]


def step_optimizers(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Return the optimizers that the steps of a model call, each the inner one of a LossScaleOptimizer.

    One that only a model inside was compiled with does not count: Keras' own step of that model would use it, this model's seldom does.
    """
    own = own_optimizer(model)
    alone = [] if own is None else [own]
    if not overrides(model, "train_step"):
        return alone
    held = {id(value) for value in vars(model).values()}
    # Compile arguments keep an optimizer that was replaced by an assignment; there is no public way to the object.
    given = getattr(getattr(model, "_compile_config", None), "config", None) or {}
    parts = [thing for thing in reachable(model) if isinstance(thing, keras.Model)]
    unused = {id(given.get("optimizer")), *(id(getattr(part, "optimizer", None)) for part in parts)}
    others = [each for each in optimizers_of(model)[len(alone) :] if id(each) in held or id(each) not in unused]
    others = [getattr(each, "inner_optimizer", each) for each in others]
    used = [each for each in [*alone, *others] if each.built]
    return used if others and used else alone


def inside(optimizer: keras.optimizers.Optimizer) -> list[keras.optimizers.Optimizer]:
    """Return the optimizers inside a MultiOptimizer, or the optimizer itself."""
    if not _holds_others(optimizer):
        return [optimizer]
    held: list[keras.optimizers.Optimizer] = list(optimizer.optimizers)
    return [each for each in held if each.built] if optimizer.built else held


def accumulations(model: keras.Model) -> list[int]:
    """Return Keras' `gradient_accumulation_steps` of each optimizer that updates the weights; 1 for one without."""
    optimizers: list[Any] = list(own_optimizers(model))
    return [int(getattr(each, "gradient_accumulation_steps", None) or 1) for each in optimizers]


def check_knows_weights(model: keras.Model) -> None:
    """Raise ValueError if Keras' own train step would give a built optimizer weights that it does not know.

    Keras builds an optimizer for the weights that can be trained then. On JAX it wants exactly these at every step.
    """
    optimizer: Any = getattr(model, "optimizer", None)
    if not getattr(optimizer, "built", False) or overrides(model, "train_step"):
        return
    if not type(optimizer).apply.__module__.startswith("keras."):
        return
    known = {id(variable): variable for variable in optimizer._trainable_variables}  # there is no public way
    now = {id(variable): variable for variable in model.trainable_variables}
    new = [variable.path for key, variable in now.items() if key not in known]
    gone = [variable.path for key, variable in known.items() if key not in now]
    if new and not known:
        raise ValueError(
            f"the optimizer of the model {model.name!r} was built for no weights at all: keras.models.load_model does that with .h5 files, "
            "and Keras cannot train such a model either. Load the file with elephas_like.load_spark_model, which keeps what the "
            "optimizer remembers, or compile the model again. A model that was compiled while all its layers were frozen is compiled again, too."
        )
    said = f"does not know {_listed(new)}" if new else f"was built for {_listed(gone)} too" if gone else ""
    if new or (gone and keras.backend.backend() == "jax"):
        raise ValueError(
            f"layers of the model {model.name!r} were {'unfrozen' if new else 'frozen'} or changed after its optimizer was built: it {said}. "
            "Compile the model again after setting `trainable`, as Keras asks for: compile gives it an optimizer for the weights of now."
        )


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _holds_others(optimizer: keras.optimizers.Optimizer) -> TypeGuard[Any]:
    """Return whether an optimizer is a MultiOptimizer, which an older Keras has not."""
    kind = getattr(keras.optimizers, "MultiOptimizer", None)
    return kind is not None and isinstance(optimizer, kind)
