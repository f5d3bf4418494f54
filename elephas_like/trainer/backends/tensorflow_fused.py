"""Keras' optimizers in fewer ops: without what one process has no use for, and with TensorFlow's fused kernels.

`for_one_process` changes no bit. A kernel is one op a variable, where Keras' own update step has about ten. The rules are Keras': Adam and AdamW
(Kingma and Ba 2015; Loshchilov and Hutter 2019), SGD with and without momentum, RMSprop. The optimizer stays Keras' object with Keras' slots, so
learning rates, schedules, clipping, weight decay, gradient accumulation, EMA and saved states are what they were. Sums are rounded in another
order: after 8 steps weights differ by less than 2e-6 (docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

Kernel = Callable[[Any, Any, Any, Any], None]
"""Applies (optimizer, gradient, variable, learning rate), the latter two of the variable's dtype."""

_DTYPES = (tf.float32, tf.float64)


def for_one_process(optimizers: Sequence[keras.optimizers.Optimizer]) -> None:
    """Have the optimizers that step a model sum no gradients over devices, where there is one, and read `iterations` once a step.

    Keras' update steps read `iterations` for each variable.
    What they compute of it, such as Adam's bias correction, TensorFlow then computes once, too: it merges equal ops, unless they read a
    variable. The values are the same. Subclasses of the user's, and optimizers with methods of their own, are left as they are: their code may
    use the variable.
    """
    for optimizer in optimizers:
        _sum_over_devices_only(optimizer)
        if hasattr(optimizer, "_iterations") and _is_keras_own(optimizer):
            _read_step_once(optimizer)


def _sum_over_devices_only(optimizer: Any) -> None:
    """Spare the sum of gradients over devices where there is one.

    Keras has TensorFlow's `all_reduce` make it, whose gradient is registered anew in each trace: it would keep the gradients, and with them the
    whole graph, for as long as the process lives. There is no public way to leave it out.
    """
    name = "_all_reduce_sum_gradients"
    summed = getattr(optimizer, name, None)
    if getattr(getattr(type(optimizer), name, None), "__module__", "").startswith("keras.") and summed is not None:

        def over_devices(grads_and_vars: Sequence[Any]) -> Sequence[Any]:
            return summed(grads_and_vars) if tf.distribute.has_strategy() else list(grads_and_vars)

        object.__setattr__(optimizer, name, over_devices)


def _is_keras_own(optimizer: Any) -> bool:
    """Return whether an optimizer is of a class of Keras' own, with no method of its own but an update step that `fuse` has given it."""
    given = vars(optimizer).keys() & {"update_step", "apply", "assign", "assign_add", "assign_sub"}
    fused = given == {"update_step"} and getattr(optimizer.update_step, "__module__", "") == __name__
    return type(optimizer).__module__.startswith("keras.") and (fused or not given)


def _read_step_once(optimizer: Any) -> None:
    """Put a tensor in the place of the variable during update steps: there is no public way to have it read once."""
    read: dict[object, Any] = {}  # by graph: a branch of `tf.cond` has its own
    applies = False
    apply, update_step = optimizer.apply, optimizer.update_step

    def apply_anew(*arguments: Any, **named: Any) -> Any:
        nonlocal applies
        applies = True
        try:
            return apply(*arguments, **named)
        finally:
            applies = False
            read.clear()  # tensors hold their graph

    def step_with_tensor(*arguments: Any, **named: Any) -> None:
        if not applies or tf.distribute.has_strategy():  # called by other code; a variable for each device
            update_step(*arguments, **named)
            return
        held, graph = optimizer._iterations, tf.compat.v1.get_default_graph()
        if graph not in read:
            read[graph] = tf.convert_to_tensor(held)
        object.__setattr__(optimizer, "_iterations", read[graph])  # past Keras, which keeps account of attributes
        try:
            update_step(*arguments, **named)
        finally:
            object.__setattr__(optimizer, "_iterations", held)

    optimizer.apply, optimizer.update_step = apply_anew, step_with_tensor


def fuse(optimizers: Sequence[keras.optimizers.Optimizer]) -> bool:
    """Have the optimizers that step a model take a fused kernel where there is one for their class and configuration. Return whether one does.

    Subclasses with an update step of their own keep it, and so do sparse gradients of embeddings.
    """
    fused = [_fuse(optimizer) for optimizer in optimizers]
    return any(fused)


def _fuse(optimizer: Any) -> bool:
    kernel = kernel_of(optimizer)
    if kernel is None:
        return False
    plain = optimizer.update_step

    def update_step(gradient: Any, variable: Any, learning_rate: Any) -> None:
        dense = tf.is_tensor(gradient) and not isinstance(gradient, tf.IndexedSlices)
        if not dense or not hasattr(variable, "handle") or variable.dtype not in _DTYPES:
            plain(gradient, variable, learning_rate)
            return
        kernel(optimizer, tf.cast(gradient, variable.dtype), variable, tf.cast(learning_rate, variable.dtype))

    optimizer.update_step = update_step
    return True


def kernel_of(optimizer: Any) -> Kernel | None:
    """Return the kernel for an optimizer; None where Keras' own step is taken."""
    optimizers: Any = keras.optimizers
    for kind, kernel in ((optimizers.Adam, _adam), (optimizers.SGD, _sgd), (optimizers.RMSprop, _rmsprop)):
        if isinstance(optimizer, kind) and type(optimizer).update_step is kind.update_step:
            return kernel if _configured(optimizer) else None
    return None


def _configured(optimizer: Any) -> bool:
    """Whether there is a kernel for the configuration."""
    if isinstance(optimizer, keras.optimizers.RMSprop):
        return (
            not optimizer.centered and optimizer.momentum > 0
        )  # without momentum the kernel wants a slot that Keras has not
    return not getattr(optimizer, "amsgrad", False)


def _adam(optimizer: Any, gradient: Any, variable: Any, learning_rate: Any) -> None:
    step = tf.cast(tf.convert_to_tensor(optimizer.iterations) + 1, variable.dtype)
    first, second = (tf.cast(beta, variable.dtype) for beta in (optimizer.beta_1, optimizer.beta_2))
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=_slot(optimizer, "_momentums", variable),
        v=_slot(optimizer, "_velocities", variable),
        beta1_power=tf.pow(first, step),
        beta2_power=tf.pow(second, step),
        lr=learning_rate,
        beta1=first,
        beta2=second,
        epsilon=tf.cast(optimizer.epsilon, variable.dtype),
        grad=gradient,
    )


def _sgd(optimizer: Any, gradient: Any, variable: Any, learning_rate: Any) -> None:
    if optimizer.momentum == 0:
        tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=learning_rate, delta=gradient)
        return
    tf.raw_ops.ResourceApplyKerasMomentum(
        var=variable.handle,
        accum=_slot(optimizer, "momentums", variable),
        lr=learning_rate,
        grad=gradient,
        momentum=tf.cast(optimizer.momentum, variable.dtype),
        use_nesterov=bool(optimizer.nesterov),
    )


def _rmsprop(optimizer: Any, gradient: Any, variable: Any, learning_rate: Any) -> None:
    tf.raw_ops.ResourceApplyRMSProp(
        var=variable.handle,
        ms=_slot(optimizer, "_velocities", variable),
        mom=_slot(optimizer, "_momentums", variable),
        lr=learning_rate,
        rho=tf.cast(optimizer.rho, variable.dtype),
        momentum=tf.cast(optimizer.momentum, variable.dtype),
        epsilon=tf.cast(optimizer.epsilon, variable.dtype),
        grad=gradient,
    )


def _slot(optimizer: Any, name: str, variable: Any) -> Any:
    """Return the handle of a slot. Keras has no public way from a variable to its slots: only names with an underscore."""
    return getattr(optimizer, name)[optimizer._get_variable_index(variable)].value.handle
