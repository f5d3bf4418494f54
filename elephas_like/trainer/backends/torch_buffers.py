"""Buffers of PyTorch's modules as variables: tensors that a module keeps beside its parameters, and that Keras does not know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary, ref

from elephas_like.core.extras import require

require("torch")

import torch  # noqa: E402

_KERAS_NAMES = {"running_mean": "moving_mean", "running_var": "moving_variance"}
"""What Keras calls the statistics that PyTorch's normalization layers keep."""


class Buffer:
    """A buffer by its module and its name: a forward pass may put another tensor in its place."""

    def __init__(self, module: torch.nn.Module, key: str) -> None:
        self._module, self._key = ref(module), key
        self.name = _KERAS_NAMES.get(key, key)

    @property
    def value(self) -> Any:
        """The tensor that the module has now."""
        module = self._module()
        assert module is not None
        return module._buffers[self._key]

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        return tuple(self.value.shape)

    def numpy(self) -> Any:
        """The values as an array, of complex numbers too; it may share the tensor's memory."""
        return self.value.detach().cpu().resolve_conj().resolve_neg().numpy()

    def put(self, tensor: Any) -> None:
        """Set the values; a tensor whose elements share memory, as `expand` makes them, is replaced."""
        held = self.value
        if any(stride == 0 and size > 1 for stride, size in zip(held.stride(), held.shape, strict=True)):
            module = self._module()
            assert module is not None
            module._buffers[self._key] = tensor.to(held.device, held.dtype).clone()
            return
        with torch.no_grad():
            held.copy_(tensor)


_known: WeakKeyDictionary[torch.nn.Module, dict[str, Buffer]] = WeakKeyDictionary()
_MARK = "_elephas_like_buffer"
"""The attribute of a tensor that says which buffer it is."""


def buffers_in(module: torch.nn.Module) -> Iterator[Buffer]:
    """Yield a module's own buffers, the same objects at every call."""
    known = _known.setdefault(module, {})
    for key, tensor in module._buffers.items():
        if tensor is not None and not tensor.is_meta:
            if key not in known:
                known[key] = Buffer(module, key)
            setattr(tensor, _MARK, known[key])
            yield known[key]


def buffer_of(tensor: torch.Tensor) -> Buffer | None:
    """Return the buffer that a tensor is; None for other tensors, and for those that no module has any more."""
    found = getattr(tensor, _MARK, None)
    return found if isinstance(found, Buffer) and found._module() is not None and found.value is tensor else None
