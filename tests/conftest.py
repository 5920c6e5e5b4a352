"""What all tests share: which tests are slow or need real data, the demo media and the demo models."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

# No test may connect to a model hub.
os.environ["HF_HUB_OFFLINE"] = "1"

# Threads of torch that wait for each other spin, which takes as much time again, and more where others use the cores.
os.environ["OMP_NUM_THREADS"] = "1"

# Shells start background processes with Ctrl-C ignored, and these would pass that on to the commands that tests run.
signal.signal(signal.SIGINT, signal.default_int_handler)

# An example that takes long is no failure: the machine may be busy.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

ROOT = Path(__file__).parents[1]

SLOW_FOLDERS = {Path(__file__).parent / name for name in ("bench", "e2e", "real", "vllm")}

EXTERNAL = {"real": ("--real-data", "scripts/test real"), "vllm": ("--vllm", "scripts/test vllm")}
"""Marks of tests that need a folder, which are those of the test folder of this name: the option that names the folder,
and the command that makes it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `scripts/test real FOLDER` and `scripts/test vllm FOLDER` say where their folders are."""
    parser.addoption("--real-data", type=Path, default=ROOT / ".real-data", help="folder of scripts/real_data")
    parser.addoption("--vllm", type=Path, default=ROOT / ".vllm", help="folder of scripts/peers vllm")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say which tests do not run because their folder is not there."""
    return [
        f"{mark}: {config.getoption(option)} does not exist; {command} makes it for tests/{mark}"
        for mark, (option, command) in _absent(config).items()
    ]


def _absent(config: pytest.Config) -> dict[str, tuple[str, str]]:
    return {mark: needed for mark, needed in EXTERNAL.items() if not config.getoption(needed[0]).is_dir()}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests of benchmarks, with a real TorchServe or with real data as slow, and let the longest ones begin first.

    Tests that need a folder are left out where that does not exist.
    """
    for item in items:
        if SLOW_FOLDERS.intersection(item.path.parents):
            item.add_marker(pytest.mark.slow)
        if item.path.parent.name in EXTERNAL:
            item.add_marker(item.path.parent.name)
    left_out = [item for item in items if any(item.get_closest_marker(mark) for mark in _absent(config))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    """Return 0 for tests that share servers, then the numbers of LONGEST, of other slow tests, and of fast ones."""
    if not item.get_closest_marker("slow"):
        return len(LONGEST) + 2
    if item.path.parent.name == "e2e" and item.path.stem not in OWN_SERVERS:
        return 0
    return next((k for k, name in enumerate(LONGEST, 1) if name in item.nodeid), len(LONGEST) + 1)


KILLED_SERVER = ("test_ray", "test_torture")
"""Files of e2e/ that share the server that is killed."""

OWN_SERVERS = (
    *("test_clip_run", "test_models", "test_owned_server", "test_server_life", "test_shot_run"),
    *KILLED_SERVER,
)
"""Files of e2e/ that use none of the servers that all others share."""


LONGEST = ("docs/operations.md", "test_ray", "docs/http-api.md", "[ways0]", "README.md")
"""Parts of the names of the longest tests. If they began last, one process would work while the others have ended."""

UNDIVIDED = ("docs", "bench", "e2e")
"""Folders of which each test is given to a process by itself; of others, each file is."""


class SharedServersScheduling(LoadFileScheduling):
    """Run the tests that share servers in one process, and distribute all other tests over the processes.

    The mark `xdist_group` would say so in the tests themselves, but pytest-xdist 3.8 ignores it under pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = Path(nodeid.split("::")[0])
        if file.parent.name == "e2e":
            if file.stem in KILLED_SERVER:
                return "killed server"
            return file.stem if file.stem in OWN_SERVERS else "shared servers"
        return nodeid if file.parent.name in UNDIVIDED else str(file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> SharedServersScheduling | None:
    """Replace what pytest-xdist does with `--dist loadfile`; other values of `--dist` mean what they always do."""
    return SharedServersScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(autouse=True)
def no_priority() -> Iterator[None]:
    """With real-time priority, which their processes inherit, the tests that follow would starve everything else."""
    yield
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


TERMINAL_VARIABLES = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""What rich reads besides TERM."""


@pytest.fixture(autouse=True)
def nothing_of_the_user(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options and the terminal of whoever runs the tests reach neither the tests nor the commands that they run."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "no options"))
    for variable in ("REELSCRIBE_SERVER", "REELSCRIBE_KEY_FILE", *TERMINAL_VARIABLES):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture(scope="session")
def media() -> Path:
    return ROOT / "demo" / "media"


@pytest.fixture(scope="session")
def demo_model() -> str:
    return str(ROOT / "demo" / "models" / "captioner")


@pytest.fixture(scope="session")
def clip_model() -> str:
    return str(ROOT / "demo" / "models" / "clips")


@pytest.fixture(scope="session")
def demo_speech() -> str:
    return str(ROOT / "demo" / "models" / "speech")
