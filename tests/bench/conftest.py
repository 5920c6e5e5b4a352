"""Commands of bench/ are run as their users run them: as processes, by scripts/bench."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def run_bench() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `scripts/bench` with these words."""

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run([ROOT / "scripts" / "bench", *map(str, words)], capture_output=True, text=True)

    return run


@pytest.fixture
def tables_of(run_bench, tmp_path) -> Callable[..., list[dict[str, Any]]]:
    """Runs a command and returns the tables that it writes."""

    def tables(*words: object) -> list[dict[str, Any]]:
        file = tmp_path / "tables.json"
        done = run_bench(*words, "--json", file)
        assert done.returncode == 0, done.stderr[-3000:]
        result = json.loads(file.read_text())
        assert result["command"] == " ".join(["scripts/bench", *map(str, words)])
        assert all(table["title"] in done.stdout for table in result["tables"])
        return result["tables"]

    return tables
