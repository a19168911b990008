"""`python -m mechheads`: what there is to run."""

import sys

from mechheads.cli.parse import VERBS, unless_gone
from mechheads.errors import unknown


def main() -> int:
    """List the verbs; exit 2 for a word that is none of the help flags."""
    words = sys.argv[1:]
    if words and words[0] not in ("--help", "-h"):
        hint = f"Run: python -m mechheads.{words[0]}" if words[0] in VERBS else None
        print(f"mechheads: {hint or unknown('verb', words[0], VERBS)}", file=sys.stderr)
        return 2
    print("mechheads: which attention heads do the job?\n")
    print("Usage: python -m mechheads.VERB [flags]\n")
    for verb, purpose in VERBS.items():
        print(f"  {verb:<12}{purpose}")
    print("\npython -m mechheads.VERB --help tells the flags of a verb.")
    return 0


if __name__ == "__main__":
    with unless_gone():
        code = main()
        sys.stdout.flush()
        sys.exit(code)
