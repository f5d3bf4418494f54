"""Copies of a model: with a new optimizer, or with weights drawn anew by its initializers."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import suppress

import keras

from elephas_like.trainer.archive import custom_objects_of
from elephas_like.trainer.graph import inner_optimizers, layers_of, reachable
from elephas_like.trainer.model_facts import overrides
from elephas_like.trainer.seeds import seeded
from elephas_like.trainer.spec import ModelSpec
from elephas_like.trainer.tensors import backend_variable


def fresh_copy(model: keras.Model) -> keras.Model:
    """Return the same compiled model with the same weights, and an optimizer that has not taken a step."""
    copy = ModelSpec.from_model(model).build()
    reset_optimizer(copy)
    return copy


def with_own_variables(
    models: Iterable[keras.Model], *, share_frozen: bool = True, besides: Iterable[keras.Model] = ()
) -> list[keras.Model]:
    """Return the models, but a copy in place of each that shares variables with an earlier one.

    So do models that a function builds on one base.

    Args:
        share_frozen: whether models may share what no training changes.
        besides: further models that they are to share nothing with.
    """
    seen: set[int] = set().union(*(_own(model, share_frozen) for model in besides))
    found: list[keras.Model] = []
    for model in models:
        own = model
        if seen & _own(model, share_frozen):
            own = ModelSpec.from_model(model).build()
        seen |= _own(own, share_frozen)
        found.append(own)
    return found


def _own(model: keras.Model, share_frozen: bool) -> set[int]:
    """Return the ids of the variables that a model must have for itself."""
    if not share_frozen:
        return {id(backend_variable(variable)) for variable in model.variables}
    frozen = {
        id(backend_variable(variable))
        for layer in layers_of(model)
        if not layer.trainable
        for variable in layer.variables
    }
    return {id(backend_variable(variable)) for variable in model.variables} - frozen


def give_own_optimizer(model: keras.Model) -> None:
    """Give a model a new optimizer like its own, if that was built for another model: a function may compile all its models with one.

    One that Keras cannot make from its configuration stays.
    """
    optimizer = getattr(model, "optimizer", None)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        return
    # With mixed precision Keras puts a new optimizer, for the loss scale, around the one that was given.
    built = [each for each in (optimizer, *inner_optimizers(optimizer)) if each.built]
    own = {id(backend_variable(variable)) for variable in model.variables}
    trained = [variable for each in built for variable in each._trainable_variables]  # no public name
    if not built or any(id(backend_variable(variable)) in own for variable in trained):
        return
    with suppress(TypeError, ValueError, NotImplementedError, AttributeError):
        model.optimizer = type(optimizer).from_config(optimizer.get_config())


def reset_optimizer(model: keras.Model) -> None:
    """Reset the optimizers of a model, several of its own too: no steps, no momenta, the same learning rates.

    Raises:
        ValueError: Keras cannot make one of them from its configuration, and its steps use it.
    """
    own = getattr(model, "optimizer", None)
    if own is not None and model.built and not own.built:
        own.build(model.trainable_variables)
    for optimizer in reachable(model):
        if not isinstance(optimizer, keras.optimizers.Optimizer) or not optimizer.built:
            continue
        try:
            new = type(optimizer).from_config(optimizer.get_config())
        except (TypeError, ValueError, NotImplementedError, AttributeError) as cause:
            if optimizer is not own and not overrides(model, "train_step"):
                continue  # of a model inside: Keras' own step does not use it
            raise ValueError(
                f"the optimizer {type(optimizer).__name__} of the model {model.name!r} cannot be begun anew, because Keras cannot make it "
                f"from its configuration: {cause}\nGive its class a get_config, or compile the model with another one."
            ) from cause
        new.build(optimizer._trainable_variables)  # there is no public name for its own
        for variable, value in zip(optimizer.variables, new.variables, strict=True):
            variable.assign(value)


def reinitialized(model: keras.Model, seed: int) -> keras.Model:
    """Return a copy whose trainable weights and dropout are drawn anew by `seed`, with new BatchNorm statistics and optimizer.

    Frozen weights, the state that `adapt` left in preprocessing layers and the compile arguments are kept. Initializers
    and layers with a seed of their own draw the same as ever.

    Raises:
        ValueError: Keras cannot make the model from its configuration, or the model is not built.
    """
    if not model.built:
        raise ValueError(
            f"the model {model.name!r} is not built, so that its weights cannot be drawn anew: give it a keras.Input, or "
            "pass a function that builds it."
        )
    # The copy keeps everything; the second model only provides newly drawn weights.
    spec = ModelSpec.from_model(model)
    with seeded(seed):
        copy = spec.build()
        try:
            with keras.saving.custom_object_scope(custom_objects_of(model)):
                drawn = _from_configuration(model)
        except (TypeError, ValueError, NotImplementedError, AttributeError, RuntimeError) as cause:
            raise ValueError(
                f"the model {model.name!r} cannot be begun anew, because Keras cannot make it from its configuration: "
                f"{cause}\nPass a function that builds it instead."
            ) from cause
        _draw_seeds(copy)
    # A subclass may ignore arguments in `from_config` and build other layers.
    shapes = [tuple(tuple(v.shape) for v in each.trainable_variables) for each in (copy, drawn)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"the model {model.name!r} made from its configuration has other weights than the model itself. Pass a "
            "function that builds it instead."
        )
    for variable, value in zip(copy.trainable_variables, drawn.trainable_variables, strict=True):
        variable.assign(value)
    # Statistics are no trainable weights, but belong to the weights that were replaced.
    for layer in layers_of(copy):
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable and layer.built:
            mean = layer.moving_mean_initializer(layer.moving_mean.shape)
            variance = layer.moving_variance_initializer(layer.moving_variance.shape)
            layer.moving_mean.assign(mean)
            layer.moving_variance.assign(variance)
            if getattr(layer, "renorm", False):
                layer.renorm_mean.assign(mean)
                for deviation in (layer.moving_stddev, layer.renorm_stddev):
                    deviation.assign(keras.ops.sqrt(variance))
    reset_optimizer(copy)
    return copy


def _draw_seeds(model: keras.Model) -> None:
    """Draw what random layers begin with, as Keras does for a layer that is given no seed."""
    for thing in reachable(model):
        if isinstance(thing, keras.random.SeedGenerator) and thing.get_config()["seed"] is None:
            thing.state.assign([random.randint(1, 10**9), 0])


def _from_configuration(model: keras.Model) -> keras.Model:
    if isinstance(model, keras.Sequential) or hasattr(model, "operations"):  # a functional model
        return keras.models.clone_model(model)
    drawn = type(model).from_config(model.get_config())
    drawn.build_from_config(model.get_build_config())
    return drawn
