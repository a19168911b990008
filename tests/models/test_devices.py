import platform
import subprocess
import sys

import pytest


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="what glibc does with memory")
def test_passes_use_memory_again_rather_than_getting_it_from_the_system():
    code = """
import resource, torch
from mechheads.models.devices import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        a = torch.ones(1 << 20)
        b = a + a
        del a, b
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
keep_freed_memory()
faults()
print(before, faults())
"""
    words = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    before, after = map(int, words)
    assert after < before / 10
