"""The description for package indexes: README without what leads into a checkout, since that leads nowhere there."""

import re
from pathlib import Path

from setuptools import setup

text = (Path(__file__).parent / "README.md").read_text("utf-8")
text = re.sub(r"^!\[[^\]]*\]\((?!https:)[^)]*\)\n\n?", "", text, flags=re.MULTILINE)
text = re.sub(r"\[([^\]]+)\]\((?!https:)[^)]*\)", r"\1", text)
setup(long_description=text, long_description_content_type="text/markdown")
