"""`python -m mechheads discover --task ioi`: the same as the console script."""

from mechheads.cli.main import main

if __name__ == "__main__":
    main()
