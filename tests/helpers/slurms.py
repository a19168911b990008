"""A Slurm of one controller and one node on this machine, for the tests."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import create_server, gethostname

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
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
    if gone:
        return f"{', '.join(gone)} not found (Debian: slurm-wlm, munge)"
    return "" if os.geteuid() == 0 else "Slurm's daemons are started as root"


@contextmanager
def running(place: Path) -> Iterator[Path]:
    """The configuration of a Slurm that runs below the folder; RuntimeError if it does not start.

    The daemons stay in the foreground, as children of this process: only they are stopped.
    """
    with create_server(("127.0.0.1", 0)) as one, create_server(("127.0.0.1", 0)) as two:
        ports = one.getsockname()[1], two.getsockname()[1]
    for name in ("state", "spool"):
        (place / name).mkdir(parents=True)
    config, key = place / "slurm.conf", place / "key"
    host = gethostname().partition(".")[0]
    config.write_text(CONFIG.format(host=host, place=place, ports=ports))
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    munged = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={place}/munge"]
    munged += [f"--{name}-file={place}/munge.{name}" for name in ("pid", "log", "seed")]
    env = {**os.environ, "SLURM_CONF": str(config)}
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for command in (munged, ["slurmctld", "-D", "-c"], ["slurmd", "-D"]):
            daemons.append(
                subprocess.Popen(
                    command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            )
            time.sleep(1)
        _wait_for_the_node(daemons, env)
        yield config
    finally:
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(["scancel", "--user=root"], env=env, timeout=10, check=False)
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _wait_for_the_node(daemons: list[subprocess.Popen[bytes]], env: dict[str, str]) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until and all(daemon.poll() is None for daemon in daemons):
        said = subprocess.run(
            ["sinfo", "-h", "-o", "%t"], env=env, capture_output=True, text=True, check=False
        )
        if said.stdout.strip() == "idle":
            return
        time.sleep(0.5)
    raise RuntimeError("Slurm's daemons did not start")
