"""What deploy/ and docs/operations.md say of the rest of the project is true."""

import json
import os
import re
import shlex
import sys
from configparser import ConfigParser
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
import typer
import yaml

from reelscribe.cli import app
from reelscribe.run.metrics import RunMetrics
from reelscribe.run.progress import Silent
from reelscribe.server.settings import read_properties
from support.snapshots import BAD, FRAMES, SNAPSHOT, SOUND

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
OPERATIONS = ROOT / "docs" / "operations.md"
CONFIG = read_properties((ROOT / "config.properties").read_text())
PROMQL = {"sum", "by", "rate", "__rate_interval", "e6"}


def metrics_of_the_server() -> dict[str, set[str]]:
    """Each with its labels; TorchServe adds Hostname to those of models."""
    declared = yaml.safe_load((ROOT / "handlers" / "metrics.yaml").read_text())
    kinds = [kind for part in ("ts_metrics", "model_metrics") for kind in declared[part].values()]
    return {metric["name"]: set(metric["dimensions"]) for kind in kinds for metric in kind}


def metrics_of_a_run() -> dict[str, set[str]]:
    metrics = RunMetrics(Silent())
    metrics.show(replace(SNAPSHOT, lanes=(FRAMES, SOUND)))
    metrics.finished(BAD)
    return {sample.name: set(sample.labels) for family in metrics.collect() for sample in family.samples}


METRICS = {**metrics_of_the_server(), **metrics_of_a_run()}


def command_names() -> dict[str, set[str]]:
    """The options of each command, like `server start`."""
    found = {}

    def walk(words: str, command) -> None:
        for name, inner in getattr(command, "commands", {}).items():
            walk(f"{words} {name}".strip(), inner)
        found[words] = {option for parameter in command.params for option in parameter.opts + parameter.secondary_opts}

    walk("", typer.main.get_command(app))
    return found


def panels() -> list[dict]:
    return json.loads((DEPLOY / "grafana-dashboard.json").read_text())["panels"]


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_a_panel_asks_for_metrics_and_labels_that_exist(panel):
    for target in panel["targets"]:
        names = set(re.findall(r"[A-Za-z_]\w*", target["expr"])) - PROMQL
        asked = names & METRICS.keys()
        labels = set().union(*(METRICS[name] for name in asked))
        assert asked
        assert names - asked <= labels
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels | {"instance"}


def test_every_metric_of_the_handlers_is_on_the_dashboard_and_in_the_manual():
    expressions = " ".join(target["expr"] for panel in panels() for target in panel["targets"])
    manual = OPERATIONS.read_text()
    for name in METRICS:
        if name.startswith("reelscribe_") and name != "reelscribe_run_seconds":
            assert name in expressions
            assert f"`{name}`" in manual


def test_the_manual_knows_no_other_metrics():
    named = set(re.findall(r"`((?:reelscribe|ts)_\w+)`", OPERATIONS.read_text()))
    assert named <= METRICS.keys()


def test_prometheus_asks_the_server_where_its_metrics_are():
    jobs = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    targets = [target for job in jobs for static in job["static_configs"] for target in static["targets"]]
    assert f"http://{targets[0]}" == CONFIG["metrics_address"]
    assert f"--metrics-port {targets[1].rpartition(':')[2]}" in OPERATIONS.read_text()


def test_the_unit_runs_commands_that_exist_and_may_write_where_the_server_lives():
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(DEPLOY / "reelscribe.service")
    service, commands = unit["Service"], command_names()
    home = service["WorkingDirectory"]
    for verb in ("ExecStart", "ExecStop"):
        program, *words = shlex.split(service[verb])
        assert program == f"{home}/.venv/bin/reelscribe"
        assert {word for word in words if word.startswith("--")} <= commands[" ".join(words[:2])]
    assert service["PIDFile"].startswith(f"{home}/.server/tmp/")
    assert f"{home}/.server" in service["ReadWritePaths"].split()
    assert int(service["TimeoutStartSec"]) > float(shlex.split(service["ExecStart"])[-1])


def test_the_image_is_made_of_files_that_exist_and_runs_as_nobody_in_particular():
    lines = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text()).splitlines()
    for line in lines:
        if line.startswith("COPY"):
            *sources, _ = [word for word in line.split()[1:] if not word.startswith("--")]
            assert [source for source in sources if not (ROOT / source).exists()] == []
    (user,) = [line.split()[1] for line in lines if line.startswith("USER")]
    assert user.partition(":")[0] not in ("0", "root")
    (extra,) = re.findall(r"'\.\[(\w+)\]'", "\n".join(lines))
    assert f"\n{extra} = [\n" in (ROOT / "pyproject.toml").read_text()


COMMAND = f"""#!{sys.executable}
import sys, time
print(*sys.argv[1:], flush=True)
if "start" in sys.argv:
    time.sleep(30)
    print("ready")
"""


def test_a_container_that_is_told_to_end_while_it_starts_ends_at_once(tmp_path):
    command = tmp_path / "reelscribe"
    command.write_text(COMMAND)
    command.chmod(0o700)
    path = f"{tmp_path}:{os.environ['PATH']}"
    with Popen([DEPLOY / "serve", "--secure"], env={"PATH": path}, stdout=PIPE, text=True) as serve:
        assert serve.stdout.readline() == "server start --secure\n"
        serve.terminate()
        assert serve.stdout.read() == "server stop\n"  # to its end, when nothing is left that could write
    assert serve.returncode == 0


def test_the_container_writes_to_volumes_only_and_mounts_what_exists():
    (service,) = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values()
    assert service["read_only"] is True
    assert "ports" not in service  # they are those of the host's loopback
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    for volume in service["volumes"]:
        if volume["type"] == "bind":
            assert (DEPLOY / volume["source"]).exists()
            assert volume["read_only"] is True
