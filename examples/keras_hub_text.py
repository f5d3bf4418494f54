"""Fine-tune a text classifier of KerasHub on a DataFrame of text: from which library is a sentence of documentation?"""
# pip install 'elephas-like[hub]'

import os
import sys

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import keras
import keras_hub
import numpy as np
import pandas as pd
import tensorflow as tf
from pyspark.sql import SparkSession, functions

from elephas_like import SparkModel

LIBRARIES = {"NumPy": np, "pandas": pd.Series, "Spark": functions}


def sentences(home: object) -> set[str]:
    """The first lines of what the documentation says of each part of a module or class."""
    told = (getattr(home, name).__doc__ for name in dir(home) if not name.startswith("_"))
    lines = (line.strip() for text in told if isinstance(text, str) for line in text.splitlines()[:12])
    return {line for line in lines if len(line) > 30}


rows = [(text, label) for label, home in enumerate(LIBRARIES.values()) for text in sorted(sentences(home))]
spark = SparkSession.builder.master("local[2]").appName("KerasHub").getOrCreate()
df = spark.createDataFrame(rows, ["features", "label"]).repartition(2)
train, test = df.randomSplit([0.8, 0.2], seed=1)

# A small BERT of its own; BertTextClassifier.from_preset("bert_tiny_en_uncased", num_classes=3) has learned English before.
words = keras_hub.tokenizers.compute_word_piece_vocabulary(
    tf.data.Dataset.from_tensor_slices([text for text, _ in rows]), 2000, lowercase=True
)
tokenizer = keras_hub.models.BertTokenizer(vocabulary=words, lowercase=True)
keras.utils.set_random_seed(1)
model = keras_hub.models.BertTextClassifier(
    keras_hub.models.BertBackbone(len(words), 1, 2, hidden_dim=64, intermediate_dim=128, max_sequence_length=32),
    num_classes=len(LIBRARIES),
    preprocessor=keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=32),
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(0.002), loss, metrics=["accuracy"])

spark_model = SparkModel(model, num_workers=2, seed=1)
epochs = int(os.environ.get("EPOCHS", "6"))
spark_model.fit(train, epochs=epochs, batch_size=16, verbose=2)  # workers tokenize their text
print("test accuracy:", round(spark_model.evaluate(test)[1], 3))
print(spark_model.predict(test.limit(2)).argmax(axis=1), [row.features for row in test.limit(2).collect()])
spark.stop()
