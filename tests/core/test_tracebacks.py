"""What is left of an exception's text for a user to read."""

from __future__ import annotations

from elephas_like.core.tracebacks import cause, own_lines

KERAS = "/venv/lib/python3.11/site-packages/keras/src"
GRAPH = f"""Graph execution error:

Detected at node while/loss/SparseSoftmaxCrossEntropyWithLogits defined at (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main

  File "/home/me/train.py", line 5, in call

  File "{KERAS}/losses/losses.py", line 2359, in sparse_categorical_crossentropy

Received a label value of 14 which is outside the valid range of [0, 10).  Label values: 3 1 14 2
\t [[{{{{node while/loss/SparseSoftmaxCrossEntropyWithLogits}}}}]] [Op:__inference_multi_step_on_iterator_210]"""


def test_of_a_graphs_error_the_cause_is_left() -> None:
    expected = "Received a label value of 14 which is outside the valid range of [0, 10).  Label values: 3 1 14 2"
    assert cause(GRAPH) == expected


def test_of_an_operations_error_too() -> None:
    message = (
        "{{function_node __wrapped__Cast_device_/job:localhost}} Cast string to float is not supported [Op:Cast] name: "
    )
    assert cause(message) == "Cast string to float is not supported"


def test_of_a_layers_error_the_message_and_the_call() -> None:
    message = (
        "Exception encountered when calling Sequential.call().\n\n\x1b[1mexpected axis -1 to have value 8\x1b[0m\n\n"
        "Arguments received by Sequential.call():\n  • training=None"
    )
    assert cause(message) == "expected axis -1 to have value 8 (in Sequential.call())"


def test_a_key_errors_quotes_are_taken_off() -> None:
    message = "Exception encountered when calling Mine.call().\n\n\x1b[1mno such table: 'gamma'\x1b[0m\n\nArguments received by Mine"
    assert cause(str(KeyError(message))) == "no such table: 'gamma' (in Mine.call())"


def test_other_messages_stay_as_they_are() -> None:
    for message in ("no such weight: 'gamma'", "", "two\nlines", "x" * 5000):
        assert cause(message) == message


def test_lines_of_libraries_are_left_out() -> None:
    trace = f"""Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/elephas_like/daemon.py", line 29, in <module>
    manager()
  File "/venv/lib/python3.11/site-packages/elephas_like/trainer/worker.py", line 3, in __call__
    build(model)
  File "{KERAS}/layers/layer.py", line 7, in __call__
    call(x)
    ^^^^^^^
  File "/home/me/elephas_like/examples/demo.py", line 12, in call
    return table[x]
           ~~~~~^^^
  File "/venv/lib/python3.11/site-packages/mine/layers.py", line 4, in look_up
    raise KeyError(x)
  File "/usr/lib/python3.11/threading.py", line 1, in run
    target()
KeyError: 'x'
"""
    assert own_lines(trace).splitlines() == [
        '  File "/home/me/elephas_like/examples/demo.py", line 12, in call',
        "    return table[x]",
        '  File "/venv/lib/python3.11/site-packages/mine/layers.py", line 4, in look_up',
        "    raise KeyError(x)",
    ]


def test_a_line_is_shown_once_also_where_the_graph_has_it() -> None:
    trace = f'{GRAPH}\n  File "/home/me/train.py", line 5, in call\n    return look_up(x)\n'
    assert own_lines(trace) == '  File "/home/me/train.py", line 5, in call\n    return look_up(x)'
    assert own_lines(GRAPH) == '  File "/home/me/train.py", line 5, in call'
