"""What the machine leaves this process: memory and cores within control groups."""

import os

import pytest

from marius_py import machine
from marius_py.machine import available_cores, available_memory, group_cores, group_memory

NO_LIMIT = 0x7FFF_FFFF_FFFF_F000
NAMES = {
    2: ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    1: ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def make_group(root, version, path, limit, used, inactive=0):
    mount, *files, entry = NAMES[version]
    folder = root / mount / path.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    for file, value in zip(files, (limit, used), strict=True):
        (folder / file).write_text(f"{value}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{entry} {inactive}\nactive_file 9\n")


@pytest.fixture
def system(tmp_path):
    """A folder in the place of /; call it with the lines of /proc/self/cgroup."""

    def write(*lines):
        (tmp_path / "proc/self").mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc/self/cgroup").write_text("".join(f"{line}\n" for line in lines))
        return tmp_path

    return write


@pytest.mark.parametrize(("version", "line"), [(2, "0::/a/b"), (1, "7:cpu,memory:/a/b")])
def test_the_smallest_rest_of_all_groups_up_the_tree_counts(system, version, line):
    root = system("9:name=systemd:/else", line, "3:cpuset:/")
    assert group_memory(root) is None
    no_limit = "max" if version == 2 else NO_LIMIT
    make_group(root, version, "/", no_limit, 10_000)
    make_group(root, version, "/a", 5000, 1000)
    make_group(root, version, "/a/b", no_limit, 700)
    make_group(root, version, "/a/c", 10, 0)
    assert group_memory(root) == 4000
    make_group(root, version, "/a/b", 2000, 700)
    assert group_memory(root) == 1300
    make_group(root, version, "/a", 5000, 4900)
    assert group_memory(root) == 100
    make_group(root, version, "/a", 5000, 5100)
    assert group_memory(root) == 0


@pytest.mark.parametrize(("version", "line"), [(2, "0::/"), (1, "7:memory:/docker/1234")])
def test_pages_of_files_that_were_read_are_not_taken(system, version, line):
    """A container sees its own group at the mount, whatever the path that it is told."""
    root = system(line)
    make_group(root, version, "/", 8000, 7900, inactive=6000)
    assert group_memory(root) == 6100


def test_without_control_groups_there_is_no_limit(system, tmp_path):
    assert group_memory(tmp_path / "nowhere") is None
    assert group_memory(system("0::/gone", "4:cpu:/x")) is None
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("many")
    assert group_memory(tmp_path) is None


def test_control_groups_limit_the_memory_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "group_memory", lambda: None)
    there = available_memory()
    assert there > 1 << 20
    for limit in (0, 1 << 20):
        monkeypatch.setattr(machine, "group_memory", lambda limit=limit: limit)
        assert available_memory() == limit
    monkeypatch.setattr(machine, "group_memory", lambda: 1 << 62)
    assert available_memory() < 1 << 50


def give_quota(root, version, path, quota, period=100_000):
    folder = root / ("sys/fs/cgroup", "sys/fs/cgroup/cpu")[2 - version] / path.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    if version == 2:
        (folder / "cpu.max").write_text(f"{quota} {period}\n")
    else:
        (folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (folder / "cpu.cfs_period_us").write_text(f"{period}\n")


@pytest.mark.parametrize(("version", "line"), [(2, "0::/a/b"), (1, "7:cpu,cpuacct:/a/b")])
def test_the_smallest_quota_of_all_groups_up_the_tree_counts(system, version, line):
    root = system("9:name=systemd:/else", line, "3:cpuset:/")
    assert group_cores(root) is None
    no_limit = "max" if version == 2 else -1
    give_quota(root, version, "/", no_limit)
    give_quota(root, version, "/a/c", 1000)
    assert group_cores(root) is None
    give_quota(root, version, "/a", 400_000)
    assert group_cores(root) == 4
    give_quota(root, version, "/a/b", 75_000, 50_000)
    assert group_cores(root) == 1.5


def test_a_group_whose_name_is_no_text_counts(system):
    name = b"/t\xe4tig"
    root = system()
    (root / "proc/self/cgroup").write_bytes(b"0::%s\n" % name)
    give_quota(root, 2, os.fsdecode(name), 75_000, 50_000)
    assert group_cores(root) == 1.5


def test_quotas_that_cannot_be_read_are_none(system, tmp_path):
    assert group_cores(tmp_path / "nowhere") is None
    root = system("0::/", "4:cpu:/x")
    (root / "sys/fs/cgroup").mkdir(parents=True)
    for words in ("many", "", "5 0", "1 2 3"):
        (root / "sys/fs/cgroup/cpu.max").write_text(words)
        assert group_cores(root) is None


@pytest.mark.parametrize(("quota", "expected"), [(None, 16), (64, 16), (3, 3), (1.5, 2), (0.1, 1)])
def test_quotas_limit_the_cores_that_there_are(monkeypatch: pytest.MonkeyPatch, quota, expected) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)))
    monkeypatch.setattr(machine, "group_cores", lambda: quota)
    assert available_cores() == expected
