"""Masks written as text on a command line: `causal() & sliding_window(1024) | prefix(4)`.

The text is parsed, never evaluated as Python: only calls of the `masks` package's builders with
literal arguments, combined with `&`, `|` and `~`.
"""

import ast
import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any

import masks

_BINARY = {ast.BitAnd: operator.and_, ast.BitOr: operator.or_}
_MAX_OPERATORS = 100  # each is a level of recursion, here and in the mask
_REMEDY = 'Write for example "causal() & document()" or "causal() & (prefix(4) | sliding_window(1024))".'


def builders() -> dict[str, Callable[..., masks.Mask]]:
  """The public functions of `masks` that return a mask."""
  public = {name: getattr(masks, name) for name in masks.__all__}
  return {
    name: function
    for name, function in sorted(public.items())
    if inspect.isfunction(function) and function.__annotations__.get("return") in ("Mask", masks.Mask)
  }


def parse(text: str, context: Mapping[str, Any] | None = None) -> masks.Mask:
  """Builds the mask that `text` describes.

  Args:
    text: A mask expression.
    context: What a builder gets that is called without arguments, by its name, such as the segment
      ids of a batch for `document()`.

  Returns:
    The mask.

  Raises:
    ValueError: The text is not a mask expression, or a builder refuses its arguments.

  >>> parse("causal() & (prefix(4) | ~sliding_window(window=16))")
  causal() & (prefix(4) | ~sliding_window(16))
  """
  context = context or {}

  def build(call: ast.expr) -> masks.Mask:
    name, args, kwargs = _call(call, text)
    if not args and not kwargs and name in context:
      args = [context[name]]
    try:
      return builders()[name](*args, **kwargs)
    except TypeError as error:  # a wrong number of arguments, or one of a wrong type
      raise ValueError(
        f"`{name}` must get the arguments it takes, got {ast.unparse(call)}: {error} See help(masks.{name})."
      ) from error

  return _fold(_parse(text), build)


def check(text: str) -> None:
  """Raises the ValueError that `parse` would, as far as that shows without calling a builder."""

  def check_call(call: ast.expr) -> masks.Mask:
    _call(call, text)
    return masks.full()

  _fold(_parse(text), check_call)


def _parse(text: str) -> ast.expr:
  try:
    body = ast.parse(text.strip(), mode="eval").body
  except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
    raise ValueError(
      f"A mask expression must be a Python expression, got {_short(text)}: {error}. {_REMEDY}"
    ) from None
  num_operators = sum(isinstance(node, ast.BinOp | ast.UnaryOp) for node in ast.walk(body))
  if num_operators > _MAX_OPERATORS:
    raise ValueError(
      f"A mask expression must have at most {_MAX_OPERATORS} operators, got {num_operators} in "
      f"{_short(text)}. Build the mask in Python with `masks` instead."
    )
  return body


def _fold(node: ast.expr, leaf: Callable[[ast.expr], masks.Mask]) -> masks.Mask:
  match node:
    case ast.BinOp(left, op, right) if type(op) in _BINARY:
      return _BINARY[type(op)](_fold(left, leaf), _fold(right, leaf))
    case ast.UnaryOp(ast.Invert(), operand):
      return ~_fold(operand, leaf)
    case _:
      return leaf(node)


def _call(node: ast.expr, text: str) -> tuple[str, list[Any], dict[str, Any]]:
  """Builder name and literal arguments of a call."""
  if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
    raise ValueError(
      "A mask expression must combine calls of mask builders with &, | and ~, got "
      f"{ast.unparse(node)!r} in {_short(text)}. {_REMEDY}"
    )
  name = node.func.id
  if name not in builders():
    raise ValueError(
      f"A mask expression must name builders of `masks`, got {name!r} in {_short(text)}. "
      f"Use one of: {', '.join(builders())}."
    )
  try:
    if any(keyword.arg is None for keyword in node.keywords):
      raise ValueError("** is not a literal")
    args = [ast.literal_eval(arg) for arg in node.args]
    return name, args, {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
  except (ValueError, TypeError, RecursionError, MemoryError):
    raise ValueError(
      f"Arguments of a mask builder must be literals, got {ast.unparse(node)!r} in {_short(text)}. "
      "Write numbers, None, or lists of numbers."
    ) from None


def _short(text: str) -> str:
  return repr(text if len(text) <= 200 else text[:197] + "...")
