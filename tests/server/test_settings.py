"""Which settings a server starts with, and what of it others could reach."""

from pathlib import Path

import pytest

from reelscribe.errors import StartupError, UsageError
from reelscribe.server.environment import server_environment
from reelscribe.server.options import StartOptions
from reelscribe.server.settings import (
    check_addresses,
    check_tls,
    complete,
    exposed,
    read_properties,
    surprises,
    write_properties,
)

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config.properties"
LOOPBACK = {
    **{f"{name}_address": f"http://127.0.0.1:{port}" for port, name in enumerate(("inference", "management"), 8080)},
    "metrics_address": "http://127.0.0.1:8082",
    "grpc_inference_address": "127.0.0.1",
    "grpc_inference_port": "7070",
    "grpc_management_address": "localhost",
    "grpc_management_port": "7071",
}
HTTPS = dict.fromkeys(("inference_address", "management_address"), "https://0.0.0.0:8443")


@pytest.mark.parametrize("name", ["config.properties", "config-single.properties"])
def test_our_settings_are_for_loopback_with_tokens_and_the_model_store_alone(name):
    settings = complete(read_properties((ROOT / name).read_text()), ROOT / name, model_api=False)
    assert exposed(settings) == []
    assert surprises(settings, CONFIG) == []
    assert settings["enable_model_api"] == "false"
    assert settings["allowed_urls"] == ""


def test_properties_are_names_and_values():
    text = "# comment\n a = b \n\nurl=http://x:1/?a=b\nempty=\n"
    assert read_properties(text) == {"a": "b", "url": "http://x:1/?a=b", "empty": ""}


def test_escapes_are_read_as_java_reads_them():
    text = "disable_token_authorization=\\u0074rue\nallowed_urls=https://x\\\\.com\n"
    assert read_properties(text) == {"disable_token_authorization": "true", "allowed_urls": "https://x\\.com"}


def test_lines_end_where_javas_do():
    assert read_properties("a=b\x0cc=d\x85e=f\u2028g=h\n") == {"a": "b\x0cc=d\x85e=f\u2028g=h"}


def test_what_is_written_is_ascii_and_read_as_it_was():
    settings = {"keystore": "/srv/\u00fcber \U0001f600\\x/k", "metrics_config": "/a\nb=c"}
    text = write_properties(settings)
    assert text.isascii()
    assert text == "keystore=/srv/\\u00fcber \\ud83d\\ude00\\u005cx/k\nmetrics_config=/a\\u000ab=c\n"
    assert read_properties(text) == settings


def test_options_of_java_that_need_an_escape_are_refused():
    with pytest.raises(StartupError, match="vmargs: expected ASCII without backslashes"):
        complete({**LOOPBACK, "vmargs": "-Dx=\u00e4"}, CONFIG, model_api=False)


@pytest.mark.parametrize(
    "line",
    ["inference_address: http://0.0.0.0:8080", "a b=c", "novalue", "long=value\\", "a=\\t", "a=\\u12", "\\u0061=b"],
)
def test_what_java_would_read_otherwise_is_refused(line):
    with pytest.raises(StartupError, match="expected lines like name=value"):
        read_properties(f"a=b\n{line}\n")


@pytest.mark.parametrize("address", ["http://[::1]:8080", "http://127.0.0.1", "127.0.0.1:8080", "unix:/tmp/x", ""])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(StartupError, match="management_address: expected an address like"):
        check_addresses({**LOOPBACK, "management_address": address}, CONFIG)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"inference_address": "http://0.0.0.0:8080"}, "would not be encrypted"),
        ({"management_address": "http://example.com:8081"}, "would not be encrypted"),
        ({**HTTPS, "disable_token_authorization": "TRUE"}, "lets everybody in"),
        ({"metrics_address": "https://10.0.0.1:8082"}, "asks nobody for a token"),
        ({"grpc_inference_address": "0.0.0.0"}, "would not be encrypted"),
        ({"grpc_management_address": "10.0.0.1", "enable_grpc_ssl": "true"}, "would not be encrypted"),
    ],
)
def test_what_others_could_reach_is_told_with_the_reason(change, reason):
    check_addresses({**LOOPBACK, **change}, CONFIG)
    lines = exposed({**LOOPBACK, **change})
    assert len(lines) == len([name for name in change if "address" in name])
    assert all(reason in line for line in lines)


def test_tls_and_tokens_may_face_others():
    assert exposed({**LOOPBACK, **HTTPS}) == []


def test_https_needs_our_certificate_and_a_certificate_https():
    check_tls({**LOOPBACK, **HTTPS}, CONFIG, certificate=True)
    with pytest.raises(StartupError, match="give --certificate and --private-key"):
        check_tls({**LOOPBACK, **HTTPS}, CONFIG, certificate=False)
    with pytest.raises(StartupError, match="no address is https"):
        check_tls(LOOPBACK, CONFIG, certificate=True)


def test_a_keystore_and_its_password_do_not_belong_into_the_settings():
    with pytest.raises(StartupError, match="keystore_pass: no settings for a file that others read"):
        complete({**LOOPBACK, "keystore_pass": "changeit"}, CONFIG, model_api=False)


def test_without_a_word_on_it_archives_come_from_the_model_store_alone():
    assert complete(LOOPBACK, CONFIG, model_api=True) == {**LOOPBACK, "allowed_urls": "", "enable_model_api": "true"}


def test_what_is_unusual_on_loopback_is_said():
    changes = {"disable_token_authorization": "true", "allowed_urls": "https://.*"}
    lines = surprises(complete({**LOOPBACK, **changes}, CONFIG, model_api=True), CONFIG)
    assert len(lines) == 3


def test_the_metrics_file_is_found_beside_the_settings(tmp_path):
    (tmp_path / "metrics.yaml").touch()
    settings = {**LOOPBACK, "metrics_config": "metrics.yaml"}
    path = complete(settings, tmp_path / "config.properties", model_api=False)["metrics_config"]
    assert path == str(tmp_path / "metrics.yaml")
    with pytest.raises(StartupError, match=r"metrics_config: .*other/metrics\.yaml is no file"):
        complete(settings, tmp_path / "other" / "config.properties", model_api=False)


SECRETS = {"HF_TOKEN": "1", "HF_HUB_TOKEN": "2", "AWS_SECRET_ACCESS_KEY": "3", "SSH_AUTH_SOCK": "4"}
USEFUL = {"PATH": "/bin", "LC_ALL": "C", "CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "1", "HF_HOME": "/hf"}


def test_secrets_stay_outside_and_what_computing_needs_goes_in():
    assert server_environment({**SECRETS, **USEFUL, "TS_CONFIG_FILE": "x"}) == USEFUL


PROXIES = {"https_proxy": "http://me:secret@proxy:3128", "HTTP_PROXY": "me:secret@proxy:3128"}
ENDPOINT = {"HF_ENDPOINT": "https://me:secret@mirror/"}
HARMLESS = {"http_proxy": "http://proxy:3128", "no_proxy": "localhost", "PYTHONPATH": "/srv/a@2:/srv/b"}


def test_an_address_with_a_password_in_it_stays_outside_unless_it_is_named():
    assert server_environment({**PROXIES, **ENDPOINT, **HARMLESS}) == HARMLESS
    assert server_environment({**PROXIES, **HARMLESS}, PROXIES) == {**PROXIES, **HARMLESS}


def test_a_secret_that_is_named_goes_in():
    assert server_environment({**SECRETS, **USEFUL}, ["HF_TOKEN"]) == {**USEFUL, "HF_TOKEN": "1"}


@pytest.mark.parametrize(("name", "reason"), [("NOT_THERE", "not in the env"), ("TS_X", "into its config.properties")])
def test_a_variable_that_cannot_be_passed_is_named(name, reason):
    with pytest.raises(UsageError, match=f"--pass-env: {name}.*{reason}"):
        server_environment({"TS_X": "1"}, [name])


def test_options_are_remembered_with_whole_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = StartOptions(Path("c"), Path("store"), 5.0, True, False, Path("cert"), Path("key"), ("A",), {"a": "b"})
    options.save(tmp_path / "saved")
    whole = {name: tmp_path / getattr(options, name) for name in ("config", "model_store", "certificate")}
    assert StartOptions.load(tmp_path / "saved") == StartOptions(
        **whole,
        private_key=tmp_path / "key",
        load_seconds=5.0,
        model_api=True,
        pass_environment=("A",),
        overrides={"a": "b"},
    )


def test_a_certificate_without_a_key_is_refused():
    with pytest.raises(UsageError, match="belong together"):
        StartOptions(certificate=Path("c"))


def test_remembered_options_that_are_damaged_are_said(tmp_path):
    (tmp_path / "saved").write_text("{}")
    with pytest.raises(StartupError, match="not what a server was started with"):
        StartOptions.load(tmp_path / "saved")
