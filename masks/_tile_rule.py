"""TileRule: how a kernel computes the mask inside a tile, from positions and a few integers per token.

A rule is a hashable test plus int32 arrays that hold a few numbers per query and per key. The test runs
on NumPy and JAX arrays and inside Pallas kernels alike; its operands only have to broadcast, so a kernel
may keep queries along lanes or along sublanes.
"""

import dataclasses
import functools
import typing
import warnings

import jax
import jax.numpy as jnp
import numpy as np

from masks._spans import Spans


class TileTest(typing.Protocol):
  """A hashable test of (query, key) pairs.

  Attributes:
    num_q: Numbers it needs per query.
    num_kv: Numbers it needs per key.
  """

  @property
  def num_q(self) -> int: ...

  @property
  def num_kv(self) -> int: ...

  def __call__(self, q_idx, kv_idx, q_tokens, kv_tokens) -> typing.Any:
    """True where allowed.

    Args:
      q_idx: Positions of the queries, int32.
      kv_idx: Positions of the keys, int32; broadcasts with q_idx.
      q_tokens: `num_q` int32 arrays shaped like q_idx.
      kv_tokens: `num_kv` int32 arrays shaped like kv_idx.
    """


@dataclasses.dataclass(frozen=True)
class TileRule:
  """A test and its numbers.

  Attributes:
    test: What decides.
    q_tokens: [batch, heads, num_q, q_len] int32; batch and heads are 1 where shared. NumPy, or traced.
    kv_tokens: [batch, heads, num_kv, kv_len] int32.
  """

  test: typing.Any  # a TileTest
  q_tokens: typing.Any
  kv_tokens: typing.Any


@dataclasses.dataclass(frozen=True)
class SpanTest:
  """Whether a key lies in one of the query's intervals; an unused bound takes no number."""

  bounds: tuple[tuple[bool, bool], ...]  # (has lower, has upper) per interval
  num_kv = 0

  @property
  def num_q(self) -> int:
    return sum(lower + upper for lower, upper in self.bounds)

  def __call__(self, q_idx, kv_idx, q_tokens, kv_tokens):
    del q_idx, kv_tokens
    numbers = iter(q_tokens)
    inside = []
    for has_lower, has_upper in self.bounds:
      lower = next(numbers) if has_lower else None
      upper = next(numbers) if has_upper else None
      if lower is not None and upper is not None:
        # One comparison for both: below the lower bound, the unsigned difference is huge.
        inside.append(_unsigned(kv_idx - lower) < _unsigned(_maximum(upper - lower, 0)))
      elif lower is not None:
        inside.append(kv_idx >= lower)
      else:
        inside.append(kv_idx >= 0 if upper is None else kv_idx < upper)
    return functools.reduce(lambda a, b: a | b, inside)


def _unsigned(x):
  return x.astype(np.uint32) if isinstance(x, np.ndarray) else jax.lax.bitcast_convert_type(x, np.uint32)


def _maximum(x, least: int):
  return np.maximum(x, least) if isinstance(x, np.ndarray) else jax.numpy.maximum(x, least)


@dataclasses.dataclass(frozen=True)
class SameIdTest:
  """Whether query and key carry the same id, negative ids standing for padding."""

  num_q = 1
  num_kv = 1

  def __call__(self, q_idx, kv_idx, q_tokens, kv_tokens):
    del q_idx, kv_idx
    return (q_tokens[0] == kv_tokens[0]) & (q_tokens[0] >= 0)


@dataclasses.dataclass(frozen=True)
class FunctionTest:
  """A user's function of the two positions."""

  fn: typing.Callable
  num_q = 0
  num_kv = 0

  def __call__(self, q_idx, kv_idx, q_tokens, kv_tokens):
    del q_tokens, kv_tokens
    return self.fn(q_idx, kv_idx)


@dataclasses.dataclass(frozen=True)
class NegatedTest:
  """The opposite of a test."""

  test: TileTest
  num_q = property(lambda self: self.test.num_q)
  num_kv = property(lambda self: self.test.num_kv)

  def __call__(self, q_idx, kv_idx, q_tokens, kv_tokens):
    return ~self.test(q_idx, kv_idx, q_tokens, kv_tokens)


@dataclasses.dataclass(frozen=True)
class CombinedTest:
  """All tests (`&`) or any of them (`|`), each with its own numbers."""

  symbol: str
  tests: tuple[TileTest, ...]
  num_q = property(lambda self: sum(t.num_q for t in self.tests))
  num_kv = property(lambda self: sum(t.num_kv for t in self.tests))

  def __call__(self, q_idx, kv_idx, q_tokens, kv_tokens):
    results = []
    for test in self.tests:
      results.append(test(q_idx, kv_idx, q_tokens[: test.num_q], kv_tokens[: test.num_kv]))
      q_tokens, kv_tokens = q_tokens[test.num_q :], kv_tokens[test.num_kv :]
    fold = (lambda a, b: a & b) if self.symbol == "&" else (lambda a, b: a | b)
    return functools.reduce(fold, results)


def without_tokens(test: TileTest, q_len: int, kv_len: int) -> TileRule:
  """The rule of a test that needs positions only."""
  return TileRule(test, np.zeros((1, 1, 0, q_len), np.int32), np.zeros((1, 1, 0, kv_len), np.int32))


def from_spans(spans: Spans) -> TileRule:
  """The rule of intervals. Bounds that no query needs are left out."""
  bounds, numbers = [], []
  for n in range(spans.count):
    lo, hi = spans.lo[:, :, n], spans.hi[:, :, n]
    used = (bool((lo > 0).any()), bool((hi < spans.kv_len).any()))
    bounds.append(used)
    numbers += [x for x, keep in zip((lo, hi), used, strict=True) if keep]
  lead, q_len = spans.lo.shape[:2], spans.lo.shape[-1]
  q_tokens = np.stack(numbers, axis=2) if numbers else np.zeros((*lead, 0, q_len), np.int32)
  return TileRule(SpanTest(tuple(bounds)), q_tokens, np.zeros((*lead, 0, spans.kv_len), np.int32))


def below(limits, q_len: int, kv_len: int) -> TileRule:
  """The rule `key < limits[b]` of traced limits [batch]."""
  q_tokens = jnp.broadcast_to(limits[:, None, None, None], (limits.shape[0], 1, 1, q_len))
  test = SpanTest(((False, True),))
  return TileRule(test, q_tokens, np.zeros((1, 1, 0, kv_len), np.int32))


def negate(rule: TileRule) -> TileRule:
  """The rule of the complement."""
  return dataclasses.replace(rule, test=NegatedTest(rule.test))


def combine(symbol: str, rules: list[TileRule]) -> TileRule:
  """The rule of several rules under `&` or `|`."""
  if len(rules) == 1:
    return rules[0]
  return TileRule(
    CombinedTest(symbol, tuple(r.test for r in rules)),
    stack([r.q_tokens for r in rules]),
    stack([r.kv_tokens for r in rules]),
  )


def stack(tokens: list):
  """Arrays [batch, heads, numbers, length] with their numbers one after the other."""
  xp = np if all(isinstance(t, np.ndarray) for t in tokens) else jnp
  lead = np.broadcast_shapes(*(t.shape[:2] for t in tokens))
  return xp.concatenate([xp.broadcast_to(t, (*lead, *t.shape[2:])) for t in tokens], axis=2)


def dense(rule: TileRule, q_len: int, kv_len: int) -> jax.Array:
  """The whole mask, bool [batch, heads, q_len, kv_len]."""
  q_idx, kv_idx = jnp.arange(q_len)[:, None], jnp.arange(kv_len)[None, :]
  q_tokens = [rule.q_tokens[:, :, n, :, None] for n in range(rule.test.num_q)]
  kv_tokens = [rule.kv_tokens[:, :, n, None, :] for n in range(rule.test.num_kv)]
  allowed = rule.test(q_idx, kv_idx, q_tokens, kv_tokens)
  lead = np.broadcast_shapes(rule.q_tokens.shape[:2], rule.kv_tokens.shape[:2])
  return jnp.broadcast_to(allowed, (*lead, q_len, kv_len))


# What a function of positions may use so that it runs inside a TPU kernel: integer and boolean
# element-wise operations. Anything else (gathers, captured arrays, reductions) is stored instead.
KERNEL_PRIMITIVES = frozenset(
  "abs add and broadcast_in_dim clamp convert_element_type div eq ge gt le lt max min mul ne neg not "
  "or rem select_n shift_left shift_right_arithmetic shift_right_logical sign sub xor".split()
)
# The TPU compiler has these for int32 but not for bool.
_INTEGER_PRIMITIVES = frozenset({"max", "min", "select_n"})


def runs_in_kernel(fn: typing.Callable) -> bool:
  """Whether a function of (q_idx, kv_idx) can be evaluated inside a TPU kernel."""
  q_idx, kv_idx = (jax.ShapeDtypeStruct(s, jnp.int32) for s in ((1, 128), (8, 1)))
  try:
    with warnings.catch_warnings():
      warnings.simplefilter("error")  # JAX warns when it takes int64 for int32, which NumPy does not do
      closed = jax.make_jaxpr(fn)(q_idx, kv_idx)
  except Exception:  # whatever JAX makes of a function that NumPy can run, such as an integer beyond int32
    return False
  if closed.consts or len(closed.out_avals) != 1:
    return False
  return primitives(closed.jaxpr) <= KERNEL_PRIMITIVES


def primitives(jaxpr) -> frozenset[str]:
  """Names of the operations of a jaxpr, also of the functions that it calls.

  An operation whose result is of a type that no kernel has stands for itself with this type.
  """
  names = set()
  for eqn in jaxpr.eqns:
    name = eqn.primitive.name
    if name == "jit":
      names |= primitives(eqn.params["jaxpr"].jaxpr)
      continue
    in_kernels = {"int32"} if name in _INTEGER_PRIMITIVES else {"int32", "bool"}
    dtypes = {np.dtype(v.aval.dtype).name for v in eqn.outvars} - in_kernels
    names |= {f"{name} {dtype}" for dtype in dtypes} or {name}
  return frozenset(names)
