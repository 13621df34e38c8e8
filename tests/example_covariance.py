"""The covariance of CONTRIBUTING.md: the laws run over it, and estimators fit it by name and as an object."""

import re

from conftest import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
CODE = next(block for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S) if "class Chain(" in block)

exec(compile(CODE, "CONTRIBUTING.md", "exec"))  # the classes belong to this module, where pickle finds them
