"""A program in place of comet-score, which needs a model of gigabytes."""

import stat
import sys
from pathlib import Path


def write_comet_score(folder: Path) -> Path:
    """A program that prints as comet-score does: 1 where answer and reference are the same. It
    notes every start in a file beside it.
    """
    program = folder / "comet-score"
    program.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        "open(__file__ + '.starts', 'a').write('.')\n"
        "args = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
        "lines = [open(args[k]).read().splitlines() for k in ('-s', '-t', '-r')]\n"
        "for i, (s, t, r) in enumerate(zip(*lines)):\n"
        "    print(f'hyp.txt\\tSegment {i}\\tscore: {float(t == r):.4f}')\n"
        "print('hyp.txt\\tscore: 0.5')\n",
        encoding="utf-8",
    )
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    return program
