"""Hyperas' templates: `{{uniform(0, 1)}}` in the source of a function, made into parameters of a space.

`{{...}}` is Python: a set of a set. The source is parsed, each template becomes a look-up in the trial's parameters, and
what stands in it is read as a value; nothing in a template is evaluated, but for the options of a choice that are no
plain values (`choice([Dropout(0.5), Activation("linear")])`): these stay where they are, in the function's own code.
"""

from __future__ import annotations

import ast
import inspect
import math
import operator
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from elephas_like.core.checks import did_you_mean
from elephas_like.core.errors import ElephasError
from elephas_like.core.source_lines import source_lines
from elephas_like.tuning.space import KINDS, node

_GIVEN = "__elephas_like_params__"
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_FUNCTIONS = {"log": math.log, "log2": math.log2, "log10": math.log10, "exp": math.exp, "sqrt": math.sqrt}


def has_templates(function: Callable[..., Any]) -> bool:
    """Whether a function's source, where there is one, holds `{{...}}` templates."""
    try:
        return any(_template(found) is not None for found in ast.walk(_tree(function)))
    except (OSError, TypeError):
        return False


def from_templates(function: Callable[..., Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """(the function with the parameters as a first argument more, the space of its templates).

    Parameters are named as hyperas names them: after the keyword, function or variable that the template is given to
    (`Dropout({{uniform(0, 1)}})` is Dropout), numbered where a name comes again (Dropout_1).

    Raises:
        ValueError: there is no template, one is of an unknown kind, or its arguments are not plain values.
    """
    try:
        tree = _tree(function)
    except (OSError, TypeError) as cause:
        raise ValueError(
            f"the source of {getattr(function, '__name__', function)!r} was not found: templates need a function that was "
            "defined with def, in a file or a notebook's cell."
        ) from cause
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise ValueError("templates need a function that was defined with def.")
    names = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    reader = _Reader(names)
    rewritten = reader.visit(definition)
    if not reader.space:
        raise ValueError(f"{definition.name} has no templates such as {{{{uniform(0, 1)}}}}; give space= instead.")
    rewritten.decorator_list = []
    (rewritten.args.posonlyargs or rewritten.args.args).insert(0, ast.arg(_GIVEN))
    tree.body = [rewritten]
    code = compile(ast.fix_missing_locations(tree), inspect.getsourcefile(function) or "<templates>", "exec")
    exec(code, names)  # the user's own function, defined once more with look-ups in place of templates
    made: Callable[..., Any] = names[definition.name]
    return made, reader.space


def _tree(function: Callable[..., Any]) -> ast.Module:
    """Return a function's code, with the line numbers of its file.

    Raises:
        ElephasError: the file was edited after the function was imported.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    lines, own = ([], True) if code is None else source_lines(code)
    if code is not None and not own:
        raise ElephasError(
            f"{code.co_filename} was edited after it was imported, and templates are read from the file: {function.__name__} would be "
            "another function. Import it again, or start Python anew."
        )
    if code is not None and lines:
        first = code.co_firstlineno
        lines = inspect.getblock(lines[first - 1 :])
    else:
        lines, first = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    return ast.increment_lineno(tree, first - 1)


def _template(found: ast.AST) -> ast.Call | None:
    """The call in `{{call}}`."""
    if isinstance(found, ast.Set) and len(found.elts) == 1:
        inner = found.elts[0]
        if isinstance(inner, ast.Set) and len(inner.elts) == 1 and isinstance(inner.elts[0], ast.Call):
            return inner.elts[0]
    return None


class _Reader(ast.NodeTransformer):
    """Replaces templates, in the order in which they stand, and collects the space."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self.space: dict[str, Any] = {}
        self._names = names
        self._called: str | None = None
        self._last: str | None = None
        self._seen: dict[str, int] = {}

    def visit(self, found: ast.AST) -> Any:
        """A node without its templates."""
        template = _template(found)
        if template is not None:
            return ast.copy_location(self._replaced(template), found)
        name = _name_given_to(found)
        if name is None:
            return super().visit(found)
        before, self._called = self._called, name
        try:
            return super().visit(found)
        finally:
            self._called = before

    def visit_Call(self, found: ast.Call) -> Any:
        """A call gives its name to a template that is its first argument; keywords have names of their own."""
        found.func = self.visit(found.func)
        before = self._called
        for place, argument in enumerate(found.args):
            self._called = _callee(found.func) if place == 0 and _template(argument) else None
            found.args[place] = self.visit(argument)
        self._called = before
        found.keywords = [self.visit(keyword) for keyword in found.keywords]
        return found

    def _replaced(self, call: ast.Call) -> ast.expr:
        kind = _callee(call.func) or ast.unparse(call.func)
        if kind not in KINDS:
            raise ValueError(
                f"line {call.lineno}: {{{{{ast.unparse(call)}}}}} is of an unknown kind.{did_you_mean(kind, KINDS)} "
                f"Kinds: {', '.join(KINDS)}."
            )
        label = self._label(kind)
        given = ast.Subscript(ast.Name(_GIVEN, ast.Load()), ast.Constant(label), ast.Load())
        options = call.args[0] if call.args else None
        if kind == "choice" and isinstance(options, ast.List | ast.Tuple) and not self._all_plain(options):
            self.space[label] = node(label, "choice", (list(range(len(options.elts))),))
            arguments = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
            lazily: list[ast.expr] = [ast.Lambda(arguments, option) for option in options.elts]
            chosen = ast.Subscript(ast.Tuple(lazily, ast.Load()), given, ast.Load())
            return ast.Call(chosen, [], [])
        values = [self._value(argument) for argument in call.args]
        named = {keyword.arg: self._value(keyword.value) for keyword in call.keywords if keyword.arg}
        self.space[label] = node(label, kind, values, named)
        return given

    def _label(self, kind: str) -> str:
        name = self._called or self._last or kind
        self._last = name
        count = self._seen[name] = self._seen.get(name, -1) + 1
        return f"{name}_{count}" if count else name

    def _all_plain(self, options: ast.List | ast.Tuple) -> bool:
        try:
            for option in options.elts:
                self._value(option)
        except ValueError:
            return False
        return True

    def _value(self, found: ast.expr) -> Any:
        """A plain value: a literal, a name of one, or arithmetic on them with log, exp and sqrt."""
        try:
            return ast.literal_eval(found)
        except ValueError:
            pass
        if isinstance(found, ast.Name) and isinstance(self._names.get(found.id), int | float | str | list | tuple):
            return self._names[found.id]
        if isinstance(found, ast.List | ast.Tuple):
            return [self._value(item) for item in found.elts]
        if isinstance(found, ast.BinOp) and type(found.op) in _OPERATORS:
            return _OPERATORS[type(found.op)](self._value(found.left), self._value(found.right))
        if isinstance(found, ast.UnaryOp) and type(found.op) in _OPERATORS:
            return _OPERATORS[type(found.op)](self._value(found.operand))
        if isinstance(found, ast.Call) and _callee(found.func) in _FUNCTIONS and not found.keywords:
            return _FUNCTIONS[str(_callee(found.func))](*map(self._value, found.args))
        raise ValueError(
            f"line {found.lineno}: a template takes plain values, names of plain values, and arithmetic with log, exp and "
            f"sqrt; got {ast.unparse(found)!r}."
        )


def _name_given_to(found: ast.AST) -> str | None:
    if isinstance(found, ast.keyword):
        return found.arg
    if isinstance(found, ast.Assign) and len(found.targets) == 1 and _template(found.value):
        return ast.unparse(found.targets[0]) if isinstance(found.targets[0], ast.Name) else None
    return None


def _callee(function: ast.expr) -> str | None:
    if isinstance(function, ast.Name):
        return function.id
    return function.attr if isinstance(function, ast.Attribute) else None
