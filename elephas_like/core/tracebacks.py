"""What a user reads of an exception on a worker: its cause, and the lines of the user's own code that it went through."""

from __future__ import annotations

import ast
import re
from contextlib import suppress

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_FRAME = re.compile(r'^\s*File "(?P<path>[^"]*)", line \d+, in .*$')
_LIBRARIES = re.compile(
    r"(?:site|dist)-packages[/\\](?:keras|tensorflow|pyspark|py4j|numpy|cloudpickle)[/\\]|pyspark\.zip|[/\\]python/pyspark[/\\]|^<frozen"
    r"|[/\\]lib[/\\]python\d[\d.]*[/\\](?!(?:site|dist)-packages)"
    r"|elephas_like[/\\](?:daemon\.py|(?:compat|core|distkeras|engine|ensembles|exchange|ml|mllib|model|rows|spark|stages|trainer|tuning|utils)[/\\])"
)
"""Files whose lines say nothing of the user's mistake."""
_NODE_TRACE = re.compile(r"\n?\s*\[\[\{\{node.*", re.S)
_FUNCTION_NODE = re.compile(r"\{\{function_node [^}]*\}\}\s*")
_OP = re.compile(r"\s*\[Op:\w+\](?: name:[^\n]*)?\s*$")
_KERAS_CALL = re.compile(
    r"Exception encountered when calling (?P<call>[^\n]*?)\.?\n\n(?P<cause>.*?)\n\nArguments received by", re.S
)
_LETTERS = 2000
"""Of a message of TensorFlow's, which may list a whole batch."""


def cause(message: str) -> str:
    """Return an exception's message without TensorFlow's trace of the graph, and Keras' list of arguments."""
    if message[:1] in ("'", '"') and "Exception encountered when calling" in message:
        with suppress(ValueError, SyntaxError):
            message = str(ast.literal_eval(message))  # a KeyError's text is quoted
    text = _COLOURS.sub("", message)
    if "Graph execution error" in text or "Detected at node" in text:
        text = _after_the_trace(text)
    text = _OP.sub("", _FUNCTION_NODE.sub("", text))
    called = _KERAS_CALL.search(text)
    if called is not None:
        text = f"{called['cause'].strip()} (in {called['call']})"
    return text if len(text) <= _LETTERS or text == message else f"{text[:_LETTERS]}..."


def own_lines(text: str) -> str:
    """Return the entries of tracebacks that are of files of the user's own, each once; "" if there are none."""
    found: list[str] = []
    entry: list[str] = []
    for line in [*text.splitlines(), ""]:
        frame = _FRAME.match(line)
        if entry and (frame is not None or not line.startswith("    ")):
            shown = "\n".join(entry)
            if shown not in found:
                found.append(shown)
            entry = []
        if frame is not None:
            entry = [] if _LIBRARIES.search(frame["path"]) else [f"  {line.strip()}"]
        elif entry and line.strip() and not set(line.strip()) <= set("^~"):
            entry.append(line)
    # The same line is in the trace of the graph without its text.
    return "\n".join(
        each for each in found if "\n" in each or not any(other.startswith(f"{each}\n") for other in found)
    )


def _after_the_trace(text: str) -> str:
    lines = _NODE_TRACE.sub("", text).splitlines()
    frames = [number for number, line in enumerate(lines) if _FRAME.match(line) or "<stack traces unavailable>" in line]
    rest = "\n".join(lines[frames[-1] + 1 :] if frames else lines).strip()
    return rest or text
