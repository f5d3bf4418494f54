"""Save a model with its configuration to any Hadoop filesystem, load it, and export it for TensorFlow Serving."""
# pip install 'elephas-like[demo]'

import os
import sys
import tempfile

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import keras
import numpy as np
import tensorflow as tf
from pyspark.sql import SparkSession
from sklearn.datasets import load_diabetes

from elephas_like import SparkModel, load_spark_model

x, y = load_diabetes(return_X_y=True)
spark = SparkSession.builder.master("local[2]").appName("hadoop files").getOrCreate()
folder = os.environ.get("MODELS", f"file://{tempfile.mkdtemp()}")  # hdfs://..., s3a://..., abfss://... work too

keras.utils.set_random_seed(1)
normalize = keras.layers.Normalization()
normalize.adapt(x)
model = keras.Sequential([keras.Input((10,)), normalize, keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), "mse")
spark_model = SparkModel(model, num_workers=2, batch_size=16, seed=1)
spark_model.fit(x, (y - y.mean()) / y.std(), epochs=int(os.environ.get("EPOCHS", "10")), verbose=2)

spark_model.save(f"{folder}/diabetes.keras")  # an ordinary Keras file; it appears complete or not at all
loaded = load_spark_model(f"{folder}/diabetes.keras")
print("configuration kept:", loaded.get_config() == spark_model.get_config())
try:
    spark_model.save(f"{folder}/diabetes.keras")
except FileExistsError as error:
    print("the existing file is kept:", error)
spark_model.save(f"{folder}/diabetes.keras", overwrite=True)

spark_model.export(f"{folder}/serving/1")
served = tf.saved_model.load(f"{folder}/serving/1".removeprefix("file://"))
same = np.allclose(served.serve(x.astype("float32")), loaded.predict(x), atol=1e-5)
print("served as predicted:", bool(same))
spark.stop()
