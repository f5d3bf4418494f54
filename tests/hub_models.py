"""Small models of keras-hub, with preprocessors whose vocabulary is here. Imported by tests that run with TensorFlow."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

keras_hub = pytest.importorskip(
    "keras_hub", reason="not installed: TensorFlow Text, which it needs, has no build for Python 3.14"
)

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green", "blue"]
PAD, CLS, SEP, RED, GREEN, BLUE = 0, 2, 3, 5, 6, 7
TEXTS = np.array(["red green", "blue", "green blue red", "red"] * 6, dtype=object)
LABELS = np.tile([0, 1, 2], 8)
LETTERS = {"<|endoftext|>": 0, "r": 1, "e": 2, "d": 3, "Ġ": 4, "g": 5, "n": 6, "b": 7, "l": 8, "u": 9, "re": 10}


def classifier(kind: type[Any] = keras_hub.models.BertTextClassifier, **compiled: object) -> Any:
    """Text into three classes: BERT with one layer, of 8 tokens, with its preprocessor. The same weights each time."""
    keras.utils.set_random_seed(3)
    backbone = keras_hub.models.BertBackbone(
        len(WORDS), num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=8, max_sequence_length=8
    )
    tokenizer = keras_hub.models.BertTokenizer(vocabulary=WORDS)
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=8)
    model = kind(backbone=backbone, num_classes=3, preprocessor=preprocessor)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(**({"optimizer": keras.optimizers.SGD(0.1), "loss": loss, "metrics": ["accuracy"]} | compiled))
    return model


def language_model() -> Any:
    """The next token of text: GPT-2 with one layer, whose preprocessor makes labels and weights of the text alone."""
    keras.utils.set_random_seed(3)
    backbone = keras_hub.models.GPT2Backbone(
        len(LETTERS), num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=8, max_sequence_length=8
    )
    tokenizer = keras_hub.models.GPT2Tokenizer(vocabulary=LETTERS, merges=["r e"])
    preprocessor = keras_hub.models.GPT2CausalLMPreprocessor(tokenizer, sequence_length=8)
    model = keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=preprocessor)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss, weighted_metrics=["accuracy"])
    return model


def image_classifier() -> Any:
    """Bytes of images of 12 by 10 pixels into three classes: they are resized to 8 by 8, which makes floats of them, and scaled."""
    keras.utils.set_random_seed(3)
    backbone = keras_hub.models.ViTBackbone((8, 8, 3), patch_size=4, num_layers=1, num_heads=2, hidden_dim=8, mlp_dim=8)
    converter = keras_hub.layers.ViTImageConverter(image_size=(8, 8), scale=1 / 255)
    preprocessor = keras_hub.models.ViTImageClassifierPreprocessor(converter)
    model = keras_hub.models.ViTImageClassifier(backbone=backbone, num_classes=3, preprocessor=preprocessor)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss)
    return model


def images() -> np.ndarray:
    """Bytes of 24 images for `image_classifier`."""
    return np.random.default_rng(0).integers(0, 256, (24, 12, 10, 3)).astype(np.uint8)
