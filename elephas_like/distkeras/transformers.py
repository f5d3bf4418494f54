"""dist-keras' import path `transformers`: what to use in place of its names."""

from __future__ import annotations

from elephas_like.core.replaced import instead_of

_INSTEAD = {
    "OneHotTransformer": "a loss of the name sparse_categorical_crossentropy, which takes class numbers, or pyspark.ml.feature.OneHotEncoder",
    "LabelIndexTransformer": "the prediction column of an ElephasEstimator's transformer, which is the class, or register_keras_udf",
    "MinMaxTransformer": "pyspark.ml.feature.MinMaxScaler",
    "StandardTransformer": "pyspark.ml.feature.StandardScaler",
    "BinaryLabelTransformer": "df.withColumn(name, (df[column] == value).cast('int'))",
    "DenseTransformer": "nothing: columns of sparse vectors are read as they are",
    "ReshapeTransformer": "nothing: columns are reshaped to the model's input, or by column_shapes=",
}
__all__ = [*_INSTEAD]
__getattr__ = instead_of(_INSTEAD)
