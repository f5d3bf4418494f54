"""dist-keras' import path `utils`: what to use in place of its names."""

from __future__ import annotations

from elephas_like.core.replaced import instead_of

__getattr__ = instead_of(
    {
        "serialize_keras_model": "elephas_like.utils.serialization.model_to_dict",
        "deserialize_keras_model": "elephas_like.utils.serialization.dict_to_model",
        "shuffle": "trainer.train(df, shuffle=True)",
        "precache": "nothing: rows are written to the executors' disks once",
        "uniform_weights": "keras.initializers",
        "to_dense_vector": "pyspark.ml.functions.array_to_vector",
        "new_dataframe_row": "df.withColumn",
    }
)
