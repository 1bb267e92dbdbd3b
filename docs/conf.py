"""The site: python -m sphinx -W -b html docs build/docs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.reference_pages import write_pages

write_pages(Path(__file__).parent / "reference" / "generated")

project = "planfreeze"
extensions = ["myst_parser"]
myst_heading_anchors = 4
smartquotes = False  # two dashes are an option, not a long dash
nitpicky = True
html_theme = "furo"
html_title = "planfreeze"
html_show_copyright = False
html_copy_source = False
