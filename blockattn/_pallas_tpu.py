"""The TPU implementation: arranges operands for the Pallas kernels and launches them."""

from __future__ import annotations

import dataclasses
import functools

import einops
import jax
import jax.numpy as jnp

from blockattn import _compat
from blockattn._block_sizes import KernelTiling, keys_per_step
from blockattn._kernels import attention_backward, attention_forward, packed_steps
from blockattn._kernels.attention_tiles import KernelConfig, TileInputs
from blockattn._kernels.packed_steps import StepLayout
from blockattn._kernels.work_items import ItemLayout, WorkItems
from blockattn._mask_operands import MaskOperands
from blockattn._options import AttentionOptions
from blockattn._work_list import list_work
from masks import BlockMask
from masks._schedule import DeviceSchedule


@dataclasses.dataclass(frozen=True)
class PallasTpu:
  """Attention by Pallas TPU kernels; see `_implementation.Implementation`.

  Attributes:
    options: Scale and soft cap.
    tiling: Sizes of tiles and sub-tiles.
    interpret: See `blockattn._compat`.
  """

  options: AttentionOptions
  tiling: KernelTiling
  interpret: _compat.InterpretMode

  def forward(self, q, k, v, sinks, block_mask: BlockMask):
    """See `Implementation`."""
    fine = _cells(block_mask, self.tiling)
    step_kv = keys_per_step(self.tiling, k.shape[1], _key_bytes(k, v, fine))
    steps, items, work = list_work(fine, self.tiling, step_kv)
    return _forward(self, steps, items, step_kv, q, k, v, sinks, MaskOperands.by_row(fine), work)

  def backward(self, q, k, v, dout, lse, delta, block_mask: BlockMask):
    """See `Implementation`."""
    operands = (MaskOperands.by_row(block_mask), MaskOperands.by_column(block_mask))
    return _backward(self, q, k, v, dout, lse, delta, *operands)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _forward(
  self: PallasTpu,
  steps: StepLayout,
  items: ItemLayout,
  step_kv: int,
  q,
  k,
  v,
  sinks,
  operands,
  work: WorkItems,
):
  inputs = _inputs(q, k, v, operands, sinks=None if sinks is None else sinks[:, None])
  config = _config(self, inputs, operands, steps, step_kv)
  out, lse = attention_forward.attention_forward(inputs, work, items, config)
  return _tokens_first(out), lse[:, :, 0]


def _cells(block_mask: BlockMask, tiling: KernelTiling) -> BlockMask:
  """The mask in cells of the kernel's sub-tiles; as it is where tiles are stored."""
  if block_mask.tile_rule is None:
    return block_mask
  capacity = None
  if isinstance(block_mask.schedule, DeviceSchedule):
    capacity = block_mask.schedule.capacity * tiling.strips * tiling.width
  q_size = tiling.sub_q if capacity else tiling.sub_q // tiling.cells
  return block_mask.mask.block_mask(
    block_mask.q_len, block_mask.kv_len, q_size, tiling.sub_kv, capacity=capacity
  )


def _key_bytes(k, v, block_mask: BlockMask) -> int:
  rule = block_mask.tile_rule
  # The numbers of a key take a row of 128 lanes of 4 bytes.
  tokens = 512 if rule is not None and rule.kv_tokens.shape[2] else 0
  return (k.shape[3] + v.shape[3]) * k.dtype.itemsize + tokens


@functools.partial(jax.jit, static_argnums=0)
def _backward(self: PallasTpu, q, k, v, dout, lse, delta, by_row: MaskOperands, by_col: MaskOperands):
  extra = {"dout": _heads_first(dout), "lse": lse[:, :, None], "delta": delta[:, :, None]}
  inputs = _inputs(q, k, v, by_row, **extra)
  config, steps = _launch(self, inputs, by_row)
  dq = attention_backward.attention_dq(inputs, steps, config)
  config, steps = _launch(self, inputs, by_col)
  dkv = attention_backward.attention_dkv(inputs, steps, config)
  num_kv_heads = k.shape[2]
  dk, dv = (
    x if x.shape[1] == num_kv_heads else einops.reduce(x, "b (k r) s d -> b k s d", "sum", k=num_kv_heads)
    for x in dkv
  )
  return _tokens_first(dq), _tokens_first(dk).astype(k.dtype), _tokens_first(dv).astype(v.dtype)


def _inputs(q, k, v, operands: MaskOperands, **extra) -> TileInputs:
  q_tokens, kv_tokens = operands.expand_tokens()
  return TileInputs(
    q=_heads_first(q),
    k=_heads_first(k),
    v=_heads_first(v),
    q_tokens=q_tokens,
    kv_tokens=None if kv_tokens is None else kv_tokens.swapaxes(2, 3),
    tiles=None if operands.tiles is None else jnp.asarray(operands.tiles).swapaxes(1, 2),
    **extra,
  )


def _launch(self: PallasTpu, inputs: TileInputs, operands: MaskOperands):
  """Static choices and packed steps of a launch."""
  layout = StepLayout(operands.lead, operands.rows, operands.cols, by_column=operands.is_by_column)
  config = _config(self, inputs, operands, layout, self.tiling.block_kv)
  return config, packed_steps.pack_schedule(operands.schedule, layout, operands.tile_ids)


def _config(self: PallasTpu, inputs: TileInputs, operands: MaskOperands, layout: StepLayout, step_kv: int):
  return KernelConfig(
    tiling=self.tiling,
    options=self.options,
    test=operands.test,
    layout=layout,
    q_len=inputs.q.shape[2],
    kv_len=inputs.k.shape[2],
    group=inputs.q.shape[1] // inputs.k.shape[1],
    interpret=self.interpret,
    step_kv=step_kv,
  )


def _heads_first(x):
  return einops.rearrange(x, "b t n d -> b n t d")


def _tokens_first(x):
  return einops.rearrange(x, "b n t d -> b t n d")
