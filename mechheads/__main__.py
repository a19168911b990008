"""`python -m mechheads discover --task ioi`: the console script without its installed name."""

from mechheads.cli.main import main

if __name__ == "__main__":
    main()
