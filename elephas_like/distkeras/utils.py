"""dist-keras' import path `utils`: what to use in place of its names."""

from __future__ import annotations

from elephas_like.core.replaced import instead_of

_ENCODED = (
    "a loss of the name sparse_categorical_crossentropy, which takes class numbers, or pyspark.ml.feature.OneHotEncoder"
)
_INSTEAD = {
    "serialize_keras_model": "elephas_like.utils.serialization.model_to_dict",
    "deserialize_keras_model": "elephas_like.utils.serialization.dict_to_model",
    "shuffle": "trainer.train(df, shuffle=True)",
    "precache": "nothing: rows are written to the executors' disks once",
    "uniform_weights": "keras.initializers",
    "to_dense_vector": _ENCODED,
    "to_one_hot_encoded_dense": _ENCODED,
    "new_dataframe_row": "df.withColumn",
}
__all__ = [*_INSTEAD]
__getattr__ = instead_of(_INSTEAD)
