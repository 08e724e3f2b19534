"""The masks of published models: the numbers of their papers and configurations."""

import numpy as np
import pytest

import masks
from masks import presets


@pytest.mark.parametrize(
  ("mask", "last_keys"),
  [
    (presets.mistral(), range(10000 - 4095, 10001)),
    (presets.gemma2_local(), range(10000 - 4095, 10001)),
    (presets.gemma3_local(), range(10000 - 1023, 10001)),
    (presets.gemma3_local(512), range(10000 - 511, 10001)),
    (presets.gpt_oss_local(), range(10000 - 127, 10001)),
    (presets.llama4_chunked(), range(8192, 10001)),
    (presets.streaming_llm(), [*range(4), *range(10000 - 1019, 10001)]),
    (presets.streaming_llm(2, 8), [0, 1, *range(9993, 10001)]),
    (presets.paligemma(12_000), range(12_000)),
    (presets.paligemma(100), range(10001)),
  ],
)
def test_query_ten_thousand_sees_the_published_keys(mask, last_keys):
  row = mask.shift(q=10_000).to_dense(1, 12_345)[0]
  np.testing.assert_array_equal(np.flatnonzero(row), last_keys)


def test_longformer_sees_half_a_window_to_either_side_and_global_tokens():
  mask = presets.longformer(np.arange(2000) == 7)
  dense = mask.to_dense(2000, 2000)
  np.testing.assert_array_equal(np.flatnonzero(dense[1000]), [7, *range(744, 1257)])
  assert dense[7].all()
  assert mask.tile_rule(2000, 2000) is not None


def test_bigbird_base_has_the_published_pattern():
  size, blocks = 4096, 64
  dense = presets.bigbird_base(size).to_dense(size, size)
  tiles = dense.reshape(blocks, 64, blocks, 64)
  assert (tiles.all((1, 3)) == tiles.any((1, 3))).all()
  kinds = tiles.any((1, 3))
  assert kinds[[0, -1]].all()
  assert kinds[:, [0, -1]].all()
  # First, last, three of the window, three random: fewer where the window holds a global block.
  assert set(kinds[2:-2].sum(axis=1)) == {8}
  assert (presets.bigbird_base(size, seed=1).to_dense(size, size) != dense).any()


def test_paligemma_takes_one_prefix_per_example():
  mask = presets.paligemma([1, 3])
  np.testing.assert_array_equal(mask.to_dense(1, 4)[:, 0], [[1, 0, 0, 0], [1, 1, 1, 0]])


def test_presets_share_values_with_the_builders():
  assert presets.mistral(64) == masks.sliding_window(64)
  assert presets.llama4_chunked(64) == masks.chunk(64) & masks.causal()
