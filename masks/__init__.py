"""Block masks for attention: which keys each query may use, and which tiles a kernel may skip.

>>> import masks
>>> mask = masks.causal() & masks.document([0, 0, 0, 1, 1, 1])
>>> print(mask.block_mask(q_len=6, kv_len=6, block_q=2, block_kv=2))
BlockMask(causal() & document(int32[1, 6]), q_len=6, kv_len=6, block_q=2, block_kv=2)
5 of 9 tiles active (55.6%): 0 full, 5 partial; per row 1 to 2, mean 1.7; 33.33% of pairs allowed, 60% of those computed
█ full, ▒ partial, · empty
▒··
▒▒·
·▒▒
"""

from importlib.metadata import version as _version

from masks import presets
from masks._mask import Mask
from masks._schedule import DeviceSchedule, Schedule
from masks._stats import MaskStats
from masks.bigbird import bigbird
from masks.block_mask import BlockMask
from masks.blocks import from_blocks
from masks.causal import causal, full
from masks.chunk import block_causal, chunk
from masks.dilated import dilated, strided
from masks.document import document, document_from_lengths
from masks.function import from_array, from_function
from masks.global_tokens import global_tokens
from masks.neighborhood import neighborhood
from masks.per_head import per_head
from masks.prefix import padding, prefix
from masks.same_group import same_group
from masks.sparsify import SparseMask, sparsify_mask
from masks.tile_kind import TileKind
from masks.tree import tree
from masks.window import local, sliding_window

__version__ = _version("blockattn")

__all__ = [
  "BlockMask",
  "DeviceSchedule",
  "Mask",
  "MaskStats",
  "Schedule",
  "SparseMask",
  "TileKind",
  "bigbird",
  "block_causal",
  "causal",
  "chunk",
  "dilated",
  "document",
  "document_from_lengths",
  "from_array",
  "from_blocks",
  "from_function",
  "full",
  "global_tokens",
  "local",
  "neighborhood",
  "padding",
  "per_head",
  "prefix",
  "presets",
  "same_group",
  "sliding_window",
  "sparsify_mask",
  "strided",
  "tree",
]
