import json

from benchmarks import _report

RESULTS = [
  _report.Result("ours", error=3e-7, seconds=0.002, speedup=2.5, flops=4e6, details={"size": 8}),
  _report.Result("theirs", seconds=1.5, predicted=True),
]


def test_table_shows_figures_and_marks_predicted_ones(capsys):
  _report.emit("title", ["a note"], RESULTS, None)
  out = capsys.readouterr().out
  lines = [line.split() for line in out.splitlines()]
  assert lines[0] == ["title"]
  assert "jax" in lines[1]
  assert ["a", "note"] in lines
  assert ["ours", "3.00e-07", "2.00", "ms", "2.50x", "2.0"] in lines
  assert ["theirs", "-", "1,500.00", "ms", "(predicted)", "-", "-"] in lines


def test_json_lines_hold_figures_settings_and_environment(tmp_path):
  path = tmp_path / "out.jsonl"
  for _ in range(2):  # appends
    _report.emit("title", [], RESULTS, str(path))
  records = [json.loads(line) for line in path.read_text().splitlines()]
  assert [r["name"] for r in records] == ["ours", "theirs"] * 2
  assert records[0]["size"] == 8
  assert records[1]["predicted"] is True
  assert records[0]["benchmark"] == "title"
  assert {"device", "backend", "jax", "blockattn", "python", "platform"} <= set(records[0])
