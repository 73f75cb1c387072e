"""The command of a notebook."""

from tessera.api.kubernetes.notebooks import notebook_command


def test_a_notebook_is_reached_by_its_own_pod_alone_and_ends_when_idle() -> None:
    command = notebook_command("main()", 1800)
    assert command[:3] == ("python3", "-c", "main()")
    assert command[3:5] == ("--ip=127.0.0.1", "--port=8888")
    assert "--ServerApp.shutdown_no_activity_timeout=1800" in command
    assert "--MappingKernelManager.cull_interval=60" in command
    assert "--MappingKernelManager.cull_interval=30" in notebook_command("main()", 30)
