"""The lists of work of the forward kernel, and the two kinds of softmax that it adds up with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import masks
from blockattn import _block_sizes
from blockattn._block_sizes import kernel_tiling
from blockattn._kernels import attention_forward
from blockattn._kernels.work_items import SubTile
from blockattn._pallas_tpu import _cells
from blockattn._work_list import list_work
from masks import TileKind
from tests.attention_case import causal
from tests.attention_runs import assert_attention, attend
from tests.support import BlockSizes, draw, grid_of, oracle, tolerance

SIZES = BlockSizes(512, 512, sub_q=256, sub_kv=128)
LENGTH = 1500
_IDS = np.repeat([0, 1, 2, 3], [300, 700, 100, 400])

MASKS = {
  "full": masks.full(),
  "causal": masks.causal(),
  "window": masks.sliding_window(400),
  "documents": masks.causal() & masks.document(_IDS),
  "nothing": ~masks.full(),
  "per head": masks.per_head([masks.causal(), masks.sliding_window(100)]),
  "stored": masks.from_array(np.random.default_rng(0).random((LENGTH, LENGTH)) < 0.001),
}


def _covered(block_mask, step_kv):
  """How often the work covers each cell of the block mask, [rows, cols], and where without mask code."""
  tiling = kernel_tiling(SIZES, compiled=True)
  steps, layout, work = list_work(block_mask, tiling, step_kv)
  grid = block_mask.grid
  cell_rows = layout.strips * layout.cells
  times = np.zeros((grid.groups, steps.rows * cell_rows, steps.cols * layout.cols), int)
  unmasked = np.zeros_like(times, dtype=bool)
  whole = [
    SubTile(strip, col, (TileKind.FULL,)) for strip in range(layout.strips) for col in range(layout.width)
  ]
  for step, word in enumerate(np.asarray(work.steps)):
    fields = steps.unpack(int(word))
    group = fields.batch * steps.lead[1] + fields.head
    for item in np.asarray(work.items)[work.first_item[step] : work.first_item[step + 1]]:
      body, strip, col, count = (int(x) for x in layout.unpack(int(item)))
      for n in range(count):
        if body == 0:
          sub_tiles = whole
        elif body < layout.first_part:
          sub_tiles = layout.patterns[body - layout.first_pattern]
        else:
          sub_tiles = [x._replace(strip=strip) for x in layout.parts[body - layout.first_part]]
        for sub_tile in sub_tiles:
          kinds = np.repeat(sub_tile.kinds, layout.cells // len(sub_tile.kinds))
          for cell in np.flatnonzero(kinds != TileKind.EMPTY):
            row = (fields.q_tile * layout.strips + sub_tile.strip) * layout.cells + cell
            at = group, row, fields.kv_tile * layout.cols + col + n * layout.width + sub_tile.col
            times[at] += 1
            unmasked[at] = kinds[cell] == TileKind.FULL
  return times[:, : grid.rows, : grid.cols], unmasked[:, : grid.rows, : grid.cols]


@pytest.mark.parametrize("step_kv", [512, 1536])
@pytest.mark.parametrize("name", MASKS)
def test_work_covers_each_active_cell_once(name, step_kv):
  tiling = kernel_tiling(SIZES, compiled=True)
  coarse = MASKS[name].block_mask(LENGTH, LENGTH, 512, 512)
  block_mask = _cells(coarse, tiling)
  times, unmasked = _covered(block_mask, step_kv)
  kinds = block_mask.kinds.reshape(times.shape)
  assert (times[kinds != TileKind.EMPTY] == 1).all()
  assert (times <= 1).all()
  assert not unmasked[kinds == TileKind.PARTIAL].any()
  if name != "stored":  # the work is that of the mask and not of its tiles
    assert times.sum() <= 1.5 * max(1, (kinds != TileKind.EMPTY).sum())


def test_frequent_patterns_have_bodies_of_their_own():
  tiling = kernel_tiling(SIZES, compiled=True)
  block_mask = _cells(masks.causal().block_mask(2048, 2048, 512, 512), tiling)
  layout = list_work(block_mask, tiling, 2048).items
  assert len(layout.patterns) == 1  # the diagonal
  assert layout.parts == ()
  partial, full = TileKind.PARTIAL, TileKind.FULL
  diagonal = {(x.strip, x.col): x.kinds for x in layout.patterns[0]}
  assert diagonal[0, 0] == (partial, full) or diagonal[0, 0] == (partial, partial)
  assert diagonal[1, 0] == (full, full)
  assert (0, 2) not in diagonal  # above the diagonal


ADVERSARIAL = {
  "amplitude 30": lambda q, k: (q * 30, k),
  "an outlier key": lambda q, k: (q, k.at[:, 700].multiply(100)),
  "an outlier query": lambda q, k: (q.at[:, 300].multiply(1000), k),
  "a common component": lambda q, k: (q, k + 20),
  "logits that grow": lambda q, k: (
    jnp.ones_like(q),
    k * 0 + jnp.linspace(0, 60, k.shape[1])[None, :, None, None],
  ),
  "logits that fall": lambda q, k: (
    jnp.ones_like(q),
    k * 0 - jnp.linspace(0, 60, k.shape[1])[None, :, None, None],
  ),
}


@pytest.mark.parametrize("chunk", [1, 2**22])
@pytest.mark.parametrize("name", ADVERSARIAL)
def test_softmax_of_adversarial_logits(name, chunk, monkeypatch):
  monkeypatch.setattr(_block_sizes, "_CHUNK_BYTES", chunk)  # 1: as many steps as there are tiles
  q, k, v = draw(7, 1100, num_heads=2)
  q, k = ADVERSARIAL[name](q, k)
  ids = np.repeat([0, -1, 1], [500, 50, 550])  # the worst key is excluded for some queries, dead rows
  dense = causal(1100, 1100) & (ids[:, None] == ids[None]) & (ids >= 0)[:, None]
  mask = masks.causal() & masks.document(ids)
  got = attend("pallas", q, k, v, mask, block_sizes=SIZES, return_lse=True)
  # Logits of up to 480 in float32 are known to some 1e-4.
  assert_attention(got, oracle(q, k, v, dense), 2e-4 if name.startswith("logits") else 5e-5)


@pytest.mark.parametrize("by", ["pallas", "pallas, emulated"])
def test_chunks_of_keys_add_up(by, monkeypatch):
  monkeypatch.setattr(_block_sizes, "_CHUNK_BYTES", 1)
  q, k, v = draw(8, 700, num_heads=2, num_kv_heads=1)
  i, j = grid_of(700, 700)
  sizes = BlockSizes(256, 256, sub_q=128, sub_kv=128)
  for mask, dense in (
    (masks.causal(), j <= i),
    (masks.sliding_window(300), (j <= i) & (j > i - 300)),
  ):
    got = attend(by, q, k, v, mask, block_sizes=sizes, return_lse=True)
    assert_attention(got, oracle(q, k, v, dense), tolerance(q.dtype, 1))


@pytest.mark.parametrize("amplitude", [1, 5])
def test_running_maximum_alone_gives_the_same(amplitude, monkeypatch):
  q, k, v = draw(9, 600, dtype="bfloat16", amplitude=amplitude)
  want = oracle(q, k, v, causal(600, 600))
  sizes = BlockSizes(256, 256, sub_q=256, sub_kv=128)
  fixed = attend("pallas", q, k, v, masks.causal(), block_sizes=sizes, return_lse=True)
  monkeypatch.setattr(attention_forward, "_LARGEST_SUM", 0.0)  # no sum is in the range
  jax.clear_caches()
  running = attend("pallas", q, k, v, masks.causal(), block_sizes=sizes, return_lse=True)
  jax.clear_caches()
  for got in (fixed, running):
    assert_attention(got, want, tolerance(q.dtype, amplitude))
  if amplitude == 1:  # two ways, not one; five times the queries and keys leave the range
    assert (np.asarray(fixed[1]) != np.asarray(running[1])).any()
