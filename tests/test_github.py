"""What GitHub reads of this repository has the form that it expects."""

import subprocess
import sys

import pytest
import yaml

from support.documents import ROOT

GITHUB = ROOT / ".github"
FORMS = [path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"]


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", list((GITHUB / "workflows").glob("*.yml"))),
        ("github-issue-forms", FORMS),
        ("github-issue-config", [GITHUB / "ISSUE_TEMPLATE" / "config.yml"]),
    ],
)
def test_files_follow_their_schema(schema, files):
    assert files
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *map(str, files)]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_scripts_that_workflows_run_exist():
    jobs = yaml.safe_load((GITHUB / "workflows" / "test.yml").read_text())["jobs"].values()
    commands = [step["run"].split()[0] for job in jobs for step in job["steps"] if "run" in step]
    assert [command for command in commands if command.startswith("scripts/") and not (ROOT / command).exists()] == []
    assert "scripts/test" in commands
