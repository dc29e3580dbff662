"""What an engine leaves on disk is in one folder, and goes with the engine or at the next start.

A process number that is taken again keeps the folder of the dead one until a start after the new one's end; see
`test_a_folder_of_a_living_process_stays`.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from serving.run_directory import RunDirectory

MAKE_AND_WAIT = """
import sys
from pathlib import Path
from serving.run_directory import RunDirectory
directory = RunDirectory.create(Path(sys.argv[1]))
directory.own(sys.argv[2])
print(directory.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    return tmp_path / "forecache"


@pytest.fixture
def temporary_files_restored() -> Iterator[None]:
    before, variable = tempfile.tempdir, os.environ.get("TMPDIR")
    yield
    tempfile.tempdir = before
    if variable is None:
        os.environ.pop("TMPDIR", None)
    else:
        os.environ["TMPDIR"] = variable


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def folder_of_a_dead_process(parent: Path) -> Path:
    parent.mkdir(mode=0o700, exist_ok=True)
    folder = parent / f"{dead_pid()}-0badcafe"
    folder.mkdir()
    return folder


class TestCreate:
    def test_folder_and_parent_are_for_this_user_alone_whatever_the_umask(self, parent: Path) -> None:
        umask = os.umask(0)
        try:
            directory = RunDirectory.create(parent)
        finally:
            os.umask(umask)
        assert mode(parent) == mode(directory.path) == 0o700
        assert directory.path.name.startswith(f"{os.getpid()}-")

    def test_every_call_makes_another(self, parent: Path) -> None:
        assert RunDirectory.create(parent).path != RunDirectory.create(parent).path

    def test_by_default_it_is_below_the_folder_for_temporary_files(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        assert RunDirectory.create().path.parent == tmp_path / f"forecache-{os.getuid()}"

    def test_many_at_once_do_not_disturb_each_other(self, parent: Path) -> None:
        for _ in range(5):
            folder_of_a_dead_process(parent)
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(lambda _: RunDirectory.create(parent), range(64)))
        assert len({directory.path for directory in made}) == 64
        assert set(parent.iterdir()) == {directory.path for directory in made}

    def test_a_parent_that_others_may_write_in_is_refused(self, parent: Path) -> None:
        """Whoever can write there could list our own files as owned, to be removed by us."""
        parent.mkdir()
        parent.chmod(0o777)
        with pytest.raises(PermissionError, match="only you can write in"):
            RunDirectory.create(parent)

    def test_a_parent_that_is_a_link_is_refused(self, parent: Path, tmp_path: Path) -> None:
        parent.symlink_to(tmp_path, target_is_directory=True)
        with pytest.raises(PermissionError, match="only you can write in"):
            RunDirectory.create(parent)


class TestTemporaryFiles:
    @pytest.mark.usefixtures("temporary_files_restored")
    def test_this_process_and_its_children_put_them_there(self, parent: Path) -> None:
        directory = RunDirectory.create(parent)
        directory.use_for_temporary_files()
        with tempfile.NamedTemporaryFile() as file:
            assert Path(file.name).parent == directory.path
        child = [sys.executable, "-c", "import tempfile; print(tempfile.gettempdir())"]
        assert subprocess.check_output(child, text=True).strip() == str(directory.path)


class TestRemove:
    def test_folder_and_owned_files_go_and_nothing_else(self, parent: Path, tmp_path: Path) -> None:
        owned, other = tmp_path / "owned shm", tmp_path / "other"
        owned.touch()
        other.touch()
        directory = RunDirectory.create(parent)
        (directory.path / "sockets").mkdir()
        (directory.path / "sockets" / "a").touch()
        directory.own(str(owned))
        directory.own(str(tmp_path / "never made"))
        directory.remove()
        assert not directory.path.exists()
        assert not owned.exists()
        assert other.exists()
        assert parent.exists()

    def test_twice_is_fine(self, parent: Path) -> None:
        directory = RunDirectory.create(parent)
        directory.remove()
        directory.remove()

    def test_an_owned_name_that_cannot_be_removed_does_not_keep_the_rest(self, parent: Path, tmp_path: Path) -> None:
        owned = tmp_path / "owned"
        owned.touch()
        directory = RunDirectory.create(parent)
        for name in (str(tmp_path), "", str(owned)):
            directory.own(name)
        directory.remove()
        assert not owned.exists()
        assert not directory.path.exists()


class TestSweep:
    def test_what_a_killed_process_left_goes_at_the_next_start(self, parent: Path, tmp_path: Path) -> None:
        owned = tmp_path / "owned"
        owned.touch()
        child, folder = self.start_child(parent, owned)
        child.kill()
        child.wait()
        assert folder.exists()
        RunDirectory.create(parent)
        assert not folder.exists()
        assert not owned.exists()

    def test_a_folder_of_a_living_process_stays(self, parent: Path, tmp_path: Path) -> None:
        owned = tmp_path / "owned"
        owned.touch()
        child, folder = self.start_child(parent, owned)
        try:
            RunDirectory.create(parent)
            assert folder.exists()
            assert owned.exists()
        finally:
            child.kill()
            child.wait()

    @pytest.mark.parametrize("name", ["notes.txt", "²-superscript", "-", "99999999999999999999999-huge", "{dead}-file"])
    def test_a_foreign_file_breaks_nothing(self, parent: Path, name: str) -> None:
        parent.mkdir(mode=0o700)
        foreign = parent / name.format(dead=dead_pid())
        foreign.touch()
        assert RunDirectory.create(parent).path.exists()
        assert foreign.exists()

    def test_a_damaged_list_of_owned_files_breaks_nothing(self, parent: Path) -> None:
        folder = folder_of_a_dead_process(parent)
        (folder / "owned-files").write_bytes(b"\xff\xfe\x00broken\n/proc/1/status\n")
        RunDirectory.create(parent)
        assert not folder.exists()

    @staticmethod
    def start_child(parent: Path, owned: Path) -> tuple[subprocess.Popen[str], Path]:
        command = [sys.executable, "-c", MAKE_AND_WAIT, str(parent), str(owned)]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        return child, Path(child.stdout.readline().strip())
