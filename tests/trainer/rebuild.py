"""Run as a script in a fresh process: rebuilds models from their specs and says what they do.

Usage: rebuild.py SPECS RESULTS. Nothing of the tests can be imported here, which is the point.
"""

import pickle
import sys


def main(specs_path: str, results_path: str) -> None:
    import keras
    import numpy as np

    from elephas_like.trainer.building import build
    from elephas_like.trainer.state import Variables

    with open(specs_path, "rb") as file:
        cases = pickle.load(file)  # noqa: S301  our own file
    results = {}
    for name, (spec, batch, state) in cases.items():
        keras.config.set_dtype_policy("float32")
        try:
            model = spec.build()
            build(model, tuple(keras.tree.map_structure(lambda array: array[:1], part) for part in batch))
            Variables(model).write(state)  # Keras does not save what dropout has drawn
            predicted = keras.tree.map_structure(np.asarray, model.predict_on_batch(batch[0]))
            weight = batch[2] if len(batch) > 2 else None
            model.fit(*batch[:2], sample_weight=weight, epochs=2, shuffle=False, verbose=0)
            results[name] = {
                "predicted": predicted,
                "state": Variables(model).read().parts(),
                "logs": {key: np.asarray(value) for key, value in model.get_metrics_result().items()},
                "flags": (bool(model.run_eagerly), model.jit_compile, type(model.optimizer).__name__),
                "importable": [m for m in sys.modules if m.startswith(("trainer", "tests"))],
            }
        except Exception as error:
            results[name] = {"error": f"{type(error).__name__}: {error}"}
    with open(results_path, "wb") as file:
        pickle.dump(results, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
