"""A host that cannot sandbox is told what to install or set; limits that make no sense are refused by name."""

import asyncio

import pytest

from agentjax.envs.sandbox import SandboxConfig, SandboxUnavailable, make_pool
from agentjax.envs.sandbox.host import explain_refusal

SETTINGS = {
    "kernel/apparmor_restrict_unprivileged_userns": ("1", "AppArmor .*kernel.apparmor_restrict_unprivileged_userns=0"),
    "kernel/unprivileged_userns_clone": ("0", "kernel.unprivileged_userns_clone=1"),
    "user/max_user_namespaces": ("0", "user.max_user_namespaces=10000"),
}
REFUSAL = "bwrap: setting up uid map: Permission denied"


def start(**settings):
    async def main():
        await make_pool(SandboxConfig(sessions=1, **settings)).start()

    asyncio.run(main())


def test_a_missing_bwrap_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailable, match="apt-get install bubblewrap.*backend=unsandboxed_subprocess"):
        start()


def test_a_refusing_bwrap_is_quoted_with_advice(monkeypatch, tmp_path):
    bwrap = tmp_path / "bwrap"
    bwrap.write_text(f"#!/bin/sh\necho '{REFUSAL}' >&2\nexit 1\n")
    bwrap.chmod(0o755)
    tmp_path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("os.geteuid", lambda: 1000)  # the script's folder is private to the user of the tests
    with pytest.raises(SandboxUnavailable, match=f"{REFUSAL}.*unsandboxed_subprocess"):
        start()


@pytest.mark.parametrize("name", SETTINGS)
def test_the_refusing_setting_is_named(tmp_path, name):
    value, advice = SETTINGS[name]
    setting = tmp_path / "sys" / name
    setting.parent.mkdir(parents=True)
    setting.write_text(value + "\n")
    said = explain_refusal(REFUSAL, tmp_path)
    assert REFUSAL in said and advice.rpartition(".*")[2] in said
    assert "docker run" not in said


def test_without_a_refusing_setting_a_container_is_suspected(tmp_path):
    assert "docker run --security-opt" in explain_refusal(REFUSAL, tmp_path)
    assert "docker" not in explain_refusal("python3: cannot open shared object file", tmp_path)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("sessions", 0),
        ("timeout_s", 0.0),
        ("timeout_s", float("nan")),
        ("max_output_bytes", 0),
        ("memory_bytes", 1 << 20),
        ("file_bytes", 1),
        ("tmpfs_bytes", 0),
        ("processes", 1),
        ("cpu_s", 0),
    ],
)
def test_impossible_limits_are_refused_by_name(setting, value):
    with pytest.raises(ValueError, match=f"sandbox.{setting} must be .*got {value}"):
        SandboxConfig(**{setting: value})
