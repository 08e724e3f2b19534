"""What the attention kernels share: operands and how they are fetched, masks, scores.

Scores are held transposed, [keys, queries]: the softmax then reduces along sublanes, row statistics are
single rows of lanes, and P and dS are the stationary operands of the matmuls that follow.
"""

from __future__ import annotations

import dataclasses
import math
import typing

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from blockattn._block_sizes import KernelTiling
from blockattn._kernels.packed_steps import StepFields, StepLayout
from blockattn._options import AttentionOptions

LOG2_E = math.log2(math.e)


@dataclasses.dataclass(frozen=True)
class KernelConfig:
  """What is static in a launch.

  Attributes:
    tiling: Sizes of tiles and sub-tiles.
    options: Scale and soft cap.
    test: `masks` test of PARTIAL tiles, or None when they are stored.
    layout: How the steps are packed.
    q_len: Number of queries.
    kv_len: Number of keys.
    group: Query heads per key/value head.
    interpret: See `blockattn._compat`.
    step_kv: Keys that a grid step holds in VMEM, a multiple of a tile.
  """

  tiling: KernelTiling
  options: AttentionOptions
  test: typing.Any
  layout: StepLayout
  q_len: int
  kv_len: int
  group: int
  interpret: typing.Any
  step_kv: int

  @property
  def exponent_unit(self) -> float:
    """Base-2 exponent per unit of score."""
    return self.options.score_unit * LOG2_E

  @property
  def ragged_q(self) -> bool:
    """Whether the last tile of queries reaches beyond the last query."""
    return self.q_len % self.tiling.block_q != 0

  @property
  def ragged_kv(self) -> bool:
    """Whether the last tile of keys reaches beyond the last key."""
    return self.kv_len % self.tiling.block_kv != 0

  @property
  def sub_tiles(self) -> list[tuple[int, int]]:
    """(first query, first key) of each sub-tile, in the order in which kernels work on them."""
    tiling = self.tiling
    return [
      (q_start, kv_start)
      for q_start in range(0, tiling.block_q, tiling.sub_q)
      for kv_start in range(0, tiling.block_kv, tiling.sub_kv)
    ]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TileInputs:
  """Operands of a kernel, as arrays, block specs or refs; None where a call has no such operand.

  Attributes:
    q: [B, N, T, D].
    k: [B, K, S, D].
    v: [B, K, S, Dv].
    q_tokens: [B or 1, N or 1, numbers, T] int32.
    kv_tokens: [B or 1, N or 1, S, numbers] int32.
    tiles: [n, block_kv, block_q] int8, stored partial tiles, transposed.
    sinks: [N, 1] float32, in SMEM; forward only.
    dout: [B, N, T, Dv]; backward only.
    lse: [B, N, 1, T] float32, natural log; backward only.
    delta: [B, N, 1, T] float32; backward only.
  """

  q: typing.Any
  k: typing.Any
  v: typing.Any
  q_tokens: typing.Any = None
  kv_tokens: typing.Any = None
  tiles: typing.Any = None
  sinks: typing.Any = None
  dout: typing.Any = None
  lse: typing.Any = None
  delta: typing.Any = None


class TileIndex(typing.NamedTuple):
  """Where a grid step reads and writes; see `index_maps`."""

  queries: typing.Callable
  query_row: typing.Callable
  keys: typing.Callable


def index_maps(config: KernelConfig, head_of: typing.Callable) -> TileIndex:
  """Index maps of [B, N, T, *], [B, N, 1, T] and [B, K, S, *] arrays.

  Args:
    config: Static choices.
    head_of: (grid indices, StepFields) -> (batch, query head).

  Returns:
    The maps, functions of grid indices and prefetched refs.
  """

  def queries(*args):
    fields, batch, head = locate(config, head_of, *args)
    return batch, head, fields.q_tile, 0

  def query_row(*args):
    fields, batch, head = locate(config, head_of, *args)
    return batch, head, 0, fields.q_tile

  def keys(*args):
    fields, batch, head = locate(config, head_of, *args)
    return batch, lax.div(head, config.group), fields.kv_tile, 0

  return TileIndex(queries, query_row, keys)


def locate(config: KernelConfig, head_of: typing.Callable, *args):
  """(StepFields, batch, query head) of a grid step, from an index map's arguments."""
  *grid, refs = args
  fields = config.layout.unpack(refs[0][grid[2]])
  return fields, *head_of(grid, fields)


def input_specs(inputs: TileInputs, config: KernelConfig, head_of: typing.Callable) -> TileInputs:
  """Block specs of the operands that are present."""
  index, tiling = index_maps(config, head_of), config.tiling

  def q_tokens(*args):
    fields, batch, head = locate(config, head_of, *args)
    return *_token_lead(inputs.q_tokens, batch, head), 0, fields.q_tile

  def kv_tokens(*args):
    fields, batch, head = locate(config, head_of, *args)
    return *_token_lead(inputs.kv_tokens, batch, head), fields.kv_tile, 0

  def tiles(*args):
    return args[-1][1][args[2]], 0, 0

  specs = {
    "q": lambda x: pl.BlockSpec((None, None, tiling.block_q, x.shape[3]), index.queries),
    "dout": lambda x: pl.BlockSpec((None, None, tiling.block_q, x.shape[3]), index.queries),
    "k": lambda x: pl.BlockSpec((None, None, config.step_kv, x.shape[3]), index.keys),
    "v": lambda x: pl.BlockSpec((None, None, config.step_kv, x.shape[3]), index.keys),
    "lse": lambda x: pl.BlockSpec((None, None, 1, tiling.block_q), index.query_row),
    "delta": lambda x: pl.BlockSpec((None, None, 1, tiling.block_q), index.query_row),
    "q_tokens": lambda x: pl.BlockSpec((None, None, x.shape[2], tiling.block_q), q_tokens),
    "kv_tokens": lambda x: pl.BlockSpec((None, None, config.step_kv, x.shape[3]), kv_tokens),
    "tiles": lambda x: pl.BlockSpec((None, tiling.block_kv, tiling.block_q), tiles),
    "sinks": lambda x: pl.BlockSpec(memory_space=pltpu.SMEM),
  }
  present = {name: getattr(inputs, name) for name in specs}
  return TileInputs(**{n: None if x is None else specs[n](x) for n, x in present.items()})


def _token_lead(tokens, batch, head):
  return tuple(i if n > 1 else 0 for i, n in zip((batch, head), tokens.shape[:2], strict=True))


class Rect(typing.NamedTuple):
  """A rectangle of scores within what a grid step holds.

  Attributes:
    q_start: First query.
    q_size: Queries.
    kv_start: First key.
    kv_size: Keys.
  """

  q_start: typing.Any
  q_size: int
  kv_start: typing.Any
  kv_size: int

  queries = property(lambda self: pl.ds(self.q_start, self.q_size), doc="Slice of the queries.")
  keys = property(lambda self: pl.ds(self.kv_start, self.kv_size), doc="Slice of the keys.")
  shape = property(lambda self: (self.kv_size, self.q_size), doc="Of the transposed scores.")


def scores(inputs: TileInputs, config: KernelConfig, rect: Rect):
  """Scores [kv_size, q_size] float32, see `AttentionOptions`. The scale comes later: on q it would round twice."""
  return config.options.scores(dot(inputs.k[rect.keys, :], inputs.q[rect.queries, :], (1, 1)))


def rows(ref, start: int, size: int, num_valid):
  """Rows of a tile. Those from `num_valid` on hold whatever memory held, and 0 * NaN is NaN: make them 0."""
  tile = ref[pl.ds(start, size), :]
  if num_valid is None:
    return tile
  index = lax.broadcasted_iota(jnp.int32, tile.shape, 0) + start
  return jnp.where(index < num_valid, tile, jnp.zeros_like(tile))


def computed_mask(inputs: TileInputs, config: KernelConfig, fields: StepFields, rect: Rect):
  """Mask [kv_size, q_size] by the rule, False beyond the last query and key."""
  q_idx = lax.broadcasted_iota(jnp.int32, rect.shape, 1) + (
    fields.q_tile * config.tiling.block_q + rect.q_start
  )
  kv_idx = lax.broadcasted_iota(jnp.int32, rect.shape, 0) + (fields.kv_tile * config.step_kv + rect.kv_start)
  q_tokens = [inputs.q_tokens[n : n + 1, rect.queries] for n in range(config.test.num_q)]
  kv_tokens = [inputs.kv_tokens[rect.keys, n : n + 1] for n in range(config.test.num_kv)]
  allowed = jnp.broadcast_to(config.test(q_idx, kv_idx, q_tokens, kv_tokens), rect.shape)
  for ragged, index, length in (
    (config.ragged_q, q_idx, config.q_len),
    (config.ragged_kv, kv_idx, config.kv_len),
  ):
    if ragged:
      allowed = allowed & (index < length)
  return allowed


def stored_mask(tile, rect: Rect):
  """Mask [kv_size, q_size] of a part of a stored tile, a ref [block_kv, block_q] int8."""
  return tile[rect.keys, rect.queries].astype(jnp.int32) != 0


def num_valid(config: KernelConfig, fields: StepFields):
  """(queries, keys) of a PARTIAL tile that exist; None where no tile is ragged."""
  q = config.q_len - fields.q_tile * config.tiling.block_q if config.ragged_q else None
  kv = config.kv_len - fields.kv_tile * config.step_kv if config.ragged_kv else None
  return q, kv


def dot(a, b, contract: tuple[int, int]):
  """Matmul of two tiles, accumulated in float32; float32 operands at full precision."""
  # Not None, which stands for jax_default_matmul_precision: the TPU compiler refuses "highest" for bfloat16.
  precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else lax.Precision.DEFAULT
  dims = (((contract[0],), (contract[1],)), ((), ()))
  return lax.dot_general(a, b, dims, precision=precision, preferred_element_type=jnp.float32)


def in_flight(make: typing.Callable, items: list, lookahead: int):
  """Yields (item, make(item)), where `make` runs `lookahead` items ahead.

  The order of the program is the order in which the compiler sees work: matmuls issued ahead run while the
  vector unit works on earlier items.
  """
  pending = [make(item) for item in items[:lookahead]]
  for at, item in enumerate(items):
    if at + lookahead < len(items):
      pending.append(make(items[at + lookahead]))
    yield item, pending.pop(0)
