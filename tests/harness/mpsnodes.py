"""A node with NVIDIA's control program played."""

import os
import subprocess
from pathlib import Path

import msgspec

from tessera.agent.sharing.mpsprocesses import MpsSettings
from tessera.agent.sharing.mpssupervisor import MpsSupervisor
from tessera.clients.gpu import MemoryDriver
from tessera.core.cluster.mpstargets import MpsTarget
from tessera.core.gpu.inventory import ComputeMode
from tessera.core.node.mpslifecycle import DaemonRecord, DaemonState
from tessera.log import logger
from tessera.sim.mpscontrol import install


class Bench:
    """A node with two GPUs, and whatever agents come and go on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.program = install(root / "bin")
        self.driver = MemoryDriver.of("T4", "T4")
        self.now = 0.0
        self.agent = self.new_agent()

    def new_agent(self, program: Path | None = None, answer_s: float = 20.0) -> MpsSupervisor:
        settings = MpsSettings(
            program=str(program or self.program), root=self.root / "mps", answer_s=answer_s, start_s=30.0
        )
        return MpsSupervisor(self.driver, settings, logger(), clock=lambda: self.now)

    async def target(self, index: int = 0, **more: object) -> MpsTarget:
        uuid = (await self.driver.inventory()).gpus[index].uuid
        target = MpsTarget(key=uuid, gpu=uuid, visible=uuid, memory_limit_mib=4096, thread_percent=25)
        return msgspec.structs.replace(target, **more)

    async def apply(self, *targets: MpsTarget, used: tuple[str, ...] = ()) -> list[DaemonState]:
        return list(await self.agent.apply(targets, await self.driver.inventory(), used))

    async def phases(self, *targets: MpsTarget, used: tuple[str, ...] = ()) -> list[str]:
        return [each.phase for each in await self.apply(*targets, used=used)]

    def record(self, key: str) -> DaemonRecord:
        return msgspec.json.decode((self.root / "mps" / key / "daemon.json").read_bytes(), type=DaemonRecord)

    def records(self) -> list[DaemonRecord]:
        return [self.record(path.parent.name) for path in (self.root / "mps").glob("*/daemon.json")]

    def tell(self, key: str, command: str) -> str:
        env = os.environ | {"CUDA_MPS_PIPE_DIRECTORY": str(self.root / "mps" / key / "pipe")}
        return subprocess.run(
            [self.program], check=True, input=f"{command}\n", env=env, capture_output=True, text=True, timeout=30
        ).stdout

    async def modes(self) -> list[ComputeMode]:
        return [each.compute_mode for each in (await self.driver.inventory()).gpus]
