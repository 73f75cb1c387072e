"""Writes the dashboards into a folder."""

import json
import sys
from pathlib import Path

from generate.dashboards import DASHBOARDS, model

for one in DASHBOARDS:
    path = Path(sys.argv[1]) / f"{one.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(model(one), indent=1) + "\n")
