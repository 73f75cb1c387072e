"""Power limits and clocks set, and put back also by another agent."""

import os
from pathlib import Path

import pytest

from tessera.agent.sharing.power import PowerKeeper
from tessera.clients.gpu import MemoryDriver
from tessera.core.node.nodesharing import GpuSettings
from tessera.errors import Unavailable
from tessera.log import logger

pytestmark = pytest.mark.anyio


async def watts(driver: MemoryDriver) -> int | None:
    return (await driver.inventory()).gpus[0].power_limit_watts


async def test_caps_and_clocks_are_set_and_put_back_by_another_agent(tmp_path: Path) -> None:
    driver = MemoryDriver.of("T4", "T4")
    default = await watts(driver)
    assert default is not None
    before = await driver.inventory()
    uuid = before.gpus[0].uuid
    record = tmp_path / "state" / "power.json"
    policies = [GpuSettings(uuid=uuid, power_limit_watts=default - 10, clocks_mhz=(300, 900))]
    keeper = PowerKeeper(driver, record, logger())
    for _ in range(2):
        assert await keeper.apply(policies, await driver.inventory()) == ()
        assert (await watts(driver), driver.clocks_mhz) == (default - 10, {uuid: (300, 900)})
    other = PowerKeeper(driver, record, logger())
    assert await other.apply([], await driver.inventory()) == ()
    assert (await driver.inventory()).gpus == before.gpus
    assert driver.clocks_mhz == {}
    assert record.read_text() == "[]"


async def test_a_limit_somebody_else_set_is_what_is_put_back(tmp_path: Path) -> None:
    driver = MemoryDriver.of("T4")
    default = await watts(driver)
    assert default is not None
    uuid = (await driver.inventory()).gpus[0].uuid
    await driver.set_power_limit(uuid, default - 5)
    keeper = PowerKeeper(driver, tmp_path / "power.json", logger())
    await keeper.apply([GpuSettings(uuid=uuid, power_limit_watts=default - 10)], await driver.inventory())
    await keeper.apply([], await driver.inventory())
    assert await watts(driver) == default - 5


async def test_what_fails_is_reported_and_the_rest_is_done(tmp_path: Path) -> None:
    driver = MemoryDriver.of("T4", "T4")
    first, second = (await driver.inventory()).gpus
    refused = Unavailable("GPU 0", found="a timeout", expected="an answer")
    driver.fail("set_power_limit", refused)
    policies = [GpuSettings(uuid=each.uuid, power_limit_watts=200) for each in (first, second)]
    keeper = PowerKeeper(driver, tmp_path / "power.json", logger())
    assert await keeper.apply(policies, await driver.inventory()) == (str(refused),)
    assert [each.power_limit_watts for each in (await driver.inventory()).gpus] == [first.power_limit_watts, 200]
    assert await keeper.apply(policies, await driver.inventory()) == ()


async def test_nothing_is_changed_that_could_not_be_put_back(tmp_path: Path) -> None:
    driver = MemoryDriver.of("T4")
    default = await watts(driver)
    uuid = (await driver.inventory()).gpus[0].uuid
    policies = [GpuSettings(uuid=uuid, power_limit_watts=200, clocks_mhz=(1, 2))]
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    nested, bytes_ = tmp_path / "nested.json", tmp_path / "bytes.json"
    nested.write_bytes(b"[" * 100_000)
    bytes_.write_bytes(b'[{"gpu": "\xff"}]')
    unwritable = broken / "power.json"
    for record, want in (
        (broken, "remove the file"),
        (nested, "remove the file"),
        (bytes_, "remove the file"),
        (tmp_path, "Is a directory"),
    ):
        (problem,) = await PowerKeeper(driver, record, logger()).apply(policies, await driver.inventory())
        assert want in problem
    assert len(await PowerKeeper(driver, unwritable, logger()).apply(policies, await driver.inventory())) == 1
    (tmp_path / f".power.json.{os.getpid()}").mkdir()
    problems = await PowerKeeper(driver, tmp_path / "power.json", logger()).apply(policies, await driver.inventory())
    assert [problem.endswith("a folder that the agent may write to") for problem in problems] == [True, True]
    assert (await watts(driver), driver.clocks_mhz) == (default, {})
