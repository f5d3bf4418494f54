"""Elephas' import path `utils`, with the names of five of its modules: weights, RDDs, lock, serialization and sockets.

Each module here only imports the names of Elephas' module of that name; the code is in `compat`, `core` and `trainer`.
"""

from elephas_like.utils.functional_utils import (
    add_params,
    average_and_subtract,
    divide_by,
    get_neutral,
    subtract_params,
)
from elephas_like.utils.rdd_utils import (
    encode_label,
    from_labeled_point,
    lp_to_simple_rdd,
    to_labeled_point,
    to_simple_rdd,
)
from elephas_like.utils.rwlock import RWLock
from elephas_like.utils.serialization import bytes_to_weights, dict_to_model, model_to_dict, weights_to_bytes
from elephas_like.utils.sockets import (
    determine_master,
    receive,
    recv_bytes,
    send,
    send_bytes,
    wait_until_listening,
)

__all__ = [
    "RWLock",
    "add_params",
    "average_and_subtract",
    "bytes_to_weights",
    "determine_master",
    "dict_to_model",
    "divide_by",
    "encode_label",
    "from_labeled_point",
    "get_neutral",
    "lp_to_simple_rdd",
    "model_to_dict",
    "receive",
    "recv_bytes",
    "send",
    "send_bytes",
    "subtract_params",
    "to_labeled_point",
    "to_simple_rdd",
    "wait_until_listening",
    "weights_to_bytes",
]
