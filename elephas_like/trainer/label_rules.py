"""What labels a compiled model takes, read off its losses and outputs (core/row_checks.py)."""

from __future__ import annotations

import keras

from elephas_like.core.row_checks import LabelKind, LabelRule
from elephas_like.core.types import Slot
from elephas_like.trainer.model_facts import overrides
from elephas_like.trainer.task import ONE_HOT, loss_name, loss_setting, targets

_SPARSE = ("sparse_categorical_crossentropy", "sparse_categorical_focal_crossentropy")
_STEPS = ("compute_loss", "train_step", "test_step")


def label_rules(model: keras.Model) -> object:
    """Return a LabelRule, or a tree of them like the model's outputs; None where the labels may be anything.

    They may where the model is not built, where a loss is the user's own, and where the model's own class decides what becomes of
    the labels.
    """
    if any(overrides(model, step) for step in _STEPS):
        return None
    return _rules(targets(model), getattr(model, "loss", None))


def _rules(slots: object, loss: object) -> object:
    if isinstance(slots, Slot):
        each = [one for one in loss if one is not None] if isinstance(loss, list | tuple) else [loss]
        return _rule(slots, each[0] if len(each) == 1 else None)
    if isinstance(slots, dict):
        losses = loss if isinstance(loss, dict) else dict.fromkeys(slots, loss)
        return {name: _rules(slot, losses.get(name)) for name, slot in slots.items()}
    if isinstance(slots, tuple):
        if isinstance(loss, dict):
            return tuple(_rules(slot, loss.get(slot.name) if isinstance(slot, Slot) else None) for slot in slots)
        each = [one for one in loss if one is not None] if isinstance(loss, list | tuple) else [loss] * len(slots)
        return tuple(map(_rules, slots, each)) if len(each) == len(slots) else None
    return None


def _rule(slot: Slot, loss: object) -> LabelRule | None:
    if loss is None or isinstance(loss, dict | list | tuple) or not slot.shape or slot.shape[-1] is None or slot.text:
        return None
    known = keras.losses.get(loss) if isinstance(loss, str) else loss
    kind = type(known) if isinstance(known, keras.losses.Loss) else known
    if not str(getattr(kind, "__module__", "")).startswith("keras."):
        return None
    name = loss_name(known)
    classes, rank = int(slot.shape[-1]), len(slot.shape)
    if name in _SPARSE:
        return LabelRule(LabelKind.INDEX, name, classes, rank, loss_setting(known, "ignore_class"))
    if name in ONE_HOT and classes > 1:
        return LabelRule(LabelKind.ONE_HOT, name, classes, rank)
    return LabelRule(LabelKind.NUMBER, name, classes, rank)
