"""The documents of the project, and the blocks of code in them."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path for folder in (".", "bench", "docs/**", "model_store", "demo/models/*") for path in ROOT.glob(f"{folder}/*.md")
)

_HEADING_OR_BLOCK = re.compile(r"^#+ (?P<heading>[^\n]+)$|^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A block of code in a document."""

    document: str
    """Path from the root of the project."""
    heading: str
    """The heading that it stands under."""
    language: str
    """What follows the opening fence, such as sh; empty without a language."""
    code: str


def blocks(document: Path) -> list[Block]:
    """The blocks of code in a document, in order."""
    found, heading = [], ""
    for match in _HEADING_OR_BLOCK.finditer(document.read_text()):
        if match["heading"] is not None:
            heading = match["heading"]
        else:
            found.append(Block(str(document.relative_to(ROOT)), heading, match["language"], match["code"]))
    return found
