import pathlib
import re

README = pathlib.Path(__file__).parents[1] / "README.md"


def test_quick_start_runs():
  (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
  names = {}
  exec(code, names)
  assert names["out"].shape == names["q"].shape
