import sysconfig
from pathlib import Path

import numpy as np
import pytest

from benchmarks import _corpus


@pytest.fixture
def folder(tmp_path):
  for name, content in (
    ("b.py", "bbbb"),
    ("a.py", "aaaaaa"),
    ("empty.py", ""),
    ("c/d.py", "dd"),
    ("e.txt", "e"),
  ):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
  for skipped in ("site-packages", "test"):
    (tmp_path / skipped).mkdir()
    (tmp_path / skipped / "a.py").write_text("x")
  return tmp_path


def test_pack_cuts_a_document_at_the_end_of_its_row(folder):
  packed = _corpus.pack_standard_library(2, 8, folder=folder)
  assert packed.names == ("a.py", "b.py", "c/d.py")
  assert packed.tokens.tobytes() == b"aaaaaabbdd" + bytes(6)
  np.testing.assert_array_equal(
    packed.segment_ids, [[0, 0, 0, 0, 0, 0, 1, 1], [2, 2, -1, -1, -1, -1, -1, -1]]
  )
  assert (packed.tokens.dtype, packed.segment_ids.dtype) == (np.uint8, np.int32)


def test_pack_leaves_out_documents_that_are_too_long(folder):
  packed = _corpus.pack_standard_library(1, 6, max_document_len=4, folder=folder)
  assert packed.names == ("b.py", "c/d.py")
  assert packed.tokens.tobytes() == b"bbbbdd"


def test_pack_takes_whole_sources_of_this_python():
  packed = _corpus.pack_standard_library(2, 4096, max_document_len=2048)
  assert packed.segment_ids.min() == 0
  np.testing.assert_array_equal(np.unique(packed.segment_ids), np.arange(len(packed.names)))
  first = packed.tokens[packed.segment_ids == 0].tobytes()
  assert first == (Path(sysconfig.get_path("stdlib")) / packed.names[0]).read_bytes()


def test_pack_is_deterministic():
  one, other = (_corpus.pack_standard_library(1, 2048) for _ in range(2))
  np.testing.assert_array_equal(one.tokens, other.tokens)
  np.testing.assert_array_equal(one.segment_ids, other.segment_ids)


def test_packed_corpus_describes_itself(folder):
  packed = _corpus.pack_standard_library(2, 8, folder=folder)
  assert str(packed) == (
    "3 documents (a.py to c/d.py) of 2 to 6 byte tokens, mean 3, in 2 row(s) of 8; 6 of padding"
  )


def test_pack_without_sources_names_the_folder(tmp_path):
  with pytest.raises(FileNotFoundError, match=r"needs Python sources, got .*: .*" + tmp_path.name):
    _corpus.pack_standard_library(1, 8, folder=tmp_path)


def test_pack_where_all_sources_are_too_long_names_the_limit(folder):
  with pytest.raises(FileNotFoundError, match=r"any \*\.py of at most 1 bytes.*allow longer documents"):
    _corpus.pack_standard_library(1, 8, max_document_len=1, folder=folder)


@pytest.mark.parametrize(
  ("kwargs", "message"),
  [
    ({"batch": 0, "seq_len": 8}, "`batch` must be at least 1, got batch=0"),
    ({"batch": 1, "seq_len": -8}, "`seq_len` must be at least 1, got seq_len=-8"),
    (
      {"batch": 1, "seq_len": 8, "max_document_len": 0},
      "`max_document_len` must be at least 1, got max",
    ),
  ],
)
def test_pack_refuses_sizes_below_one(kwargs, message):
  with pytest.raises(ValueError, match=message):
    _corpus.pack_standard_library(**kwargs)
