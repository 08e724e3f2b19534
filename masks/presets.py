"""The masks of published models, one line each."""

import numpy as np

from masks._mask import Mask
from masks.bigbird import bigbird
from masks.causal import causal
from masks.chunk import chunk
from masks.global_tokens import global_tokens
from masks.prefix import prefix
from masks.window import local, sliding_window


def mistral(window: int = 4096) -> Mask:
  """All layers of Mistral 7B v0.1: a causal window of 4096 tokens.

  References:
    Jiang et al., Mistral 7B, arXiv:2310.06825, section 2.

  >>> mistral()
  sliding_window(4096)
  """
  return sliding_window(window)


def gemma2_local(window: int = 4096) -> Mask:
  """Every other layer of Gemma 2: a causal window of 4096 tokens; the others are `causal()`.

  References:
    Gemma Team, Gemma 2, arXiv:2408.00118, section 2.

  >>> gemma2_local()
  sliding_window(4096)
  """
  return sliding_window(window)


def gemma3_local(window: int = 1024) -> Mask:
  """Five of six layers of Gemma 3: a causal window of 1024 tokens; the sixth is `causal()`.

  The 1B model has a window of 512.

  References:
    Gemma Team, Gemma 3, arXiv:2503.19786, section 2.

  >>> gemma3_local()
  sliding_window(1024)
  """
  return sliding_window(window)


def gpt_oss_local(window: int = 128) -> Mask:
  """Every other layer of GPT-OSS: a causal window of 128 tokens; the others are `causal()`.

  The model also has a learned logit per head in the softmax denominator: `sinks` of the attention call.

  References:
    OpenAI, gpt-oss-120b and gpt-oss-20b model card, arXiv:2508.10925, section 2.

  >>> gpt_oss_local()
  sliding_window(128)
  """
  return sliding_window(window)


def llama4_chunked(size: int = 8192) -> Mask:
  """Three of four layers of Llama 4: causal within chunks of 8192 tokens; the fourth is `causal()`.

  References:
    Meta AI, The Llama 4 herd, 2025, and `attention_chunk_size` of the published configurations.

  >>> llama4_chunked()
  causal() & chunk(8192)
  """
  return causal() & chunk(size)


def paligemma(prefix_len) -> Mask:
  """PaliGemma: image and prompt tokens see each other, the answer is causal.

  Args:
    prefix_len: Image and prompt tokens, an int or one number per example; see `masks.prefix`.

  References:
    Beyer et al., PaliGemma, arXiv:2407.07726, figure 2.

  >>> paligemma(256)
  causal() | prefix(256)
  """
  return causal() | prefix(prefix_len)


def streaming_llm(sinks: int = 4, window: int = 1020) -> Mask:
  """StreamingLLM: the first 4 tokens and the last 1020, its own included.

  Args:
    sinks: First tokens that stay visible.
    window: Last tokens that a query sees, its own included. With 4 sinks a cache of 1024 holds 1020.

  References:
    Xiao et al., Efficient streaming language models with attention sinks, arXiv:2309.17453, section 3.2.

  >>> streaming_llm()
  causal() & (prefix(4) | sliding_window(1020))
  """
  return causal() & (prefix(sinks) | sliding_window(window))


def longformer(is_global, window: int = 512) -> Mask:
  """Longformer: half of a window of 512 tokens to either side, and global tokens.

  Args:
    is_global: Which tokens are global, see `masks.global_tokens`.
    window: Tokens before and after together, as `attention_window` of the published configurations.

  References:
    Beltagy et al., Longformer, arXiv:2004.05150, section 3.1.

  >>> longformer([True, False, False])
  local(256, 256) | global_tokens(bool[1, 3])
  """
  return local(window // 2, window // 2) | global_tokens(is_global)


def bigbird_base(seq_len: int, seed: int = 0) -> Mask:
  """BigBird base (ITC): blocks of 64 tokens, 3 random and 3 window blocks, the first and last global.

  Args:
    seq_len: Number of tokens; the last 64 are global.
    seed: Of the random blocks. The model draws them anew for each head: `per_head` with one seed each.

  References:
    Zaheer et al., Big Bird, arXiv:2007.14062, and `block_size` and `num_random_blocks` of the published
    configurations.

  >>> bigbird_base(4096).to_dense(4096, 4096)[2048].sum() // 64  # blocks seen: 3 + 3 + 2
  np.int64(8)
  """
  return bigbird(64, seed=seed) | global_tokens(np.arange(seq_len) >= seq_len - 64)
