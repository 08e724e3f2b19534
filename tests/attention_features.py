"""What attention offers, in combinations: inputs, mask, and the mask written out."""

import functools

import jax.numpy as jnp
import numpy as np

import masks
from tests.attention_case import Case, causal, register, same_id
from tests.support import BlockSizes, draw, grid_of


@register("packed documents per example, grouped heads", emulated=True)
def _():
  ids = np.stack([np.repeat([0, 1, 2], [100, 90, 66]), np.repeat([4, 5, -1], [30, 200, 26])])
  inputs = draw(130, 256, batch=2, num_heads=4, num_kv_heads=2)
  mask = masks.causal() & masks.document(ids)
  return Case(inputs, mask, (same_id(ids) & causal(256, 256))[:, None])


@register("documents in any order, computed from the ids")
def _():
  ids = np.random.default_rng(131).integers(-1, 20, 300)
  return Case(draw(131, 300, num_heads=2), masks.document(ids), same_id(ids))


@register("array mask per head", emulated=True)
def _():
  dense = np.random.default_rng(132).random((1, 4, 200, 150)) < 0.3
  dense[:, 1, :, :128] = False
  dense[:, 2] = False
  inputs = draw(132, 200, 150, batch=2, num_heads=4, num_kv_heads=2)
  return Case(inputs, masks.from_array(dense), dense)


@register("array mask per example and head, sinks")
def _():
  dense = np.random.default_rng(133).random((2, 2, 130, 140)) < 0.5
  dense[1, 0, 7] = False
  inputs = draw(133, 130, 140, batch=2, num_heads=2)
  return Case(inputs, masks.from_array(dense), dense, {"sinks": jnp.array([0.5, -2.0])})


@register("function, padding and one key/value head")
def _():
  i, j = grid_of(192, 160)
  dense = ((i // 3 + j) % 2 == 0) & (j < np.array([160, 70])[:, None, None, None])
  mask = masks.from_function(lambda q, kv: (q // 3 + kv) % 2 == 0) & masks.padding([160, 70])
  inputs = draw(134, 192, 160, batch=2, num_heads=3, num_kv_heads=1)
  return Case(inputs, mask, dense, {"scale": -0.2})


@register("complement of a window, prefix and a sink", emulated=True)
def _():
  i, j = grid_of(192, 192)
  dense = ~((i - 40 <= j) & (j <= i + 40)) & (j < 150)
  dense[:, :] &= i != 191
  mask = ~masks.local(40, 40) & masks.prefix(150) & masks.from_function(lambda q, kv: q != 191)
  return Case(draw(135, 192), mask, dense, {"sinks": jnp.array([1.5])})


@register("sinks, soft cap and scale, bfloat16")
def _():
  inputs = draw(136, 300, num_heads=4, num_kv_heads=2, dtype="bfloat16")
  options = {
    "sinks": jnp.array([0.0, 3.0, -1.0, 0.25], jnp.bfloat16),
    "logits_soft_cap": 5.0,
    "scale": 0.3,
  }
  return Case(inputs, masks.causal(), causal(300, 300), options)


def _scaled_with_sink(scale):
  options = {"scale": scale, "sinks": jnp.array([1.0])}
  return Case(draw(140, 130), masks.causal(), causal(130, 130), options)


for _scale in (0, -0.3):
  register(f"scale {_scale} and a sink", kernel_only=True)(functools.partial(_scaled_with_sink, _scale))


@register("without batch")
def _():
  q, k, v = (x[0] for x in draw(137, 150, 200, num_heads=2, num_kv_heads=1))
  return Case((q, k, v), masks.causal(50), causal(150, 200, 50))


@register("no key for any query")
def _():
  return Case(draw(138, 200, 130), ~masks.full(), np.zeros((200, 130), bool))


@register("sub-tiles within a tile", kernel_only=True)
def _():
  sizes = BlockSizes(256, 512, sub_q=64, sub_kv=256)
  ids = np.repeat([0, 1, 2], [300, 500, 200])
  dense = same_id(ids) & causal(1000, 1000)
  return Case(draw(139, 1000), masks.causal() & masks.document(ids), dense, block_sizes=sizes)
