"""TorchServe's settings: the file's format, and what is refused or warned of."""

from pathlib import Path

import pytest

from reelscribe.errors import StartupError
from reelscribe.server.config_properties import (
    check_addresses,
    check_tls,
    complete_settings,
    exposed,
    read_properties,
    risks,
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
def test_the_settings_of_this_repository_are_safe(name):
    settings = complete_settings(read_properties((ROOT / name).read_text()), ROOT / name, model_api=False)
    assert exposed(settings) == []
    assert risks(settings, CONFIG) == []
    assert settings["enable_model_api"] == "false"
    assert settings["allowed_urls"] == ""


@pytest.mark.parametrize(("name", "size"), [("config.properties", 50 * 2**20), ("config-single.properties", 8 * 2**20)])
def test_requests_have_at_most_the_documented_size(name, size):
    assert read_properties((ROOT / name).read_text())["max_request_size"] == str(size)


def test_properties_are_names_and_values():
    text = "# comment\n a = b \n\nurl=http://x:1/?a=b\nempty=\n"
    assert read_properties(text) == {"a": "b", "url": "http://x:1/?a=b", "empty": ""}


def test_escapes_are_read_as_java_reads_them():
    text = "disable_token_authorization=\\u0074rue\nallowed_urls=https://x\\\\.com\n"
    assert read_properties(text) == {"disable_token_authorization": "true", "allowed_urls": "https://x\\.com"}


def test_lines_end_only_at_newlines_as_in_java():
    assert read_properties("a=b\x0cc=d\x85e=f\u2028g=h\n") == {"a": "b\x0cc=d\x85e=f\u2028g=h"}


def test_written_settings_are_ascii_and_read_back_unchanged():
    settings = {"keystore": "/srv/\u00fcber \U0001f600\\x/k", "metrics_config": "/a\nb=c"}
    text = write_properties(settings)
    assert text.isascii()
    assert text == "keystore=/srv/\\u00fcber \\ud83d\\ude00\\u005cx/k\nmetrics_config=/a\\u000ab=c\n"
    assert read_properties(text) == settings


def test_java_options_that_need_an_escape_are_refused():
    with pytest.raises(StartupError, match="vmargs: expected ASCII without backslashes"):
        complete_settings({**LOOPBACK, "vmargs": "-Dx=\u00e4"}, CONFIG, model_api=False)


@pytest.mark.parametrize(
    "line",
    ["inference_address: http://0.0.0.0:8080", "a b=c", "novalue", "long=value\\", "a=\\t", "a=\\u12", "\\u0061=b"],
)
def test_a_line_that_java_would_read_differently_is_refused(line):
    with pytest.raises(StartupError, match="expected lines like name=value"):
        read_properties(f"a=b\n{line}\n")


@pytest.mark.parametrize("address", ["http://[::1]:8080", "http://127.0.0.1", "127.0.0.1:8080", "unix:/tmp/x", ""])
def test_a_malformed_address_is_refused(address):
    with pytest.raises(StartupError, match="management_address: expected an address like"):
        check_addresses({**LOOPBACK, "management_address": address}, CONFIG)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"inference_address": "http://0.0.0.0:8080"}, "would not be encrypted"),
        ({"management_address": "http://example.com:8081"}, "would not be encrypted"),
        ({**HTTPS, "disable_token_authorization": "TRUE"}, "lets everybody in"),
        ({"metrics_address": "https://10.0.0.1:8082"}, "requires no token"),
        ({"grpc_inference_address": "0.0.0.0"}, "would not be encrypted"),
        ({"grpc_management_address": "10.0.0.1", "enable_grpc_ssl": "true"}, "would not be encrypted"),
    ],
)
def test_each_address_that_strangers_can_reach_is_listed_with_the_reason(change, reason):
    check_addresses({**LOOPBACK, **change}, CONFIG)
    lines = exposed({**LOOPBACK, **change})
    assert len(lines) == len([name for name in change if "address" in name])
    assert all(reason in line for line in lines)


def test_addresses_with_tls_and_tokens_may_face_strangers():
    assert exposed({**LOOPBACK, **HTTPS}) == []


def test_https_and_a_certificate_need_each_other():
    check_tls({**LOOPBACK, **HTTPS}, CONFIG, certificate=True)
    with pytest.raises(StartupError, match="give --certificate and --private-key"):
        check_tls({**LOOPBACK, **HTTPS}, CONFIG, certificate=False)
    with pytest.raises(StartupError, match="no address is https"):
        check_tls(LOOPBACK, CONFIG, certificate=True)


def test_a_keystore_and_its_password_do_not_belong_in_the_settings():
    with pytest.raises(StartupError, match="keystore_pass: not allowed in a file that others can read"):
        complete_settings({**LOOPBACK, "keystore_pass": "changeit"}, CONFIG, model_api=False)


def test_by_default_archives_come_from_the_model_store_alone():
    completed = complete_settings(LOOPBACK, CONFIG, model_api=True)
    assert completed == {**completed, **LOOPBACK, "allowed_urls": "", "enable_model_api": "true"}


def test_risky_settings_are_listed_even_on_loopback():
    changes = {"disable_token_authorization": "true", "allowed_urls": "https://.*"}
    lines = risks(complete_settings({**LOOPBACK, **changes}, CONFIG, model_api=True), CONFIG)
    assert len(lines) == 3


def test_settings_of_ours_work_wherever_they_are_copied(tmp_path):
    for name in ("config.properties", "config-single.properties"):
        copy = tmp_path / name
        copy.write_text(CONFIG.with_name(name).read_text())
        completed = complete_settings(read_properties(copy.read_text()), copy, model_api=False)
        assert Path(completed["metrics_config"]).is_file()


def test_the_metrics_file_is_found_beside_the_settings(tmp_path):
    (tmp_path / "metrics.yaml").touch()
    settings = {**LOOPBACK, "metrics_config": "metrics.yaml"}
    path = complete_settings(settings, tmp_path / "config.properties", model_api=False)["metrics_config"]
    assert path == str(tmp_path / "metrics.yaml")
    with pytest.raises(StartupError, match=r"metrics_config: expected a file, got .*other/metrics\.yaml"):
        complete_settings(settings, tmp_path / "other" / "config.properties", model_api=False)
