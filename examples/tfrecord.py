"""Read TFRecord files into a DataFrame, train on it, and write the predictions as TFRecord files."""
# pip install 'elephas-like[demo]'

import os
import sys
import tempfile

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import keras
import tensorflow as tf
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits

from elephas_like import SparkModel, read_tfrecords, write_tfrecords

folder = tempfile.mkdtemp()
x, y = load_digits(return_X_y=True)
os.makedirs(f"{folder}/digits")
for part in range(2):  # files as any TensorFlow program writes them
    with tf.io.TFRecordWriter(f"{folder}/digits/part-{part}.tfrecord.gz", "GZIP") as writer:
        for pixels, label in zip(x[part::2], y[part::2], strict=True):
            features = {
                "pixels": tf.train.Feature(float_list=tf.train.FloatList(value=pixels / 16)),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())

spark = SparkSession.builder.master("local[2]").appName("tfrecord").getOrCreate()
digits = read_tfrecords(spark, f"{folder}/digits")  # types come from the first record, or from schema=
digits.printSchema()

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(10, "softmax")])
model.compile(keras.optimizers.Adam(0.005), "sparse_categorical_crossentropy", metrics=["accuracy"])
spark_model = SparkModel(model, num_workers=2, batch_size=16, seed=1)
spark_model.fit(digits, features_col="pixels", epochs=int(os.environ.get("EPOCHS", "8")), verbose=2)
print(f"training accuracy: {spark_model.evaluate(digits, features_col='pixels', return_dict=True)['accuracy']:.2f}")

predicted = spark_model.predict(digits, features_col="pixels", collect=False)  # adds a column with the model's output
print("rows written:", write_tfrecords(predicted.select("label", "prediction"), f"{folder}/predictions"))
spark.stop()
