"""A node with simulated GPUs, as the tests of the agent drive it."""

import contextlib
import json
import re
import shutil
import signal
from typing import Any

import msgspec

from kube import pods
from tessera.errors import Unavailable
from tessera.sim.nvmlsim import Machine
from testbed.cluster import Cluster
from testbed.node import Node
from testbed.processes import until

__all__ = ["HANDED_OVER", "MIG_CONFIG", "GpuNode"]

MIG_CONFIG = "nvidia.com/mig.config"
STATE = "nvidia.com/mig.config.state"
HANDED_OVER = "tessera.dev/device-list-strategy"


class GpuNode:
    """One node, its agent, and what its GPUs show."""

    def __init__(self, cluster: Cluster, node: Node) -> None:
        self.cluster = cluster
        self.node = node
        self._options: tuple[str, ...] = ()
        self._log_begins = 0

    # The agent

    def start_agent(
        self,
        *options: str,
        sharing: dict[str, Any] | None = None,
        flags: dict[str, Any] | None = None,
        policy: dict[str, Any] | None = None,
    ) -> None:
        """Start the agent; `sharing` and `flags` are those of its NVIDIA file, `policy` is its node policy."""
        files = {
            "--sharing-config": {"version": "v1", "sharing": sharing, "flags": flags} if sharing or flags else None,
            "--node-policy": policy,
        }
        for option, content in files.items():
            if content is not None:
                path = self.node.folder / f"{option.strip('-')}.yaml"
                path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
                options = (*options, option, str(path))
        self._options = options
        self._log_begins = len(self._whole_log())
        self.node.start_agent(self.cluster.agent_kubeconfig(self.node.name), "--log-format=json", *options)

    def kill_agent(self) -> None:
        """End the agent as a crash does."""
        process = self.node.process("agent")
        assert process is not None, self.agent_log()
        process.signal(signal.SIGKILL)
        until("end of the agent", lambda: not process.alive, timeout_s=60)

    def stop_agent(self) -> None:
        """End the agent as an upgrade does."""
        self.node.stop_process("agent")

    def let_it_run(self, seconds: float) -> None:
        """Leave the agent alone for a while that the test drew; nothing is expected of it meanwhile."""
        with contextlib.suppress(Unavailable):
            until("nothing", lambda: False, timeout_s=seconds)

    def power_cut(self) -> None:
        """Cut the node's power and boot it: GPUs forget their instances, nothing of the agent runs."""
        self.node.power_off()
        with Machine(self.node.gpu_state) as machine:
            machine.reboot()
        self.cluster.up(self.cluster.desired)

    def start_again(self) -> None:
        """Start the agent with the options it had."""
        self.start_agent(*self._options)

    def until_registered(self, resource: str) -> None:
        """Wait until the agent that was started last offers a resource to the kubelet.

        Until then the Node object shows what a former agent offered, and the kubelet refuses pods that request it.
        """

        def registered() -> bool:
            return any("resource_advertised" in line and f'"{resource}"' in line for line in self.log_lines())

        until(f"registration of {resource}", registered, timeout_s=60, found=self.agent_log)

    def log_lines(self) -> list[str]:
        """Return what the agent that was started last has logged, a JSON object a line."""
        return self._whole_log()[self._log_begins :].splitlines()

    def _whole_log(self) -> str:
        path = self.cluster.processes.log("node1-agent")
        return path.read_text() if path.exists() else ""

    def agent_log(self) -> str:
        return self.cluster.processes.last_words("node1-agent")

    # The node

    def ask_layout(self, name: str) -> None:
        """Set the label that names a MIG configuration."""
        self.cluster.kubectl("label", "node", self.node.name, "--overwrite", f"{MIG_CONFIG}={name}")

    def labels(self) -> dict[str, str]:
        found = self.cluster.get("node", self.node.name)["metadata"]["labels"]
        return {str(key): str(value) for key, value in found.items()}

    def until_state(self, want: str, timeout_s: float = 60) -> None:
        """Wait until the layout label's state is as desired."""
        until(
            f"state of the layout: {want}",
            lambda: self.labels().get(STATE) == want,
            timeout_s=timeout_s,
            found=lambda: f"{self.labels().get(STATE)}; {self.agent_log()}",
        )

    def until_offered(self, *wants: tuple[str, int], timeout_s: float = 90) -> None:
        """Wait until the node offers so many of each resource."""
        try:
            pods.until_allocatable(self.cluster, self.node.name, wants, timeout_s)
        except Unavailable as error:
            raise Unavailable(error.subject, found=f"{error.found}; {self.agent_log()}", expected=str(wants)) from error

    def mig_uuids(self) -> tuple[str, ...]:
        """Return the UUIDs of the MIG devices there are, sorted."""
        with Machine(self.node.gpu_state) as machine:
            told = msgspec.json.encode(machine.describe()).decode()
        return tuple(sorted(set(re.findall(r'"(MIG-[^"]*)"', told))))

    def gpu_uuids(self) -> tuple[str, ...]:
        """Return the UUIDs of the GPUs in order of their indices."""
        with Machine(self.node.gpu_state) as machine:
            return tuple(gpu["uuid"] for gpu in machine.describe()["gpus"])

    def clean(self) -> None:
        """Make the node as it was before the test."""
        pods.remove(self.cluster)
        self.node.stop_process("agent")
        self.cluster.kubectl("label", "node", self.node.name, f"{MIG_CONFIG}-", f"{STATE}-")
        self.cluster.kubectl("annotate", "node", self.node.name, f"{HANDED_OVER}-")
        self.cluster.kubectl("delete", "gpunode", self.node.name, "--ignore-not-found")
        shutil.rmtree(self.node.folder / "var-lib" / "tessera", ignore_errors=True)
        with Machine(self.node.gpu_state) as machine:
            machine.renew()
        pods.until_nothing_is_offered(self.cluster, self.node.name)
