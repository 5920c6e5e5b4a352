"""The history of workers is read from lines as TorchServe writes them to its log."""

import gzip

import pytest

from reelscribe.server.instance import Instance
from reelscribe.server.logs import (
    best_explanation,
    log_end,
    why_it_cannot_load,
    why_it_was_not_accepted,
    worker_histories,
)

LOADED = "WORKER_STARTED -> WORKER_MODEL_LOADED"
STARTED = "null -> WORKER_STARTED"
FAILED = "WORKER_STARTED -> WORKER_STOPPED"


@pytest.fixture
def instance(tmp_path):
    (tmp_path / "logs").mkdir()
    return Instance(tmp_path)


def write(instance: Instance, *events: str) -> None:
    """An event may have several lines."""
    with (instance.logs / "ts_log.log").open("a") as log:
        log.writelines(f"{event}\n" for event in events)


def rotate(instance: Instance, number: int) -> None:
    """Begin a new log, as Log4j does."""
    log = instance.logs / "ts_log.log"
    with gzip.open(instance.logs / f"ts_log.{number}.log.gz", "wb") as old:
        old.write(log.read_bytes())
    new = log.with_name("new")  # another file while the old one is still there, so that their inodes differ
    new.touch()
    new.replace(log)


def change(change: str, model: str = "captioner_1.0", worker: int = 9000) -> str:
    thread = f"W-{worker}-{model}"
    return (
        f"2026-11-21T14:43:57,129 [DEBUG] {thread} org.pytorch.serve.wlm.WorkerThread - {thread} State change {change}"
    )


def output(text: str, model: str = "captioner_1.0", worker: int = 9000) -> str:
    return f"2026-11-21T14:44:08,936 [INFO ] W-{worker}-{model}-stdout MODEL_LOG - {text}"


def main(text: str) -> str:
    return f"2026-11-21T14:44:08,936 [ERROR] main org.pytorch.serve.archive.model.ModelArchive - {text}"


def test_a_worker_that_loads_is_no_reason(instance):
    assert why_it_cannot_load(instance) is None
    write(instance, change(STARTED), output("Loading weights"))
    (worker,) = worker_histories(instance)
    assert (worker.id, worker.model, worker.was_ready, worker.failure) == ("9000", "captioner_1.0", False, None)


def test_what_the_handler_says_is_the_reason_and_not_what_python_adds(instance):
    write(instance, change(STARTED), output("cannot load: StartupError: no weights"), output("OSError: [Errno 2]"))
    assert why_it_cannot_load(instance) == "StartupError: no weights"


def test_an_error_of_python_is_one_when_the_worker_has_ended(instance):
    write(instance, change(STARTED), output("ModuleNotFoundError: No module named 'handler'"))
    write(instance, output("ModuleNotFoundError: No module named 'ts.torch_handler.handler'"))
    assert why_it_cannot_load(instance) is None
    write(instance, change(FAILED))
    assert why_it_cannot_load(instance) == "ModuleNotFoundError: No module named 'handler'"


def test_an_error_of_java_belongs_to_the_worker_of_the_line_before(instance):
    error = "org.pytorch.serve.wlm.WorkerInitializationException: Backend worker did not respond in given time"
    write(instance, change(STARTED), change(STARTED, worker=9001), main("something"))
    write(instance, f"{output('it', worker=9001)}\n{error}\n\tat java.lang.Thread.run")
    write(instance, f"{output('ends', worker=9001)}\njava.lang.InterruptedException: null", change(FAILED, worker=9001))
    assert {worker.id: worker.failure for worker in worker_histories(instance)} == {"9000": None, "9001": error}


def test_a_worker_that_is_killed_while_it_loads_has_failed_but_may_do_better(instance):
    write(instance, change(STARTED), change(FAILED))
    (worker,) = worker_histories(instance)
    assert "said nothing" in worker.failure
    assert why_it_cannot_load(instance) is None


def test_a_worker_that_was_ready_and_died_has_not_failed(instance):
    write(instance, change(STARTED), output("ValueError: of a request"), change(LOADED))
    write(instance, output("RuntimeError: of another"), change("WORKER_MODEL_LOADED -> WORKER_STOPPED"))
    write(instance, change("WORKER_STOPPED -> WORKER_STARTED"))
    (worker,) = worker_histories(instance)
    assert (worker.was_ready, worker.failure) == (True, None)
    write(instance, output("OSError: no weights any more"), change(FAILED))
    (worker,) = worker_histories(instance)
    assert (worker.was_ready, worker.failure) == (True, "OSError: no weights any more")


def test_a_worker_that_got_ready_in_the_end_has_not_failed(instance):
    write(instance, change(STARTED), output("cannot load: OSError: x"), change(FAILED))
    write(instance, change("WORKER_STOPPED -> WORKER_STARTED"), change(LOADED))
    assert why_it_cannot_load(instance) is None


def test_a_worker_that_was_scaled_down_is_none(instance):
    write(instance, change(STARTED), change(LOADED), change("WORKER_MODEL_LOADED -> WORKER_SCALED_DOWN"))
    write(instance, change("WORKER_SCALED_DOWN -> WORKER_STOPPED"))
    assert worker_histories(instance) == []


def test_a_worker_that_was_scaled_down_before_is_no_reason(instance):
    write(instance, change(STARTED), change("WORKER_STOPPED -> WORKER_SCALED_DOWN"))
    since = log_end(instance)
    error = "java.io.IOException: error=2, No such file or directory"  # its folder is gone
    write(instance, error, change("WORKER_SCALED_DOWN -> WORKER_STOPPED"))
    assert why_it_cannot_load(instance, "captioner", "1.0", since=since) is None


def test_one_version_is_not_told_the_reason_of_another(instance):
    write(instance, change(STARTED, "captioner_2.0"), output("cannot load: OSError: x", "captioner_2.0"))
    assert why_it_cannot_load(instance, "captioner", "1.0") is None
    assert why_it_cannot_load(instance, "captioner", "2.0") == "OSError: x"


def test_what_was_logged_before_does_not_count(instance):
    write(instance, change(STARTED), output("cannot load: OSError: the old one"))
    before = log_end(instance)
    assert why_it_cannot_load(instance, "captioner", "1.0", since=before) is None
    write(instance, output("cannot load: OSError: the new one"))
    assert why_it_cannot_load(instance, "captioner", "1.0", since=before) == "OSError: the new one"


@pytest.mark.parametrize("lines", [1, 99])
def test_after_a_new_log_has_begun_all_of_it_counts_however_long_it_is(instance, lines):
    write(instance, change(STARTED), *[output("much")] * 9)
    before = log_end(instance)
    rotate(instance, 1)
    write(instance, output("cannot load: OSError: x"), *[output("much")] * lines)
    assert why_it_cannot_load(instance, "captioner", "1.0", since=before) == "OSError: x"


def test_of_the_log_before_what_came_after_the_position_counts(instance):
    write(instance, output("cannot load: OSError: the old one"))
    before = log_end(instance)
    write(instance, output("cannot load: OSError: the new one", worker=9001))
    rotate(instance, 1)
    assert [worker.reason for worker in worker_histories(instance, before)] == ["OSError: the new one"]


def test_a_worker_that_restarts_while_a_new_log_begins_was_ready_before(instance):
    write(instance, output("of long ago", worker=9001))
    rotate(instance, 9)
    write(instance, change(STARTED), change(LOADED), change("WORKER_MODEL_LOADED -> WORKER_STOPPED"))
    rotate(instance, 10)
    write(instance, change("WORKER_STOPPED -> WORKER_STARTED"))
    (worker,) = worker_histories(instance)
    assert (worker.was_ready, worker.failure) == (True, None)


def test_an_older_log_that_is_still_being_compressed_is_read_as_far_as_it_goes(instance):
    write(instance, change(STARTED))
    rotate(instance, 1)
    older = instance.logs / "ts_log.1.log.gz"
    older.write_bytes(older.read_bytes()[:-9])
    write(instance, output("cannot load: OSError: x"))
    assert why_it_cannot_load(instance) == "OSError: x"


def test_what_torchserve_itself_does_not_accept_is_a_reason_with_its_cause(instance):
    cause = "Caused by: org.yaml.snakeyaml.ParserException: while parsing"
    event = "Failed to parse model config file x.yaml\nserve.InvalidModelException: Failed\n\tat some.java"
    write(instance, main("before"), main(f"{event}\n{cause}\n in 'reader', line 1"), main("after"))
    reason = "Failed to parse model config file x.yaml: org.yaml.snakeyaml.ParserException: while parsing"
    assert why_it_cannot_load(instance) == reason
    assert why_it_cannot_load(instance, "captioner", "1.0") is None


def test_why_java_itself_ended_is_in_the_console(instance):
    (instance.logs / "console.log").write_text("Invalid configuration: a port\n\tat java\nlast line\n")
    assert best_explanation(instance).startswith("Invalid configuration: a port (see ")


def test_an_error_of_torchserve_is_the_reason_where_the_console_has_none(instance):
    (instance.logs / "console.log").write_text("Model server started.\n")
    write(instance, main("Unable to bind"), output("a warning"))
    assert best_explanation(instance).startswith("Unable to bind (see ")


def added(version: str, thread: str = "main") -> str:
    return (
        f"2026-11-21T17:46:07,975 [DEBUG] {thread} org.pytorch.serve.wlm.ModelVersionedRefs"
        f" - Adding new version {version} for model captioner"
    )


def gpu_ignored(gpu: int, thread: str = "main") -> str:
    return (
        f"2026-11-21T17:46:07,974 [WARN ] {thread} org.pytorch.serve.wlm.Model"
        f" - Invalid deviceId:{gpu}, ignore deviceIds list"
    )


def test_an_archive_for_gpus_that_are_not_there_cannot_be_loaded(instance):
    write(instance, added("1.0"), gpu_ignored(3), added("2.0"), change(STARTED, "captioner_2.0"))
    reason = why_it_cannot_load(instance)
    assert "the archive of captioner 2.0 asks for GPU 3, and TorchServe sees none of that number" in reason
    assert why_it_cannot_load(instance, "captioner", "2.0") == reason
    assert why_it_cannot_load(instance, "captioner", "1.0") is None


def test_registrations_at_once_are_told_apart_by_their_threads(instance):
    write(instance, gpu_ignored(0, "epoll-1"), added("1.0", "epoll-2"), added("2.0", "epoll-1"))
    assert why_it_cannot_load(instance, "captioner", "1.0") is None
    assert "asks for GPU 0" in why_it_cannot_load(instance, "captioner", "2.0")


def test_a_setting_that_torchserve_ignored_is_told_of_a_registration(instance):
    before = log_end(instance)
    line = "2026-11-21T17:46:07,909 [WARN ] epoll-1 org.pytorch.serve.archive.model.ModelConfig - Invalid minWorkers: "
    write(instance, f"{line}many, should be integer", added("3.0", "epoll-1"))
    assert why_it_was_not_accepted(instance, before) == "Invalid minWorkers: many, should be integer"


def test_a_server_that_takes_too_long_is_explained_by_what_a_loading_worker_said_last(instance):
    console = instance.logs / "console.log"
    console.write_text("nvidia-smi not available or failed: Cannot run program\nModel server started.\n")
    assert best_explanation(instance).startswith("it said nothing ")
    write(instance, change(STARTED, worker=9001), output("of long ago", worker=9001), change(LOADED, worker=9001))
    assert best_explanation(instance).startswith("it said nothing ")
    write(instance, change(STARTED), output("Loading weights: 50%"))
    assert best_explanation(instance).startswith("a worker said last: Loading weights: 50% (see ")
    console.write_text("java.lang.OutOfMemoryError: Java heap space\n")
    assert best_explanation(instance).startswith("java.lang.OutOfMemoryError")
