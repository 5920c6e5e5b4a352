"""The files in deploy/, and the metrics in docs/operations.md, fit the rest of the project."""

import json
import os
import re
import shlex
from configparser import ConfigParser
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
import yaml

from reelscribe.reporting.metrics import RunMetrics
from reelscribe.reporting.progress import Silent
from reelscribe.server.config_properties import read_properties
from support.commands import command_options
from support.patience import PATIENCE
from support.snapshots import BAD, FRAMES, ON_NODES, SOUND

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
OPERATIONS = ROOT / "docs" / "operations.md"
CONFIG = read_properties((ROOT / "config.properties").read_text())
PROMQL = {"sum", "by", "rate", "__rate_interval", "e6"}
"""Words of Prometheus's query language, and of numbers, in the dashboard."""


def server_metrics() -> dict[str, set[str]]:
    """The labels of each metric that TorchServe exports, by name."""
    declared = yaml.safe_load((ROOT / "clients" / "reelscribe" / "server" / "torchserve_metrics.yaml").read_text())
    kinds = [kind for part in ("ts_metrics", "model_metrics") for kind in declared[part].values()]
    return {metric["name"]: set(metric["dimensions"]) for kind in kinds for metric in kind}


def run_metrics() -> dict[str, set[str]]:
    """The labels of each metric that a run exports, by name."""
    metrics = RunMetrics(Silent())
    metrics.show(replace(ON_NODES, tracks=(FRAMES, SOUND)))
    metrics.finished(BAD.source.path, BAD.error)
    return {sample.name: set(sample.labels) for family in metrics.collect() for sample in family.samples}


METRICS = {**server_metrics(), **run_metrics()}


def panels() -> list[dict]:
    return json.loads((DEPLOY / "grafana-dashboard.json").read_text())["panels"]


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_metrics_and_labels_of_a_panel_exist(panel):
    for target in panel["targets"]:
        names = set(re.findall(r"[A-Za-z_]\w*", target["expr"])) - PROMQL
        metrics = names & METRICS.keys()
        labels = set().union(*(METRICS[name] for name in metrics))
        assert metrics
        assert names - metrics <= labels
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels | {"instance"}


def test_every_metric_of_reelscribe_is_on_the_dashboard_and_in_the_manual():
    expressions = " ".join(target["expr"] for panel in panels() for target in panel["targets"])
    manual = OPERATIONS.read_text()
    for name in METRICS:
        if name.startswith("reelscribe_") and name != "reelscribe_run_seconds":
            assert name in expressions
            assert f"`{name}`" in manual


def test_metrics_in_the_manual_exist():
    named = set(re.findall(r"`((?:reelscribe|ts)_\w+)`", OPERATIONS.read_text()))
    assert named <= METRICS.keys()


def test_prometheus_scrapes_the_addresses_of_the_server_and_of_runs():
    jobs = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    targets = [target for job in jobs for static in job["static_configs"] for target in static["targets"]]
    assert f"http://{targets[0]}" == CONFIG["metrics_address"]
    assert f"--metrics-port {targets[1].rpartition(':')[2]}" in OPERATIONS.read_text()


def test_the_systemd_unit_runs_commands_that_exist_and_can_write_to_the_servers_folder():
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(DEPLOY / "reelscribe.service")
    service, commands = unit["Service"], command_options()
    home = service["WorkingDirectory"]
    for verb in ("ExecStart", "ExecStop"):
        program, *words = shlex.split(service[verb])
        assert program == f"{home}/.venv/bin/reelscribe"
        assert {word for word in words if word.startswith("--")} <= commands[" ".join(words[:2])]
    assert service["PIDFile"].startswith(f"{home}/.server/tmp/")
    assert f"{home}/.server" in service["ReadWritePaths"].split()
    assert int(service["TimeoutStartSec"]) > float(shlex.split(service["ExecStart"])[-1])


def test_the_image_copies_files_that_exist_and_does_not_run_as_root():
    lines = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text()).splitlines()
    for line in lines:
        if line.startswith("COPY"):
            *sources, _ = [word for word in line.split()[1:] if not word.startswith("--")]
            assert [source for source in sources if not (ROOT / source).exists()] == []
    (user,) = [line.split()[1] for line in lines if line.startswith("USER")]
    assert user.partition(":")[0] not in ("0", "root")
    (extra,) = re.findall(r"'\.\[(\w+)\]'", "\n".join(lines))
    assert f"\n{extra} = [\n" in (ROOT / "pyproject.toml").read_text()


FAKE_REELSCRIBE = f"""#!/bin/sh
printf '%s\\n' "$*"
if [ "$2" = start ]; then
    exec sleep {PATIENCE}
fi
"""


def test_a_container_that_is_terminated_while_its_server_starts_ends_at_once(tmp_path):
    command = tmp_path / "reelscribe"
    command.write_text(FAKE_REELSCRIBE)
    command.chmod(0o700)
    path = f"{tmp_path}:{os.environ['PATH']}"
    with Popen([DEPLOY / "serve", "--secure"], env={"PATH": path}, stdout=PIPE, text=True) as serve:
        assert serve.stdout.readline() == "server start --secure\n"
        serve.terminate()
        assert serve.stdout.read() == "server stop\n"  # the end of the output, when no process is left
    assert serve.returncode == 0


def test_a_container_ends_when_its_server_does(tmp_path):
    command = tmp_path / "reelscribe"
    command.write_text("#!/bin/sh\nmkdir -p .server/tmp\n: >.server/tmp/.model_server.pid\n")
    command.chmod(0o700)
    path = f"{tmp_path}:{os.environ['PATH']}"
    with Popen([DEPLOY / "serve"], env={"PATH": path}, cwd=tmp_path, stderr=PIPE, text=True) as serve:
        assert serve.communicate(timeout=PATIENCE)[1] == "TorchServe has ended\n"
    assert serve.returncode == 1


def test_the_container_can_write_to_volumes_only_and_mounts_files_that_exist():
    (service,) = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values()
    assert service["read_only"] is True
    assert "ports" not in service  # it uses the ports of the host
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    for volume in service["volumes"]:
        if volume["type"] == "bind":
            assert (DEPLOY / volume["source"]).exists()
            assert volume["read_only"] is True
