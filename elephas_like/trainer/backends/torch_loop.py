"""The loop of train steps on PyTorch: Keras' own `train_step`, called from Python, on batches gathered on the device.

Plain `fit` pays for a loader that puts every batch together row by row; here a batch is one gather from columns that stay on the
device. The step itself is Keras' eager one. `model.compile(jit_compile=True)` has `torch.compile` compile it, as Keras' fit does: the
step of a small MLP takes most of a minute to compile. So that is the user's choice (docs/backends.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from elephas_like.core.extras import require
from elephas_like.core.structure import unflatten
from elephas_like.core.types import Structure
from elephas_like.trainer.backends.protocol import Step, Tensor

require("torch")

import keras  # noqa: E402
import torch  # noqa: E402


class TorchLoop:
    """Runs a model's train or test step over batches of columns."""

    def __init__(self, model: keras.Model, step: Step, corrections: Sequence[keras.Variable] = ()) -> None:
        self._model = model
        self._corrected = list(zip(model.trainable_variables, corrections, strict=True)) if corrections else []
        self._trains = step != model.test_step
        self._step = torch.compile(step) if model.jit_compile is True and not model.run_eagerly else step
        self.done = 0
        self.returned: object = None

    def run(
        self,
        columns: Sequence[Tensor],
        structure: Structure,
        order: Tensor,
        batch_size: int,
        first: int,
        last: int,
        *,
        sized: bool = False,
    ) -> None:
        """Run the steps `first` to `last` (exclusive). Step i sees the rows `order[i batch_size:][:batch_size]`, and their number."""
        self._model.train(self._trains)  # for modules of PyTorch's, as in Keras' fit
        try:
            with torch.set_grad_enabled(self._trains):
                for step in range(first, last):
                    rows = order[step * batch_size : (step + 1) * batch_size]
                    batch = unflatten(structure, [column.index_select(0, rows) for column in columns])
                    assert isinstance(batch, tuple)
                    logs = self._step(keras.utils.pack_x_y_sample_weight(*batch))
                    self._correct()
                    if self.returned is None:
                        self.returned = keras.tree.map_structure(lambda _: None, logs)
                    self.done += 1
        finally:
            self._model.eval()

    def _correct(self) -> None:
        with torch.no_grad():
            for weight, correction in self._corrected:
                weight.value.add_(correction.value)
