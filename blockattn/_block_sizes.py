"""Block sizes: what a user may choose, what the package chooses, and what TPUs allow."""

from __future__ import annotations

import dataclasses

import numpy as np

from blockattn._kernels import _limits


@dataclasses.dataclass(frozen=True)
class BlockSizes:
  """Tile sizes in tokens; the package chooses fields that are None.

  Attributes:
    block_q: Queries per tile; on TPU a multiple of 128.
    block_kv: Keys per tile; on TPU a multiple of 128.
    sub_q: Queries that the TPU kernel works on at once; divides block_q, on TPU a multiple of 128.
    sub_kv: Keys that the TPU kernel works on at once; divides block_kv, on TPU a multiple of 128.

  Raises:
    ValueError: A size is not positive.
    TypeError: A size is neither an int nor None.

  >>> BlockSizes(block_q=512)
  BlockSizes(block_q=512, block_kv=None, sub_q=None, sub_kv=None)
  """

  block_q: int | None = None
  block_kv: int | None = None
  sub_q: int | None = None
  sub_kv: int | None = None

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if value is None:
        continue
      if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise TypeError(f"`{field.name}` must be an int or None, got {value!r}.")
      if value < 1:
        raise ValueError(
          f"`{field.name}` must be at least 1, got {field.name}={value}. Use None to let the package choose."
        )


@dataclasses.dataclass(frozen=True)
class KernelTiling:
  """Sizes of the TPU kernel, all chosen.

  Attributes:
    block_q: Queries per tile.
    block_kv: Keys per tile.
    sub_q: Queries per sub-tile; divides block_q.
    sub_kv: Keys per sub-tile; divides block_kv.
    lookahead: Score matmuls issued before the softmax that needs the first of them.
    vmem_limit_bytes: VMEM the kernel may use, or None for the compiler's default.
  """

  block_q: int
  block_kv: int
  sub_q: int
  sub_kv: int
  lookahead: int
  vmem_limit_bytes: int | None

  @property
  def strips(self) -> int:
    """Sub-tiles along the queries of a tile."""
    return self.block_q // self.sub_q

  @property
  def width(self) -> int:
    """Sub-tiles along the keys of a tile."""
    return self.block_kv // self.sub_kv

  @property
  def cells(self) -> int:
    """Cells into which the forward kernel cuts the queries of a sub-tile where a mask leaves some out."""
    return 2 if self.sub_q % (2 * _limits.LANES) == 0 else 1


# Predicted by the compiled schedule on v6e, D = 128: sub-tiles of 512 x 256 with two score matmuls in flight.
_TPU_BLOCK = 1024
_SUB_Q, _SUB_KV, _LOOKAHEAD = 512, 256, 2
# Of K and V, twice of which a step of the forward kernel has in VMEM; 8,192 keys in bfloat16 and D = 128.
_CHUNK_BYTES = 4 * 2**20
# On CPU, narrow tiles keep scores in cache (benchmarks/RESULTS.md).
_XLA_BLOCK = 256


def choose_blocks(sizes: BlockSizes, implementation: str, q_len: int, kv_len: int) -> BlockSizes:
  """`sizes` with block_q and block_kv filled in.

  Args:
    sizes: The user's choice.
    implementation: Which implementation runs.
    q_len: Number of queries.
    kv_len: Number of keys.

  Returns:
    The sizes; no default exceeds the length, rounded up to the tile of the hardware.
  """
  default = _TPU_BLOCK if implementation == "pallas_tpu" else _XLA_BLOCK
  fit = (min(default, _limits.round_up(max(n, 1), _limits.LANES)) for n in (q_len, kv_len))
  block_q, block_kv = fit
  return dataclasses.replace(sizes, block_q=sizes.block_q or block_q, block_kv=sizes.block_kv or block_kv)


def kernel_tiling(sizes: BlockSizes, compiled: bool) -> KernelTiling:
  """The sizes of the TPU kernel.

  Args:
    sizes: With block_q and block_kv chosen.
    compiled: Whether the kernel is compiled for a TPU; the interpreter takes any size.

  Returns:
    All sizes.

  Raises:
    ValueError: A sub-tile does not divide its tile, or the hardware does not allow a size.
  """
  block_q, block_kv = sizes.block_q, sizes.block_kv
  assert block_q is not None
  assert block_kv is not None
  sub_q = sizes.sub_q or _largest_divisor(block_q, _SUB_Q)
  sub_kv = sizes.sub_kv or _largest_divisor(block_kv, _SUB_KV)
  for name, sub, block_name, block in (
    ("sub_q", sub_q, "block_q", block_q),
    ("sub_kv", sub_kv, "block_kv", block_kv),
  ):
    if block % sub:
      raise ValueError(
        f"`{name}` must divide `{block_name}`, got {name}={sub} and {block_name}={block}. Leave {name} None."
      )
    for label, value in ((block_name, block), (name, sub)):
      if compiled and value % _limits.LANES:
        nearest = _limits.round_up(value, _limits.LANES)
        raise ValueError(
          f"`{label}` must be a multiple of {_limits.LANES} on TPU, got {label}={value}. "
          f"Use {nearest}, or leave it None."
        )
  return KernelTiling(block_q, block_kv, sub_q, sub_kv, lookahead=_LOOKAHEAD, vmem_limit_bytes=None)


def keys_per_step(tiling: KernelTiling, kv_len: int, key_bytes: int) -> int:
  """Keys that a grid step of the forward kernel holds in VMEM.

  Args:
    tiling: The sizes of the kernel.
    kv_len: Number of keys.
    key_bytes: Bytes of VMEM per key: of K, V and the numbers that masks take.

  Returns:
    A multiple of block_kv; all keys if they fit.
  """
  tiles = max(1, _CHUNK_BYTES // (key_bytes * tiling.block_kv))
  return min(tiles, -(-kv_len // tiling.block_kv)) * tiling.block_kv


def _largest_divisor(block: int, most: int) -> int:
  """The largest divisor of `block` up to `most`, a multiple of 128 where there is one."""
  divisors = [n for n in range(1, min(block, most) + 1) if block % n == 0]
  aligned = [n for n in divisors if n % _limits.LANES == 0]
  return (aligned or divisors)[-1]
