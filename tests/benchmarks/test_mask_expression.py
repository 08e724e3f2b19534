import pytest

import masks
from benchmarks import _mask_expression
from benchmarks._mask_expression import check, parse


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("causal()", masks.causal()),
    (" causal(offset=-2) ", masks.causal(offset=-2)),
    ("local(None, 3)", masks.local(None, 3)),
    (
      "causal() & sliding_window(1024) | prefix(4)",
      masks.causal() & masks.sliding_window(1024) | masks.prefix(4),
    ),
    (
      "causal() & (prefix(4) | ~padding([3]))",
      masks.causal() & (masks.prefix(4) | ~masks.padding([3])),
    ),
    ("document([0, 0, 1])", masks.document([0, 0, 1])),
  ],
)
def test_parse_builds_the_mask(text, expected):
  assert parse(text) == expected
  check(text)


def test_parse_fills_in_arguments_from_the_context():
  context = {"document": [0, 0, 1], "padding": [2]}
  assert parse("document()", context) == masks.document([0, 0, 1])
  assert parse("document([0, 1, 1]) & causal()", context) == masks.document([0, 1, 1]) & masks.causal()


def test_builders_are_the_functions_that_return_masks():
  names = _mask_expression.builders()
  assert {"causal", "full", "document", "sliding_window", "local", "prefix", "padding"} <= set(names)
  assert not {"Mask", "BlockMask", "TileKind", "sparsify_mask"} & set(names)


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("causal(", r"must be a Python expression, got 'causal\(': .*Write for example"),
    ("", "must be a Python expression, got ''"),
    ("causal", r"must combine calls of mask builders .*, got 'causal' in 'causal'"),
    ("causal() + full()", r"must combine calls .*, got 'causal\(\) \+ full\(\)'"),
    ("causal() and full()", "must combine calls"),
    ("masks.causal()", r"must combine calls .*, got 'masks.causal\(\)'"),
    ("__import__('os').system('true')", "must combine calls"),
    ("(lambda: causal())()", "must combine calls"),
    ("eval('1')", r"must name builders of `masks`, got 'eval' .* Use one of: .*causal, "),
    ("sparsify_mask([[1]])", "must name builders of `masks`, got 'sparsify_mask'"),
    ("prefix(open('x'))", r"must be literals, got .*Write numbers"),
    ("prefix(**{'n': 4})", "must be literals"),
    ("~" * 101 + "causal()", "at most 100 operators, got 101"),
    ("~" * 100_000 + "causal()", r"must be a Python expression|at most 100 operators"),
  ],
)
def test_text_that_is_no_mask_is_refused(text, message):
  with pytest.raises(ValueError, match=message) as parsed:
    parse(text)
  with pytest.raises(ValueError, match=message):
    check(text)
  assert len(str(parsed.value)) < 1000


@pytest.mark.parametrize(
  ("text", "message"),
  [
    (
      "document()",
      r"`document` must get the arguments it takes, got document\(\).*help\(masks.document\)",
    ),
    ("causal(1, 2, 3)", r"`causal` must get the arguments it takes, got causal\(1, 2, 3\)"),
    ("sliding_window('a')", "`sliding_window` must get the arguments it takes"),
    ("prefix(-3)", "`n` must be at least 0, got -3"),
  ],
)
def test_arguments_that_a_builder_refuses_are_a_value_error(text, message):
  check(text)
  with pytest.raises(ValueError, match=message):
    parse(text)
