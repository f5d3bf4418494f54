"""Train a model with two inputs (a text and its length) and two outputs (a topic and a score)."""
# pip install 'elephas-like[demo]'

import os
import sys

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import keras
import numpy as np
from pyspark.sql import SparkSession

from elephas_like import SparkModel

TOPICS = {"spark": 0, "keras": 1}
texts = [f"{word} {'good ' * (n % 3)}{'bad ' * (n % 2)}".strip() for n in range(200) for word in TOPICS]
rows = [
    (
        {"text": text, "length": np.array([len(text) / 30], np.float32)},
        {"topic": TOPICS[text.split()[0]], "score": float(text.count("good") - text.count("bad"))},
    )
    for text in texts
]

keras.utils.set_random_seed(1)
vectorize = keras.layers.TextVectorization(max_tokens=20, output_sequence_length=4)
vectorize.adapt(texts)
text = keras.Input((), dtype="string", name="text")
length = keras.Input((1,), name="length")
words = keras.layers.Embedding(20, 8)(vectorize(text))
hidden = keras.layers.Concatenate()([keras.layers.Flatten()(words), length])
hidden = keras.layers.Dense(16, activation="relu")(hidden)
outputs = {
    "topic": keras.layers.Dense(2, activation="softmax", name="topic")(hidden),
    "score": keras.layers.Dense(1, name="score")(hidden),
}
model = keras.Model({"text": text, "length": length}, outputs)
model.compile(
    keras.optimizers.Adam(0.01),
    loss={"topic": "sparse_categorical_crossentropy", "score": "mse"},
    metrics={"topic": ["accuracy"], "score": ["mae"]},
)

spark = SparkSession.builder.master("local[2]").appName("two inputs, two outputs").getOrCreate()
rdd = spark.sparkContext.parallelize(rows, 2)
history = SparkModel(model, num_workers=2).fit(rdd, epochs=int(os.environ.get("EPOCHS", "8")), batch_size=16, verbose=2)
print({name: round(values[-1], 3) for name, values in history.history.items()})

predictions = SparkModel(model).predict(rdd.map(lambda row: row[0]))
print("topics:", predictions["topic"][:4].argmax(axis=1), "scores:", predictions["score"][:4, 0].round(1))
spark.stop()
