"""A Slurm of one controller and one node on this machine, for the tests."""

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import create_server, gethostname

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
SETTING = "SLURM_CONF"  # where Slurm's programs find their configuration
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={place}/munge
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmdParameters=config_overrides
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerParameters=batch_sched_delay=0,sched_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=20
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Why there can be no Slurm here; empty if there can."""
    gone = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"{', '.join(gone)} not found (Debian: slurm-wlm, munge)" if gone else ""


@contextmanager
def running(place: Path) -> Iterator[Path]:
    """The configuration of a Slurm that runs below the folder; RuntimeError if it does not start.

    The daemons stay in the foreground, as children of this process, and end if it dies. At the end
    all that was started with this configuration is stopped, and nothing else.
    """
    with create_server(("127.0.0.1", 0)) as one, create_server(("127.0.0.1", 0)) as two:
        ports = one.getsockname()[1], two.getsockname()[1]
    for name in ("state", "spool"):
        (place / name).mkdir(parents=True)
    config, key = place / "slurm.conf", place / "key"
    host, user = gethostname().partition(".")[0], pwd.getpwuid(os.geteuid()).pw_name
    config.write_text(CONFIG.format(host=host, user=user, place=place, ports=ports))
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    munged = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={place}/munge"]
    munged += [f"--{name}-file={place}/munge.{name}" for name in ("pid", "log", "seed")]
    env = {**os.environ, SETTING: str(config)}
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for command in (munged, ["slurmctld", "-D", "-c"], ["slurmd", "-D"]):
            daemons.append(_started(command, env))
            if command is munged:
                _wait(lambda: (place / "munge").exists(), daemons)
        if not _wait(lambda: _said(["sinfo", "-h", "-o", "%t"], env) == "idle", daemons):
            raise RuntimeError(f"Slurm's daemons did not start ({_last_words(place)})")
        yield config
    finally:
        if len(daemons) == 3:
            _said(["scancel", f"--user={user}"], env)
            _wait(lambda: not _said(["squeue", "-h"], env), daemons, 10)
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for left in left_behind(config):  # the steps of jobs outlive the daemons
            with suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)


def left_behind(config: Path) -> list[int]:
    """The processes that have this configuration in their environment, except for this one."""
    setting, found = f"{SETTING}={config}".encode(), []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if setting in (place / "environ").read_bytes().split(b"\0"):
                found.append(int(place.name))
    return [number for number in found if number != os.getpid()]


def _started(command: list[str], env: dict[str, str]) -> "subprocess.Popen[bytes]":
    library, ours = ctypes.CDLL(None), os.getpid()

    def end_with_us() -> None:
        library.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        if os.getppid() != ours:
            os._exit(1)

    nothing = subprocess.DEVNULL
    return subprocess.Popen(
        command, env=env, stdout=nothing, stderr=nothing, preexec_fn=end_with_us
    )


def _said(command: list[str], env: dict[str, str]) -> str:
    """What a program of Slurm prints; empty if it does not answer."""
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=10, check=False
        ).stdout.strip()
    return ""


def _wait(
    true: Callable[[], object], daemons: list["subprocess.Popen[bytes]"], seconds: float = 30
) -> bool:
    """Whether it becomes true, while all daemons live."""
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until or any(daemon.poll() is not None for daemon in daemons):
            return False
        time.sleep(0.2)
    return True


def _last_words(place: Path) -> str:
    """The end of the daemons' logs."""
    logs = [log.read_text(errors="replace").splitlines() for log in place.glob("*.log")]
    return "; ".join(lines[-1] for lines in logs if lines) or "they said nothing"
