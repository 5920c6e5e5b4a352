"""Changes to archives of models."""

import zipfile
from pathlib import Path

import yaml

SETTINGS = "model-config.yaml"


def replace_file(mar: Path, name: str, content: str) -> None:
    """Replace a file of an archive."""
    with zipfile.ZipFile(mar) as old:
        files = {each: old.read(each) for each in old.namelist()}
    with zipfile.ZipFile(mar, "w") as new:
        for each, data in {**files, name: content.encode()}.items():
            new.writestr(each, data)


def change_settings(mar: Path, **changes: object) -> None:
    """Change some settings of an archive."""
    with zipfile.ZipFile(mar) as old:
        settings = yaml.safe_load(old.read(SETTINGS))
    replace_file(mar, SETTINGS, yaml.safe_dump({**settings, **changes}, sort_keys=False))
